"""The types of the numbers of run.json. A number that was not measured is None (null in the file), never 0 or NaN.

Times are ms in latencies and s elsewhere, as their names say. metrics.definitions() defines each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


class Requests(msgspec.Struct, frozen=True):
    planned: int
    sent: int
    completed: int
    failed: int  # rejected ones too
    cancelled: int
    errors: dict[str, int] = {}  # of failed requests: their finish_reason or error -> how many
    messages: dict[str, int] = {}  # of failed requests: what the error said -> how many; ids and numbers may differ

    @property
    def ended(self) -> int:
        """Requests with a line in requests.jsonl."""
        return self.completed + self.failed + self.cancelled


class Steady(msgspec.Struct, frozen=True):
    """Throughput without ramp and drain; see steady.py."""

    start_s: float
    end_s: float
    request_per_s: float
    output_token_per_s: float


class Warmup(msgspec.Struct, frozen=True):
    """The part that MSER-5 would cut from the start; see warmup.py."""

    requests: int
    until_s: float  # scheduled time of the first request after it
    share: float  # of the completed requests
    settled: bool  # False: so late that the warm-up may not have ended


class Throughput(msgspec.Struct, frozen=True):
    window_s: float  # first scheduled to last end
    request_per_s: float | None
    output_token_per_s: float | None
    total_token_per_s: float | None
    steady: Steady | None = None
    warmup: Warmup | None = None  # None: too few requests, or all arrived at once
    arrivals_per_s: float | None = None  # as the plan realised the rate; None: no rate, or all arrived at once


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
    ttfot_ms: Distribution | None = None  # None without reasoning


class Goodput(msgspec.Struct, frozen=True):
    """All None where no SLA bounds a latency of single requests."""

    request_per_s: float | None = None
    attainment: float | None = None
    attainment_ci: tuple[float, float] | None = None


class Signals(msgspec.Struct, frozen=True):
    """Means over the wall time of the window; kv_usage_peak is over the steps.

    Of a disaggregated engine as a whole: the mean of its devices and of their KV, the sum of running and waiting
    requests.
    """

    device_busy: float | None = None
    launch_bound: float | None = None
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
    # Over the samples of GPU telemetry that have the value.
    gpu_utilization_mean: float | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_power_mean_w: float | None = None
    gpu_sm_clock_mean_mhz: float | None = None
    gpu_slowed_share: float | None = None


class Waste(msgspec.Struct, frozen=True):
    """Sums over the ledger; engines/ledger.py has the identities."""

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
    """One part of a latency: the mean over all requests, and over those whose latency is at or above its P99."""

    mean_ms: float
    share: float | None  # of the mean latency
    tail_mean_ms: float
    tail_share: float | None


class Breakdown(msgspec.Struct, frozen=True):
    """Parts of TTFT and E2EL from the scheduled time, by name; they add up to it. See breakdown.py."""

    requests: int  # completed ones
    ttft: dict[str, Part]
    e2el: dict[str, Part]
    blocked: dict[str, Part] = {}  # parts of `queue` by why the head was not admitted; shares of TTFT


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
    max_wait_ms: float | None  # for the first admission
    preemptions: int
    service_tokens: int  # prompt + 2 * output; see fairness.py


class StageVerdict(msgspec.Struct, frozen=True):
    """An SLA judged on the requests of one stage."""

    expr: str
    value: float | None  # None: not measured, or infinite
    verdict: Literal["pass", "fail", "inconclusive"]
    reason: str


class StageGroup(Group, frozen=True, kw_only=True):
    """The requests due in one stage of a rate that changes, or in a part of a ramp. Rates are those of requests that
    ended within its time."""

    key: str = ""  # [stage=KEY]
    from_per_s: float = 0.0
    to_per_s: float = 0.0
    asked_request_per_s: float | None = None  # due in it, per second of it; None: with one request
    goodput: Goodput = Goodput()  # requests due in it that met the SLAs, per second of its time
    sla: tuple[StageVerdict, ...] = ()

    @property
    def words(self) -> str:
        """stage 3 (16 requests/s)"""
        low, high = f"{self.from_per_s:.4g}", f"{self.to_per_s:.4g}"
        named = "after the last stage" if self.key == "then" else f"stage {self.key}"
        return f"{named} ({low if low == high else f'{low} to {high}'} requests/s)"


def first_failed_stage(stages: Mapping[str, StageGroup]) -> str | None:
    """The name of the first stage in which an SLA fails; None where none fails."""
    return next((name for name, one in stages.items() if any(sla.verdict == "fail" for sla in one.sla)), None)


class Instance(msgspec.Struct, frozen=True):
    """One instance of a disaggregated engine, by its own steps, slots and KV pool."""

    signals: Signals
    waste: Waste


class Transfers(msgspec.Struct, frozen=True):
    """KV transfers from the prefill to the decode instance."""

    requests: int
    blocks: int
    wait_ms: Distribution  # from the first token until the decode instance planned a step with room
    transfer_ms: Distribution  # from then until all KV had arrived, including earlier transfers
    kept_blocks_peak: int  # the most blocks that the prefill instance kept for transferred requests


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
    by_url: dict[str, Group] = {}  # of a load over several servers: those of engine.config["urls"]
    by_stage: dict[str, StageGroup] = {}  # by the stage of a rate that changes in which a request was scheduled
    service_gap_tokens: float | None = None
    instances: dict[str, Instance] = {}  # prefill and decode; empty without disaggregation
    transfers: Transfers | None = None

    @property
    def splits(self) -> dict[str, dict[str, Group]]:
        """The splits that are not empty, by name; stages are shown separately."""
        named = {
            "tenant": self.by_tenant,
            "priority": self.by_priority,
            "prompt": self.by_prompt_bucket,
            "url": self.by_url,
        }
        return {name: groups for name, groups in named.items() if groups}
