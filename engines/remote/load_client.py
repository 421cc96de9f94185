"""LoadClient: the event loop that loads a server, in a thread that does nothing else; it measures its own lag.

run_in_this_process() sends the whole plan, run_partition() the part of it that falls to one worker process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from engines.base import Observer, RunRecord
from engines.garbage import light_garbage_collection
from engines.remote.answer import Interpret
from engines.remote.client_stats import ClientStats, core_wait_ns
from engines.remote.config import RemoteConfig, Target
from engines.remote.dispatcher import Dispatcher, Load
from engines.remote.load_recorder import LoadRecorder
from engines.remote.request_bodies import BodyWindow, RequestFormat
from engines.remote.socket_poller import OnReady, SocketPoller
from workloads.columns import IntColumn
from workloads.errors import CbbenchError, ExitCode
from workloads.pacing import Due, Pacing
from workloads.plan import RequestPlan
from workloads.session_pacing import SessionPacing

LEAST_WINDOW = 64  # bodies made ahead
OTHER_FILES = 64  # open files of a process that are not connections

Problem = tuple[str, ExitCode]  # why a run ended early


@dataclass(frozen=True)
class LoadResult:
    record: RunRecord
    stats: ClientStats
    problem: Problem | None


class Partition:
    """The part of a pacing that falls to worker `worker` of `workers`: the requests i with i % workers == worker, or
    whole sessions in turn where their turns wait for answers."""

    def __init__(self, plan: RequestPlan, whole: Pacing, worker: int = 0, workers: int = 1) -> None:
        self._worker = worker
        self._workers = workers
        self._sessions: IntColumn | None = None  # the requests of this worker, where it has whole sessions
        if workers == 1:
            self._pacing = whole
        elif isinstance(whole, SessionPacing):
            self._sessions, turns = whole.turns.part(worker, workers)
            self._pacing = SessionPacing(plan.arrivals_ugap[self._sessions], turns, **_load_of(whole, worker, workers))
        else:
            self._pacing = Pacing(plan.arrivals_ugap[worker::workers], **_load_of(whole, worker, workers))
        own = self._sessions
        self.indices: Sequence[int] = range(worker, len(plan), workers) if own is None else own.tolist()
        self.concurrency = self._pacing.concurrency
        self.deadline_ns = self._pacing.deadline_ns

    def due(self, now_ns: int) -> list[Due]:
        return [Due(self.indices[due.index], due.scheduled_ns, due.sent_ns) for due in self._pacing.due(now_ns)]

    def next_due_ns(self) -> int | None:
        return self._pacing.next_due_ns()

    def completed(self, index: int, now_ns: int) -> None:
        own = self._sessions
        self._pacing.completed(index // self._workers if own is None else int(np.searchsorted(own, index)), now_ns)

    @property
    def exhausted(self) -> bool:
        return self._pacing.exhausted

    @property
    def connections(self) -> int:
        """To open before the clock runs: what a closed loop uses at once, else the one of the first request."""
        if self._pacing.rate_per_s is None:
            return min(self.concurrency or len(self.indices), len(self.indices))
        return min(1, len(self.indices))

    def share_of(self, connections: int) -> int:
        """Of a number of connections that all workers have together."""
        return connections // self._workers + (self._worker < connections % self._workers)


def _load_of(whole: Pacing, worker: int, workers: int) -> dict[str, Any]:
    """Arrivals keep their times, so the rates of all parts add up to the whole's; the cap on requests in flight is
    divided, and its remainder goes to the first workers."""
    cap = whole.concurrency
    return {
        "rate_per_s": whole.rate_per_s,
        "concurrency": None if cap is None else cap // workers + (worker < cap % workers),
        "duration_s": whole.duration_s,
        "drain_s": whole.drain_s,
    }


def run_partition(
    request_format: RequestFormat,
    target: Target,
    plan: RequestPlan,
    part: Partition,
    recorder: LoadRecorder,
    start: Callable[[], int | None],
) -> tuple[Ending, Problem | None]:
    """start() is called once everything is ready: time zero of the schedule, or None to stop before it.

    Raises CbbenchError before that.
    """
    config = request_format.config
    if isinstance(config.connections, int):
        config = replace(config, connections=part.share_of(config.connections))
    connections = max(part.connections, config.kept_connections)
    url = config.url
    make = request_format.requests(plan, target)
    window = BodyWindow(make, part.indices, count=max(LEAST_WINDOW, 2 * connections))
    _raise_file_limit(connections)
    client = LoadClient(target, config, request_format.interpret, Load(make, window, part, recorder))
    ending: Ending
    try:
        if not client.prepare(connections):
            raise CbbenchError(None, f"no server answers at {url}: {client.refusal}", ExitCode.SERVER)
        with light_garbage_collection():
            start_ns = None if recorder.stopping else start()
            ending = "stopped" if start_ns is None else client.run(start_ns)
    finally:
        client.close()
    problem = (f"the server at {url} went away: {client.refusal}", ExitCode.SERVER) if ending == "gone" else None
    return ending, problem


def run_in_this_process(
    request_format: RequestFormat, target: Target, plan: RequestPlan, pacing: Pacing, observer: Observer
) -> LoadResult:
    recorder = LoadRecorder(plan, observer, ClientStats(), request_format.id_prefix)
    ending, problem = run_partition(request_format, target, plan, Partition(plan, pacing), recorder, time.monotonic_ns)
    record = recorder.record(interrupted=ending == "stopped")
    return LoadResult(record, recorder.stats, problem)


def _raise_file_limit(connections: int) -> None:
    """Raise the soft limit of open files to the hard one: an open loop may come to need more connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and connections + OTHER_FILES > hard:
        raise CbbenchError(
            None,
            f"the load needs {connections} connections, but this process may have only {hard} open files; "
            "lower `concurrency`, raise `workers`, or raise the limit (ulimit -Hn)",
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


Ending = Literal["finished", "stopped", "gone"]

TICK_NS = 100_000_000  # between looks at time-outs, at Observer.stopping, and at whether the server is still there


class LoadClient:
    """Loads a server once: prepare(), run(), close(). Times are of time.monotonic_ns()."""

    def __init__(self, target: Target, config: RemoteConfig, interpret: Interpret, load: Load) -> None:
        self._config = config
        self._load = load
        self._stats = load.recorder.stats
        self._poller = SocketPoller()
        self._dispatcher = Dispatcher(target, config, interpret, self._poller, load)

    @property
    def refusal(self) -> str:
        """Why no connection could be opened, after prepare() returned False or run() "gone"."""
        return self._dispatcher.pool.refusal

    def prepare(self, connections: int) -> bool:
        """Make request bodies and open connections before the clock runs. False if the server accepts none.

        Returns early when the recorder wants to stop. Raises CbbenchError when this machine has no socket or memory
        left.
        """
        pool, window = self._dispatcher.pool, self._load.window
        while not window.full:
            window.make_one()
        deadline_ns = time.monotonic_ns() + round(self._config.connect_timeout_s * 1e9)
        while pool.num_idle < connections and (now_ns := time.monotonic_ns()) < deadline_ns:
            if self._load.recorder.stopping:
                return True
            failure = pool.open_up_to(connections)
            if failure is not None:
                raise CbbenchError(None, f"cannot open {connections} connections: {failure.message}")
            for on_ready, events in self._poller.ready(min(deadline_ns, now_ns + TICK_NS)):
                on_ready(events)
            if pool.refused_ns is not None:
                return False
        if pool.num_idle == 0 and connections:
            pool.refusal = f"no connection within {self._config.connect_timeout_s:g} s"
            return False
        return True

    def run(self, start_ns: int) -> Ending:
        """Send and read until all requests have ended, the recorder stops, the deadline is over or the server is gone.

        start_ns: time zero of the schedule.
        """
        cpu_ns, waited_ns = time.process_time_ns(), core_wait_ns()
        self._dispatcher.start(start_ns)
        ending = self._loop(start_ns)
        self._dispatcher.finish()
        self._stats.cpu_ns += time.process_time_ns() - cpu_ns
        if waited_ns is None or (waited_until_now_ns := core_wait_ns()) is None:
            self._stats.core_wait_ns = None
        else:
            self._stats.core_wait_ns = waited_until_now_ns - waited_ns
        self._stats.wall_ns += time.monotonic_ns() - start_ns
        pool = self._dispatcher.pool
        self._stats.connections += pool.opened_ever
        self._stats.connections_used += pool.used_ever
        self._stats.connections_peak += pool.peak
        self._stats.count_addresses(
            {address.name: count for address, count in pool.addresses.requests.items()}, pool.addresses.left_out
        )
        return ending

    def close(self) -> None:
        self._dispatcher.pool.close()
        self._poller.close()

    def _loop(self, start_ns: int) -> Ending:
        dispatcher = self._dispatcher
        tick_ns = woke_ns = time.monotonic_ns()
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= dispatcher.next_due_ns:
                dispatcher.dispatch(now_ns)
            if now_ns >= tick_ns:
                ending = self._tick(start_ns, now_ns)
                if ending is not None:
                    return ending
                tick_ns = now_ns + TICK_NS
            if dispatcher.over:
                return "finished"
            self._stats.turn_ns.add(time.monotonic_ns() - woke_ns)
            ready = self._poller.ready(
                now_ns if dispatcher.has_background_work else min(dispatcher.next_due_ns, tick_ns)
            )
            woke_ns = time.monotonic_ns()
            self._read_all(ready)
            dispatcher.do_background_work()
            if time.monotonic_ns() >= dispatcher.ended.due_ns:
                dispatcher.ended.record_one()

    def _read_all(self, ready: list[tuple[OnReady, int]]) -> None:
        dispatcher = self._dispatcher
        for on_ready, events in ready:
            on_ready(events)
            now_ns = time.monotonic_ns()
            if now_ns >= dispatcher.next_due_ns:  # so that a send does not wait for many reads
                dispatcher.dispatch(now_ns)
            if now_ns >= dispatcher.ended.due_ns:
                dispatcher.ended.record_one()

    def _tick(self, start_ns: int, now_ns: int) -> Ending | None:
        recorder, deadline_ns = self._load.recorder, self._load.pacing.deadline_ns
        if recorder.stopping:
            return "stopped"
        if deadline_ns is not None and now_ns >= start_ns + deadline_ns:
            return "finished"
        if not self._dispatcher.check(now_ns):
            return "gone"
        recorder.sample(now_ns, self._dispatcher.in_flight)
        return None
