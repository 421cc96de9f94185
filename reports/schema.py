"""The types of run.json: what was run, how it is judged, and (summary_schema.py) what was measured."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from engines.base import ClientReport
from reports.summary_schema import Summary
from workloads.rates import RateSchedule

RUN_SCHEMA: Final = "cbbench.run/1"

Verdict = Literal["pass", "fail", "inconclusive"]
ValidityVerdict = Literal["ok", "client_limited", "overloaded", "invalid"]
EventUnit = Literal["step", "us"]


class EngineInfo(msgspec.Struct, frozen=True):
    """The engine. The slot timeline reads `mode` and, for static batching, config["static"]."""

    kind: str  # reference | openai | simulated
    mode: str | None = None  # continuous | static
    model: str | None = None
    device: str | None = None
    config: dict[str, Any] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """`config` without what changes no result: the core that a simulated run took place on."""
        return {name: value for name, value in self.config.items() if name != "core"}

    @property
    def name(self) -> str:
        """What ran the requests, or the tool whose file says so."""
        return str(self.config.get("tool") or self.kind)

    @property
    def batching(self) -> str | None:
        """The batching mode as text; None for a server, which does not expose it."""
        return f"{self.mode}, disaggregated" if self.mode and self.config.get("disaggregate") else self.mode

    @property
    def hardware(self) -> str | None:
        """The devices as text: simulated prefill and decode instances have one each, others share one."""
        if self.device is None or not self.config.get("disaggregate"):
            return self.device
        return f"2 × {self.device}" if self.kind == "simulated" else f"two instances on one {self.device}"

    @property
    def prediction(self) -> str | None:
        """The source of simulated step times, shown beside every such number. None where they were measured."""
        return f"predicted, step times {label}" if (label := self.config.get("law_label")) else None


class PacingInfo(msgspec.Struct, frozen=True):
    """When requests are sent. With a rate the loop is open, and latencies are judged from the scheduled time."""

    rate_per_s: float | None = None  # the mean over the plan, of a rate that changes
    rate_schedule: str | None = None  # the stages of a rate that changes, as the setting `rate` has them
    concurrency: int | None = None
    duration_s: float | None = None
    drain_s: float | None = None
    arrival: str | None = None
    think_ms: str | None = None  # of the turns of a session, which wait for the answer before them

    @property
    def open_loop(self) -> bool:
        return self.rate_per_s is not None


class PromptsInfo(msgspec.Struct, frozen=True):
    """The text of prompts from a file; WorkloadInfo.sha256 covers lengths and arrivals alone."""

    source: str
    sha256: str  # of the prompts, request by request
    prompts: int  # distinct lines of the file that were used
    counted_by: Literal["tokenizer", "file", "server"]  # source of the planned prompt_tokens; server: estimates


class WorkloadInfo(msgspec.Struct, frozen=True):
    spec: str
    seed: int
    sha256: str
    num_requests: int
    prompt_seed: int = 0
    realised: dict[str, Any] = {}
    pacing: PacingInfo = PacingInfo()
    prompts: PromptsInfo | None = None  # None: drawn from prompt_seed

    @property
    def asked_per_s(self) -> float | None:
        """Requests per second until the plan or its duration ends, the mean of a rate that changes; None without a
        rate."""
        rate, duration_s = self.pacing.rate_per_s, self.pacing.duration_s
        if rate is None or self.pacing.rate_schedule is None or duration_s is None:
            return rate
        schedule = RateSchedule.parse(self.pacing.rate_schedule)
        lasts_s = min(duration_s, schedule.time_s(self.num_requests))
        return float(schedule.expected(lasts_s)) / lasts_s

    @property
    def prompts_sha256(self) -> str | None:
        return None if self.prompts is None else self.prompts.sha256


class Criteria(msgspec.Struct, frozen=True):
    """The criteria of the run, as text; kept in the header so that a rebuilt run is judged by them."""

    sla: tuple[str, ...] = ()
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    max_failure_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01


class SlaResult(msgspec.Struct, frozen=True):
    expr: str
    metric: str  # as judged: in open loop p99_ttft_ms becomes p99_ttft_sched_ms
    value: float | None  # None: not measured, or so many failures that it is infinite
    bound: float
    confidence: float
    n: int
    n_eff: float | None
    verdict: Verdict
    reason: str
    needed: int | None = None  # requests of the run at least, where more could give a verdict
    scope: str | None = None  # "tenant=quiet": judged on these `n` requests alone
    violations: int | None = None  # of n, beyond the bound, where they are counted
    bursts: tuple[int, int] | None = None  # in which the slowest requests came, and wanted for a pass; None: calm
    method: Literal["model-assisted"] | None = None  # None: from the run's own data alone

    @property
    def unmeasured(self) -> bool:
        """No value to compare with the bound: inconclusive with any number of requests."""
        return self.verdict == "inconclusive" and self.value is None and self.n_eff is None

    @property
    def missed(self) -> bool:
        """By point estimate: failed, or the value is beyond the bound without proof. False without a value."""
        if self.value is None:  # infinite, or not measured
            return self.verdict == "fail" or self.n_eff is not None
        at_least = self.metric.endswith("_per_s") or self.metric == "attainment"
        return self.verdict == "fail" or (self.value < self.bound if at_least else self.value > self.bound)

    @property
    def met(self) -> bool:
        """By point estimate: measured and not missed, proven or not."""
        return self.value is not None and not self.missed

    @property
    def name(self) -> str:
        """p99_ttft_ms[tenant=quiet]"""
        return self.metric if self.scope is None else f"{self.metric}[{self.scope}]"


class Validity(msgspec.Struct, frozen=True):
    verdict: ValidityVerdict
    reasons: tuple[str, ...] = ()


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """run.json. During a run, and after a crash, it is the header alone: summary and validity are None."""

    schema: Literal["cbbench.run/1"] = RUN_SCHEMA
    engine: EngineInfo
    workload: WorkloadInfo
    event_unit: EventUnit
    environment: dict[str, Any] = {}
    criteria: Criteria = Criteria()
    definitions: dict[str, str] = {}
    interrupted: bool = False
    round: int | None = None  # from 1, of a run that goes on until its SLAs are decided
    notes: tuple[str, ...] = ()
    summary: Summary | None = None
    sla: tuple[SlaResult, ...] = ()
    validity: Validity | None = None
    client: ClientReport | None = None  # of a run over HTTP
