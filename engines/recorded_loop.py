"""run_loop: the loop of engines.loop over a plan, with all that it did in a RunRecord."""

from __future__ import annotations

from collections.abc import Callable

from engines.base import Observer, RunRecord
from engines.loop import Clock, FastForward, Instances, VirtualClock, drive
from engines.recorder import StepRecorder
from engines.scheduling.request import Request
from workloads.source import Incoming, Source


def run_loop(
    instances: Instances,
    source: Source[Incoming],
    clock: Clock,
    observer: Observer,
    *,
    planned: int,
    make_request: Callable[[Incoming], Request],
    fast_forward: FastForward | None = None,
) -> RunRecord:
    """Run until the source is exhausted and every request has ended, or until the observer asks to stop."""
    recorder = StepRecorder(observer, planned, *instances.kv_blocks, thinned=isinstance(clock, VirtualClock))
    stopped = drive(
        instances, source, clock, make_request, recorder.take, lambda: observer.stopping, fast_forward=fast_forward
    )
    return recorder.record(interrupted=stopped)
