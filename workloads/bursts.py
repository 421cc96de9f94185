"""Arrivals in phases: a Poisson process whose rate has two values in turn (Markov-modulated, MMPP).

    mmpp:FACTOR:SHARE:GAPS   FACTOR times as fast in bursts, which take SHARE of the time
    onoff:SHARE:GAPS         arrivals during SHARE of the time, none in the rest

A burst and the time until the next one last GAPS mean gaps together on average; each has an exponential length. The
mean rate is one request per gap, so that `rate` alone scales it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.columns import FloatColumn, IntColumn
from workloads.errors import CbbenchError
from workloads.plan import UGAP
from workloads.sampling import ARRIVALS, PHASES, bit_stream, cell_of, gamma, whole


@dataclass(frozen=True)
class Phases:
    """Rates in requests per mean gap. share: of the time that is burst; cycle_gaps: a burst and what follows it."""

    burst_rate: float
    calm_rate: float
    share: float
    cycle_gaps: float

    @staticmethod
    def parse(arrival: str) -> Phases | None:
        """None if it is another process. Raises CbbenchError."""
        name, *texts = arrival.split(":")
        if name not in ("mmpp", "onoff"):
            return None
        wanted = ("FACTOR", "SHARE", "GAPS")[-3 if name == "mmpp" else -2 :]
        example = "mmpp:5:0.1:200" if name == "mmpp" else "onoff:0.3:200"
        try:
            numbers = dict(zip(wanted, map(float, texts), strict=True))
        except ValueError:
            raise CbbenchError("arrival", f"want {name}:{':'.join(wanted)}, as in {example}, got '{arrival}'") from None
        factor, share, gaps = numbers.get("FACTOR", 1.0), numbers["SHARE"], numbers["GAPS"]
        for key, value, low, high in (
            ("FACTOR", factor, 1.0, 1e4),
            ("SHARE", share, 0.001, 0.999),
            ("GAPS", gaps, 1.0, 1e6),
        ):
            if not low <= value <= high:
                raise CbbenchError("arrival", f"{key} of {arrival} must lie between {low:g} and {high:g}")
        if name == "onoff":
            return Phases(1 / share, 0.0, share, gaps)
        calm = 1 / (1 - share + factor * share)
        return Phases(factor * calm, calm, share, gaps)

    @property
    def dispersion(self) -> float:
        """Variance over mean of the number of arrivals in a long time: 1 + 2 s² (1-s)² (r1-r0)² T, with bursts of s T
        and calm phases of (1-s) T on average (Fischer and Meier-Hellstern 1993: The MMPP Cookbook)."""
        apart = self.burst_rate - self.calm_rate
        return 1 + 2 * (self.share * (1 - self.share) * apart) ** 2 * self.cycle_gaps

    def arrivals(self, count: int, seed: int) -> IntColumn:
        """int64[count] in millionths of the mean gap, from 0. The first ones of a longer plan are the same.

        Arrivals of a Poisson process with rate one, moved by a change of time: request i comes when the rate has added
        up to their i-th time.
        """
        exponential = whole(UGAP * gamma(1.0))
        draws = exponential[cell_of(bit_stream(seed, ARRIVALS).random_raw(count))]
        reached = np.cumsum(draws).astype(np.float64)
        ends, sums, rates = self._phases(exponential, float(reached[-1]), seed)
        phase = np.searchsorted(sums, reached)
        at = ends[phase] - (sums[phase] - reached) / rates[phase]
        return whole(at - at[0])

    def _phases(self, exponential: IntColumn, upto: float, seed: int) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
        """(end of each phase, requests by then, rate in it) until `upto` requests, in millionths."""
        bits = bit_stream(seed, PHASES)
        begins_in_burst = int(bits.random_raw()) < self.share * 2**64
        lengths = np.empty(0, dtype=np.int64)
        while True:
            lengths = np.append(lengths, exponential[cell_of(bits.random_raw(max(64, len(lengths))))])
            burst = np.arange(len(lengths)) % 2 == (0 if begins_in_burst else 1)
            mean_gaps = np.where(burst, self.share, 1 - self.share) * self.cycle_gaps
            rates = np.where(burst, self.burst_rate, self.calm_rate)
            sums = np.cumsum(lengths * mean_gaps * rates)
            if sums[-1] >= upto:
                return np.cumsum(lengths * mean_gaps), sums, rates
