"""The event loop of a load: in one thread that does nothing else, and measures how well it keeps up."""

from __future__ import annotations

import time
from typing import Literal

from engines.base import EngineError
from engines.remote.answer import Interpret
from engines.remote.config import RemoteConfig, Target
from engines.remote.core_wait import core_wait_ns
from engines.remote.reactor import OnReady, Reactor
from engines.remote.traffic import Load, Traffic

Ending = Literal["finished", "stopped", "gone"]

TICK_NS = 100_000_000  # how often time-outs, the observer's wish to stop and the server's presence are looked at


class LoadClient:
    """One load: prepare() it, run() it, close(). Times are of time.monotonic_ns()."""

    def __init__(self, target: Target, config: RemoteConfig, interpret: Interpret, load: Load) -> None:
        self._config = config
        self._load = load
        self._tally = load.recorder.tally
        self._reactor = Reactor()
        self._traffic = Traffic(target, config, interpret, self._reactor, load)

    @property
    def refusal(self) -> str:
        """Why no connection can be opened, after prepare() or run() said so."""
        return self._traffic.pool.refusal

    def prepare(self, connections: int) -> bool:
        """Everything that must not cost time once the clock runs. False if the server takes no connection.

        Raises EngineError when it is this machine that has no more to give.
        """
        pool, window = self._traffic.pool, self._load.window
        while not window.full:
            window.make_one()
        deadline_ns = time.monotonic_ns() + round(self._config.connect_timeout_s * 1e9)
        while pool.num_idle < connections and time.monotonic_ns() < deadline_ns:
            failure = pool.open_up_to(connections)
            if failure is not None:
                raise EngineError(f"cannot open {connections} connections: {failure.message}")
            for on_ready, events in self._reactor.ready(deadline_ns):
                on_ready(events)
            if pool.refused_ns is not None:
                return False
        if pool.num_idle == 0 and connections:
            pool.refusal = f"no connection within {self._config.connect_timeout_s:g} s"
            return False
        return True

    def run(self, start_ns: int) -> Ending:
        """Until every request has ended, the recorder wants to stop, the deadline is over, or the server is gone.

        start_ns: time zero of the schedule.
        """
        cpu_ns, waited_ns = time.process_time_ns(), core_wait_ns()
        self._traffic.start(start_ns)
        ending = self._loop(start_ns)
        self._traffic.wind_up()
        self._tally.cpu_ns += time.process_time_ns() - cpu_ns
        if waited_ns is None or (waited_until_now_ns := core_wait_ns()) is None:
            self._tally.core_wait_ns = None
        else:
            self._tally.core_wait_ns = waited_until_now_ns - waited_ns
        self._tally.wall_ns += time.monotonic_ns() - start_ns
        self._tally.connections += self._traffic.pool.opened_ever
        return ending

    def close(self) -> None:
        self._traffic.pool.close()
        self._reactor.close()

    def _loop(self, start_ns: int) -> Ending:
        traffic = self._traffic
        tick_ns = woke_ns = time.monotonic_ns()
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= traffic.next_due_ns:
                traffic.dispatch(now_ns)
            if now_ns >= tick_ns:
                ending = self._tick(start_ns, now_ns)
                if ending is not None:
                    return ending
                tick_ns = now_ns + TICK_NS
            if traffic.over:
                return "finished"
            self._tally.turn_ns.add(time.monotonic_ns() - woke_ns)
            ready = self._reactor.ready(now_ns if traffic.has_chores else min(traffic.next_due_ns, tick_ns))
            woke_ns = time.monotonic_ns()
            self._read_all(ready)
            traffic.chore()

    def _read_all(self, ready: list[tuple[OnReady, int]]) -> None:
        for on_ready, events in ready:
            on_ready(events)
            now_ns = time.monotonic_ns()
            if now_ns >= self._traffic.next_due_ns:  # a send does not wait for the end of a long row of reads
                self._traffic.dispatch(now_ns)

    def _tick(self, start_ns: int, now_ns: int) -> Ending | None:
        recorder, deadline_ns = self._load.recorder, self._load.pacing.deadline_ns
        if recorder.stopping:
            return "stopped"
        if deadline_ns is not None and now_ns >= start_ns + deadline_ns:
            return "finished"
        if not self._traffic.look_around(now_ns):
            return "gone"
        recorder.sample(now_ns, self._traffic.in_flight)
        return None
