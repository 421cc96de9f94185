"""What every engine gives back: one RequestRow per request as it ends, one ledger row per step, and the RunRecord.

Times are int64 ns since the run began, on one monotonic (or virtual) clock. Everything else is derived from these
afterwards, so a definition can change without running again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.ledger import LEDGER, StepArray
from engines.request_table import RequestRow, RequestTable
from engines.step_runs import StepRuns
from workloads.columns import IntColumn
from workloads.errors import CbbenchError, ExitCode
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

EventUnit = Literal["step", "us"]


class PartialRun(CbbenchError):
    """The run ended before its time, not because the user stopped it; `record` has the requests until then."""

    def __init__(self, message: str, exit_code: int, record: RunRecord) -> None:
        super().__init__(None, message, ExitCode(exit_code))
        self.record = record


class ScrapeReport(msgspec.Struct, frozen=True):
    """What the server's own metrics said during a run over HTTP. None is what it does not expose."""

    url: str
    samples: int
    missed: int  # pages that did not come
    problem: str | None  # of the last one that did not
    sources: dict[str, str]  # of the signals: the server's metric, or "client", or "not exposed"
    restarted: bool  # counters went back
    output_tokens: int | None  # generated during the run; this and the following may lack what a restart lost
    output_tokens_received: int  # by the client
    requests: int | None
    requests_ended: int  # of the client's
    preemptions: int | None
    prefix_hit_rate: float | None
    prefixes_shared: bool  # by requests of the plan, so that hits are to be expected


# Finish reasons of an answer that is whole: those of the OpenAI API, and what TGI, SGLang and gateways to other APIs
# pass on. With any other one, an answer shorter than planned is a failure.
WHOLE_REASONS = frozenset(
    (
        "stop", "length", "tool_calls", "function_call", "eos_token", "stop_sequence", "end_turn", "max_tokens",
        "tool_use", "eos",
    )
)  # fmt: skip


class ClientReport(msgspec.Struct, frozen=True):
    """How well a load client did its own work. None is what could not be measured."""

    stamps: Literal["kernel", "read", "mixed"]  # the clock of the token times: the kernel's, or that of our reads
    loop_lag_p99_ms: float | None  # a turn of the event loop: what a socket that is ready waits at most
    read_lag_p99_ms: float | None  # from the kernel's stamp to our read; None without kernel stamps
    send_lag_p99_ms: float | None  # from when a request could be sent (due, and allowed to be in flight) to when it was
    cpu_share: float | None  # of one core, mean over the workers
    achieved_over_asked_rate: float | None  # None in a closed loop, which asks for no rate
    coalesced_event_share: float | None  # of token events; these have no time of their own
    token_events: int
    cpu_s: float
    resends: int  # on a reused connection that closed before any byte of the answer
    connections: int
    prompt_mismatch_share: float | None  # of the prompts whose tokens the server counted
    prompt_tokens_over_mean: float | None  # served - planned
    short_answer_share: float | None  # completed with fewer output tokens than planned
    workers: int
    scrape: ScrapeReport | None = None  # None: not asked for
    core_wait_s: float | None = None  # ready to run, but other work on the machine had the cores; not part of cpu_s
    prompt_guessed_share: float | None = None  # of the completed requests: prompts estimated, not counted
    connections_used: int | None = None  # of `connections`, by at least one request
    connections_peak: int | None = None  # open at once
    handshake_p50_ms: float | None = None  # to open a connection, TCP and TLS; in no TTFT from sending
    handshake_p99_ms: float | None = None
    connection_waits: int = 0  # requests that were due before their connection was open
    connection_wait_p99_ms: float | None = None  # of these; in TTFT and E2EL from the scheduled time
    record_lag_p99_ms: float | None = None  # from the end of an answer to its line in requests.jsonl
    record_backlog_peak: int = 0  # requests whose end was read and whose record was not written, at once
    retry_afters: int = 0  # refusals that say when to try again, of the requests that failed with them
    retry_after_s: tuple[float, float] | None = None  # the shortest and the longest of these times
    retries: int = 0  # requests sent again after a 429, by `retry_429`
    retried_requests: int = 0  # of these, different ones
    retry_wait_mean_s: float | None = None  # between a refusal and its retry
    usage_below_events_share: float | None = None  # of the completed requests: more token events than tokens by usage
    usage_implausible_share: float | None = None  # of the completed requests: a count in usage that no model reaches
    unseen_answer_share: float | None = None  # of the completed requests: most of their tokens came in no event
    unseen_token_share: float | None = None  # of the output tokens by usage: they came in no event of their own
    long_answer_share: float | None = None  # completed with more output tokens than planned
    cached_tokens: int | None = None  # prompt tokens that the server took from its prefix cache, by its usage
    cached_token_share: float | None = None  # of the prompt tokens of the requests that say it
    prefixes_shared: bool = False  # by requests of the plan, so that cached tokens are to be expected
    streamed: bool = True  # False: answers came whole, so that only E2EL was measured
    notes: tuple[str, ...] = ()  # what the server does not say or take, found before the run
    requests_by_address: dict[str, int] = {}  # of the server; sent, also those that were sent again
    dead_addresses: dict[str, str] = {}  # left out, as they accept no connection: why
    finish_reasons: dict[str, int] = {}  # as the server sent them -> requests, of those that completed or failed


class GpuSample(msgspec.Struct, frozen=True):
    """What the GPU said of itself at one moment; see engines.telemetry. None is what it did not say."""

    utilization: float | None = None  # share of the driver's last interval in which any kernel ran, 0..1
    memory_used_bytes: int | None = None  # by all processes
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    slowed_by: tuple[str, ...] | None = None  # why its clocks are lower than they could be; empty: they are not


class Signal(msgspec.Struct, frozen=True):
    """One sample of what a person tunes by; a line of signals.jsonl."""

    t: int  # ns
    running: int
    waiting: int
    kv_usage: float | None  # share of the usable blocks in use or reserved, 0..1; None: not exposed
    device_busy: float | None  # share of the time since the last sample in which the device worked; None: not exposed
    output_token_per_s: float  # since the last sample
    preemptions: int | None  # so far; None: not exposed
    completed: int  # requests so far
    output_tokens: int  # so far
    ttft_ms: float | None = None  # median of the requests that got their first token since the last sample
    tpot_ms: float | None = None  # mean time of a decode step's token since the last sample
    gpu: GpuSample | None = None  # None: no GPU, or it is not read
    kv_evictable: float | None = None  # share of the usable blocks that only a prefix cache holds; None: not exposed
    kv_free: float | None = None  # share of the usable blocks that hold nothing; the three add up to 1


class Observer(Protocol):
    """Told of things as they happen, on the engine's thread; must return quickly."""

    @property
    def stopping(self) -> bool:
        """True asks the engine to cancel what runs and to return what it has."""
        ...

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None: ...

    def steps_recorded(self, steps: StepArray) -> None: ...

    def sampled(self, signal: Signal) -> None: ...


class SilentObserver:
    """Keeps nothing and never stops the run."""

    stopping = False

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None: ...

    def steps_recorded(self, steps: StepArray) -> None: ...

    def sampled(self, signal: Signal) -> None: ...


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Raw events of a run as columns; row j is the j-th request that ended."""

    planned: int
    rows: RequestTable
    # All token events, request after request; see event_unit. A slice of either is an array.
    event_values: NDArray[np.uint32] | StepRuns
    event_unit: EventUnit  # "step": number of the step that gave the token; "us": gap to the event before
    steps: StepArray = field(default_factory=lambda: np.empty(0, LEDGER))
    signals: Sequence[Signal] = ()
    interrupted: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def column_ns(self, name: str) -> IntColumn:
        """A time column of the rows (`scheduled`, `sent`, `first`, ...) as int64 ns, MISSING where it never came."""
        return self.rows.column(name)

    def column(self, name: str) -> IntColumn:
        """A count column of the rows (`prompt_tokens`, `output_tokens`, `events`, ...) as int64."""
        return self.rows.column(name)

    def labels(self, name: str) -> tuple[list[str | None], IntColumn]:
        """(the texts in a column of the rows: `status`, `finish_reason`, `tenant`, ...; which of them each row has)."""
        return self.rows.labels(name)

    def where(self, name: str, text: str) -> NDArray[np.bool_]:
        """The rows in which the column `name` says `text`."""
        texts, codes = self.labels(name)
        return codes == texts.index(text) if text in texts else np.zeros(len(self), dtype=np.bool_)

    def first_steps(self) -> IntColumn:
        """The step in which each request got its first slot; 0: it never had one, or slots are not seen."""
        return self.rows.first_steps()

    def stints(self) -> tuple[IntColumn, NDArray[np.int64]]:
        """(the row each stint is of, [stints, 4]: slot, admitted, sampled, ended), row after row, each in order."""
        return self.rows.stints()

    def event_times_ns(self, begin: int = 0, end: int | None = None) -> IntColumn:
        """Time of the token events begin:end, aligned with event_values; both must lie between two requests.

        In steps, an event happens when its step ends; in gaps, it is the request's first time plus the gaps since.
        """
        if self.event_unit == "step":
            # Step k is row k-1 of the ledger, as steps count from 1 and every step is recorded.
            return self.steps["end_ns"][self.event_values[begin:end].astype(np.int64) - 1].astype(np.int64)
        values = self.event_values[begin:end]
        total = np.cumsum(values, dtype=np.int64) * 1000
        at, count = self.column("events_at") - begin, self.column("events")
        inside = (count > 0) & (at >= 0) & (at < len(values))
        at, count, first = at[inside], count[inside], self.column_ns("first")[inside]
        where = np.arange(count.sum()) + np.repeat(at - (np.cumsum(count) - count), count)
        times = np.zeros(len(values), dtype=np.int64)
        times[where] = total[where] + np.repeat(first - total[at], count)
        return times


class Engine(Protocol):
    """Three kinds (reference, openai, simulated), one method."""

    @property
    def client(self) -> ClientReport | None:
        """After a run over HTTP: how the client did; None where there is no client in between."""
        ...

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord: ...
