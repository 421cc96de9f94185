"""The shape of run.json, typed. What could not be measured is None (null in the file), never 0 or NaN.

Times are ms in latencies and s elsewhere, as every name says. Which number means what: metrics.definitions().
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from engines.base import ClientReport

RUN_SCHEMA: Final = "cbbench.run/1"

Verdict = Literal["pass", "fail", "inconclusive"]
ValidityVerdict = Literal["ok", "client_limited", "overloaded", "invalid"]
EventUnit = Literal["step", "us"]


class EngineInfo(msgspec.Struct, frozen=True):
    """What served. The slot timeline reads `mode` and, for static batching, config["static"]."""

    kind: str  # reference | openai | simulated
    mode: str | None = None  # continuous | static
    model: str | None = None
    device: str | None = None
    config: dict[str, Any] = {}

    @property
    def batching(self) -> str | None:
        """In words; None for a server, which does not say."""
        return f"{self.mode}, disaggregated" if self.mode and self.config.get("disaggregate") else self.mode

    @property
    def prediction(self) -> str | None:
        """Where simulated times come from; it goes wherever such a number is shown. None where they were measured."""
        return f"predicted, step times {label}" if (label := self.config.get("law_label")) else None


class PacingInfo(msgspec.Struct, frozen=True):
    """When it was asked. With a rate the loop is open, and latencies are judged from the scheduled time."""

    rate_per_s: float | None = None  # of one that changes, its mean over the plan
    rate_schedule: str | None = None  # the stages of one that changes, as --rate has them
    concurrency: int | None = None
    duration_s: float | None = None
    drain_s: float | None = None
    arrival: str | None = None

    @property
    def open_loop(self) -> bool:
        return self.rate_per_s is not None


class PromptsInfo(msgspec.Struct, frozen=True):
    """What the prompts said, where a file said it: WorkloadInfo.sha256 is of lengths and arrivals alone."""

    source: str
    sha256: str  # of the prompts, request by request
    prompts: int  # different lines of the file that were asked
    counted_by: Literal["tokenizer", "file", "server"]  # whose count the planned prompt_tokens are; server: guesses


class WorkloadInfo(msgspec.Struct, frozen=True):
    spec: str
    seed: int
    sha256: str
    num_requests: int
    prompt_seed: int = 0
    realised: dict[str, Any] = {}
    pacing: PacingInfo = PacingInfo()
    prompts: PromptsInfo | None = None  # None: drawn from prompt_seed


class Criteria(msgspec.Struct, frozen=True):
    """What the run is judged by; kept in the header so that a rebuilt run is judged alike."""

    sla: tuple[str, ...] = ()
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    max_failure_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01


class Requests(msgspec.Struct, frozen=True):
    planned: int
    sent: int
    completed: int
    failed: int  # rejected ones too
    cancelled: int
    errors: dict[str, int] = {}  # of failed requests: their finish_reason or error -> how many

    @property
    def ended(self) -> int:
        """Each has a line in requests.jsonl."""
        return self.completed + self.failed + self.cancelled


class Steady(msgspec.Struct, frozen=True):
    """Throughput without ramp and drain; see steady.py."""

    start_s: float
    end_s: float
    request_per_s: float
    output_token_per_s: float


class Warmup(msgspec.Struct, frozen=True):
    """What MSER-5 would cut from the start; see warmup.py."""

    requests: int
    until_s: float  # when the first request that is like the rest was scheduled
    share: float  # of the completed requests
    settled: bool  # False: so late that the start may not have ended


class Throughput(msgspec.Struct, frozen=True):
    window_s: float  # first scheduled to last end
    request_per_s: float | None
    output_token_per_s: float | None
    total_token_per_s: float | None
    steady: Steady | None = None
    warmup: Warmup | None = None  # None: too few requests, or all came at once, so that none is like another


class Distribution(msgspec.Struct, frozen=True):
    count: int
    mean: float | None = None
    std: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    p99_ci: tuple[float, float] | None = None
    max: float | None = None


class Latency(msgspec.Struct, frozen=True):
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    e2el_ms: Distribution
    ttft_sched_ms: Distribution
    e2el_sched_ms: Distribution
    ttfot_ms: Distribution | None = None  # only where some answer came after reasoning


class Goodput(msgspec.Struct, frozen=True):
    """None throughout when no SLA bounds a latency of single requests."""

    request_per_s: float | None = None
    attainment: float | None = None
    attainment_ci: tuple[float, float] | None = None


class Signals(msgspec.Struct, frozen=True):
    """Means over step time, so a long step weighs more than a short one; device_busy is over the whole window.

    Of a disaggregated engine as a whole: the mean of its devices and of their KV, the sum of who runs and waits.
    """

    device_busy: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_peak: float | None = None
    running_mean: float | None = None
    waiting_mean: float | None = None
    preemptions: int | None = None
    prefix_hit_tokens: int | None = None
    resume_hit_tokens: int | None = None
    rejected: int | None = None
    steps: int | None = None
    step_ms_mean: float | None = None
    blocked: dict[str, float] = {}  # why the head of the queue waited (rows, tokens, kv, ...) -> share of steps
    # Over the samples in which the GPU said so.
    gpu_utilization_mean: float | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_power_mean_w: float | None = None
    gpu_sm_clock_mean_mhz: float | None = None
    gpu_slowed_share: float | None = None


class Waste(msgspec.Struct, frozen=True):
    """Sums over the ledger; engines/scheduling/ledger.py has the identities."""

    launched_tokens: int
    useful_tokens: int
    prompt_padding_tokens: int
    bucket_padding_tokens: int
    dead_row_tokens: int
    recomputed_tokens: int
    discarded_tokens: int
    active_slot_steps: int
    dead_slot_steps: int
    idle_slot_steps: int
    budget_unused_tokens: int

    @property
    def slot_steps(self) -> int:
        return self.active_slot_steps + self.dead_slot_steps + self.idle_slot_steps


class Part(msgspec.Struct, frozen=True):
    """What one part of a latency takes: on average, and in the requests whose latency is at or above its P99."""

    mean_ms: float
    share: float | None  # of the mean latency
    tail_mean_ms: float
    tail_share: float | None


class Breakdown(msgspec.Struct, frozen=True):
    """Parts of TTFT and E2EL from the scheduled time, by name; each adds up. See breakdown.py."""

    requests: int  # completed ones
    ttft: dict[str, Part]
    e2el: dict[str, Part]
    blocked: dict[str, Part] = {}  # the part of the queue by why its head was not admitted; shares are of TTFT


class GroupLatency(msgspec.Struct, frozen=True):
    ttft_ms: Distribution
    tpot_ms: Distribution
    e2el_ms: Distribution
    ttft_sched_ms: Distribution
    e2el_sched_ms: Distribution


class Group(msgspec.Struct, frozen=True):
    """A part of the requests that ended: one tenant's, one priority's, or those with prompts of one bucket."""

    requests: int
    completed: int
    failed: int
    request_per_s: float | None
    output_token_per_s: float | None
    latency: GroupLatency
    max_wait_ms: float | None  # for the first seat
    preemptions: int
    service_tokens: int  # prompt + 2 * output; see service.py


class Instance(msgspec.Struct, frozen=True):
    """One of the two of a disaggregated engine, by its own steps, seats and KV pool."""

    signals: Signals
    waste: Waste


class Transfers(msgspec.Struct, frozen=True):
    """KV that went from the prefill to the decode instance."""

    requests: int
    blocks: int
    wait_ms: Distribution  # from the first token until the decode instance had room
    transfer_ms: Distribution  # from then until all KV was there, other transfers before it included
    kept_blocks_peak: int  # of the prefill instance's pool: the most that it kept for requests it had done with


class Summary(msgspec.Struct, frozen=True):
    """The splits are empty unless they have two parts or more."""

    requests: Requests
    throughput: Throughput
    latency: Latency
    goodput: Goodput
    signals: Signals
    waste: Waste | None  # None where there is no ledger (a remote server)
    breakdown: Breakdown | None = None  # None where no request completed
    by_tenant: dict[str, Group] = {}
    by_priority: dict[str, Group] = {}
    by_prompt_bucket: dict[str, Group] = {}  # by the edges in engine.config["prompt_buckets"]
    by_stage: dict[str, Group] = {}  # by the stage of a rate that changes in which a request was scheduled
    service_gap_tokens: float | None = None
    instances: dict[str, Instance] = {}  # prefill and decode; empty where one does everything
    transfers: Transfers | None = None


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
    needed: int | None = None  # requests of the run at the least, where more of them could settle it
    scope: str | None = None  # "tenant=quiet": judged on these requests alone, of which `n` is the number

    @property
    def unmeasured(self) -> bool:
        """No number to hold against the bound: neither met nor missed, however many requests there are."""
        return self.verdict == "inconclusive" and self.value is None

    @property
    def name(self) -> str:
        """p99_ttft_ms[tenant=quiet]"""
        return self.metric if self.scope is None else f"{self.metric}[{self.scope}]"


class Validity(msgspec.Struct, frozen=True):
    verdict: ValidityVerdict
    reasons: tuple[str, ...] = ()


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """run.json. While a run goes on (and after a crash) it is the header alone: summary and validity are None."""

    schema: Literal["cbbench.run/1"] = RUN_SCHEMA
    engine: EngineInfo
    workload: WorkloadInfo
    event_unit: EventUnit
    environment: dict[str, Any] = {}
    criteria: Criteria = Criteria()
    definitions: dict[str, str] = {}
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    summary: Summary | None = None
    sla: tuple[SlaResult, ...] = ()
    validity: Validity | None = None
    client: ClientReport | None = None  # of a run over HTTP
