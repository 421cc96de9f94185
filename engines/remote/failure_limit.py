"""FailureLimit: stops a run in which too much has failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.base import Observer, Signal
from engines.ledger import StepArray
from engines.request_table import RequestRow

LEAST_ENDED = 20  # a share is one of at least so many requests


@dataclass(frozen=True)
class MostFailures:
    """Failed requests that a run may have: a number, or a share of those that have ended."""

    count: int | None = None
    share: float | None = None

    def exceeded(self, failed: int, ended: int) -> bool:
        if self.count is not None:
            return failed > self.count
        return self.share is not None and failed > self.share * max(ended, LEAST_ENDED)


class FailureLimit:
    """The run's Observer, which asks to stop once the limit is exceeded."""

    def __init__(self, observer: Observer, most: MostFailures) -> None:
        self._observer = observer
        self._most = most
        self._ended = 0
        self._messages: Counter[str] = Counter()  # of failed requests
        self.exceeded = False

    @property
    def stopping(self) -> bool:
        return self.exceeded or self._observer.stopping

    @property
    def problem(self) -> str:
        message, count = self._messages.most_common(1)[0]
        return f"{self._messages.total()} of {self._ended} requests failed, {count} of them: {message}"

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        self._observer.request_ended(row, events)
        if self.exceeded or row.status == "cancelled":
            return
        self._ended += 1
        if row.status == "failed":
            self._messages[" ".join((row.error or row.finish_reason or "").split())[:200]] += 1
            self.exceeded = self._most.exceeded(self._messages.total(), self._ended)

    def steps_recorded(self, steps: StepArray) -> None:
        self._observer.steps_recorded(steps)

    def sampled(self, signal: Signal) -> None:
        self._observer.sampled(signal)
