"""Load a fake server and look at what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.base import ClientReport, PartialRun, RunRecord, Signal
from engines.ledger import StepArray
from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from engines.request_table import RequestRow
from tests.wire.fake import FakeServer, Script
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


@dataclass
class Watching:
    """An observer that keeps what it is told."""

    stopping: bool = False
    rows: list[RequestRow] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    stop_after: int | None = None  # rows

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        assert len(events) == row.events
        self.rows.append(row)
        self.stopping = self.stopping or len(self.rows) == self.stop_after

    def steps_recorded(self, steps: StepArray) -> None: ...

    def sampled(self, signal: Signal) -> None:
        self.signals.append(signal)


@dataclass(frozen=True)
class Outcome:
    record: RunRecord
    report: ClientReport
    observer: Watching
    server: FakeServer
    problem: PartialRun | None

    @property
    def row(self) -> RequestRow:
        """Of a run of one request."""
        (row,) = self.record.rows
        return row

    @property
    def failures(self) -> list[str | None]:
        """Per request in plan order its failure class, None if it completed."""
        rows = sorted(self.record.rows, key=lambda row: row.i)
        return [None if row.status == "completed" else row.finish_reason for row in rows]

    def event_ms(self) -> list[float]:
        """Times of the token events since the run began."""
        return [float(t) / 1e6 for t in self.record.event_times_ns()]


def load(
    script: Script | FakeServer,
    requests: int = 1,
    *,
    prompt_tokens: int = 8,
    output_tokens: int = 2,
    observer: Watching | None = None,
    arrivals_ugap: NDArray[np.int64] | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    duration: float | None = None,
    drain: float = 30.0,
    **config: Any,
) -> Outcome:
    """Against a server that stays open if one is given. Without warm-up, unless asked for."""
    if not isinstance(script, FakeServer):
        with FakeServer(script) as server:
            return load(
                server,
                requests,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                observer=observer,
                arrivals_ugap=arrivals_ugap,
                rate=rate,
                concurrency=concurrency,
                duration=duration,
                drain=drain,
                **config,
            )
    extra = {} if arrivals_ugap is None else {"arrivals_ugap": arrivals_ugap}
    plan = RequestPlan.of([prompt_tokens] * requests, [output_tokens] * requests, **extra)
    pacing = Pacing(plan.arrivals_ugap, rate_per_s=rate, concurrency=concurrency, duration_s=duration, drain_s=drain)
    settings: dict[str, Any] = {"url": script.url, "warmup_requests": 0} | config
    engine = RemoteEngine(RemoteConfig(**settings))
    observer = observer or Watching()
    problem = None
    try:
        record = engine.run(plan, pacing, observer)
    except PartialRun as error:
        problem, record = error, error.record
    assert engine.client is not None
    assert [row.i for row in observer.rows] == [row.i for row in record.rows], "rows are handed on as they end"
    return Outcome(record, engine.client, observer, script, problem)
