"""A process's share of the load: all of it, or every n-th request in a worker."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from engines.base import EngineError, Observer, RunRecord
from engines.garbage import light_garbage_collection
from engines.remote.bodies import BodyWindow
from engines.remote.client import Ending, LoadClient
from engines.remote.config import Target
from engines.remote.recorder import Recorder
from engines.remote.server import NOT_READY
from engines.remote.setup import Setup
from engines.remote.tally import Tally
from engines.remote.traffic import SPARE, Load
from workloads.pacing import Due, Pacing
from workloads.plan import RequestPlan

LEAST_WINDOW = 64  # bodies made ahead
OTHER_FILES = 64  # open files of a process that are not connections

Problem = tuple[str, int]  # why a run ended before its time, and the exit code


@dataclass(frozen=True)
class Ran:
    record: RunRecord
    tally: Tally
    problem: Problem | None


class Share:
    """The part of a pacing that falls to worker `worker` of `workers`: the requests i with i % workers == worker."""

    def __init__(self, plan: RequestPlan, whole: Pacing, worker: int = 0, workers: int = 1) -> None:
        self._worker = worker
        self._workers = workers
        self._pacing = whole if workers == 1 else _part(plan, whole, worker, workers)
        self.indices = range(worker, len(plan), workers)
        self.concurrency = self._pacing.concurrency
        self.deadline_ns = self._pacing.deadline_ns

    def due(self, now_ns: int) -> list[Due]:
        return [
            Due(due.index * self._workers + self._worker, due.scheduled_ns, due.sent_ns)
            for due in self._pacing.due(now_ns)
        ]

    def next_due_ns(self) -> int | None:
        return self._pacing.next_due_ns()

    def completed(self, index: int, now_ns: int) -> None:
        self._pacing.completed(index // self._workers, now_ns)

    @property
    def exhausted(self) -> bool:
        return self._pacing.exhausted

    @property
    def connections(self) -> int:
        """To open before the clock runs."""
        if self._pacing.rate_per_s is None:
            return min(self.concurrency or len(self.indices), len(self.indices))
        return min(self.concurrency or SPARE, len(self.indices))


def _part(plan: RequestPlan, whole: Pacing, worker: int, workers: int) -> Pacing:
    """Arrivals are in gaps of the whole plan, so the rate stays; the seats are shared out."""
    seats = whole.concurrency
    return Pacing(
        plan.arrivals_ugap[worker::workers],
        rate_per_s=whole.rate_per_s,
        concurrency=None if seats is None else seats // workers + (worker < seats % workers),
        duration_s=whole.duration_s,
        drain_s=whole.drain_s,
    )


def run_share(
    setup: Setup, target: Target, plan: RequestPlan, share: Share, recorder: Recorder, start: Callable[[], int]
) -> tuple[Ending, Problem | None]:
    """start() says, once everything is ready, when time zero is. Raises EngineError before that."""
    url = setup.config.url
    make = setup.requests(plan, target)
    window = BodyWindow(make, share.indices, count=max(LEAST_WINDOW, 2 * share.connections))
    _make_room(share.connections)
    client = LoadClient(target, setup.config, setup.interpret, Load(make, window, share, recorder))
    try:
        if not client.prepare(share.connections):
            raise EngineError(f"no server answers at {url}: {client.refusal}", NOT_READY)
        with light_garbage_collection():
            ending = client.run(start())
    finally:
        client.close()
    problem = (f"the server at {url} went away: {client.refusal}", NOT_READY) if ending == "gone" else None
    return ending, problem


def run_alone(setup: Setup, target: Target, plan: RequestPlan, pacing: Pacing, observer: Observer) -> Ran:
    recorder = Recorder(plan, observer, Tally())
    ending, problem = run_share(setup, target, plan, Share(plan, pacing), recorder, time.monotonic_ns)
    record = recorder.record(interrupted=ending == "stopped")
    return Ran(record, recorder.tally, problem)


def _make_room(connections: int) -> None:
    """Allow as many open files as this process may have: the load may come to need more than it begins with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and connections + OTHER_FILES > hard:
        raise EngineError(
            f"the load needs {connections} connections, and this process may have {hard} open files: "
            "a smaller --concurrency, --workers, or a larger limit (ulimit -Hn)"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
