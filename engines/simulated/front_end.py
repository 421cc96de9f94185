"""FrontEnd: what a server does before the scheduler sees a request, as a delay of every arrival."""

from __future__ import annotations

from engines.simulated.step_time import StepTimeModel
from workloads.source import Incoming, Source


class FrontEnd:
    """A Source whose requests reach the scheduler `delay_ns` after they were sent. It works on any number at once."""

    def __init__(self, source: Source[Incoming], delay_ns: int) -> None:
        self._source = source
        self._delay_ns = delay_ns

    def poll(self, now_ns: int) -> tuple[list[Incoming], list[int]]:
        return self._source.poll(now_ns - self._delay_ns)

    def next_due_ns(self) -> int | None:
        due_ns = self._source.next_due_ns()
        return None if due_ns is None else due_ns + self._delay_ns

    def completed(self, index: int, now_ns: int) -> None:
        self._source.completed(index, now_ns)

    @property
    def exhausted(self) -> bool:
        return self._source.exhausted


def behind_front_end(source: Source[Incoming], model: StepTimeModel) -> Source[Incoming]:
    """`source` as the scheduler sees it; a calibration has its front end in the times of its run."""
    return FrontEnd(source, model.front_end_ns) if model.front_end_ns else source
