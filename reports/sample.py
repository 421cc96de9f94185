"""What an SLA is judged on: the requests that must meet it, and what they are worth as independent ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.base import MISSING
from reports.metrics import BoolArray, RequestTimes
from reports.quantiles import FloatArray, effective_n
from reports.tally import Tally

BETWEEN_TOKENS = ("tpot_ms", "itl_ms")


@dataclass(frozen=True, eq=False)
class Sample:
    """Of one run, or of the part of its requests that `times` has."""

    times: RequestTimes
    interrupted: bool

    def counted(self) -> BoolArray:
        """Requests that must meet the SLA: all that ended, except those an interrupt cancelled."""
        return ~self.times.cancelled if self.interrupted else np.ones(len(self.times), dtype=np.bool_)

    def immeasurable(self, latency: str) -> bool:
        """Whether there are answers, and none of them could show the time between its tokens: each is one token, or a
        server sends it in one piece. A request that lacks what others have is a miss; here there is nothing to miss,
        whatever failed beside them."""
        answered = self.times.completed & (self.times.first_ns != MISSING)
        if latency not in BETWEEN_TOKENS or not answered.any():
            return False
        return len(self.times.gaps_ms) == 0 if latency == "itl_ms" else bool(np.isnan(self.times.tpot_ms).all())

    def tally(self, latency: str) -> tuple[Tally, float]:
        """Values, infinite where a request failed or lacks one, and their effective number."""
        if latency != "itl_ms":
            values, n_eff = self.values(latency)
            return Tally(np.sort(values), np.ones(values.shape[0], np.int64)), n_eff
        lost = int((self.counted() & ~self.times.completed).sum())
        gaps = self.times.gaps_ms.with_infinite(lost)
        independent = self.times.effective_n(latency) / max(1, len(self.times.gaps_ms))
        return gaps, len(gaps) * independent

    def values(self, latency: str) -> tuple[FloatArray, float]:
        """Values of single requests in order of sending, infinite where one failed or lacks it, and their effective
        number."""
        counted = self.counted()
        if latency == "tpot_ms":
            counted = counted & ~self.times.single_token
        values = self.times.latency(latency)[counted]
        missing = np.isnan(values)
        if not values.size:
            return values, 0.0
        # Failures may come in bursts while the others' latencies look independent: the worse of the two counts.
        present = values[~missing]
        independent = effective_n(missing.astype(float)) / values.size
        if present.size:
            independent = min(independent, effective_n(present) / present.size)
        return np.where(missing, np.inf, values), values.size * independent

    def unanswerable(self, latency: str) -> bool:
        """Immeasurable, and not for want of a second token: nobody knows whether those answers were good."""
        return self.immeasurable(latency) and not bool(self.times.single_token[self.times.completed].all())
