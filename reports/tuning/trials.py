"""What was tried, which of it is best, and what its signals say."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

import msgspec

from reports.limits import OFTEN, milliseconds
from reports.recommend import kept_up
from reports.schema import SlaResult
from reports.sweep_schema import Point

STALLED = 1.5  # P99 TPOT over P50: above it prompts of other requests stall decodes
GAIN = 1.01  # goodput that a larger setting must gain
MOST = 0.5  # share of E2EL from which decode is the part to shorten
ROOM = 0.9  # peak KV usage below which more requests fit


class Setting(msgspec.Struct, frozen=True):
    """What tune may change. None (or no tokens at all): the engine's default."""

    max_num_seqs: int
    max_num_batched_tokens: int
    admission: str | None = None
    prompt_buckets: str | None = None
    max_prompt_chunk: int | None = None
    order: str | None = None  # None: as given, first come first served
    ageing: float | None = None  # of that order

    def label(self) -> str:
        words = [f"max_num_seqs {self.max_num_seqs}"]
        words += [f"max_num_batched_tokens {self.max_num_batched_tokens}"] if self.max_num_batched_tokens else []
        return ", ".join([*words, *self.others()])

    def others(self) -> list[str]:
        """The settings other than max_num_seqs and max_num_batched_tokens."""
        words = [f"admission {self.admission}"] if self.admission else []
        words += [f"prompt chunk {self.max_prompt_chunk}"] if self.max_prompt_chunk else []
        words += [f"order {self.order}, ageing {self.ageing:g}"] if self.order and self.ageing else []
        words += [f"buckets {self.prompt_buckets}"] if self.prompt_buckets else []
        return words


class Trial(msgspec.Struct, frozen=True):
    setting: Setting
    point: Point

    @property
    def meets(self) -> bool:
        """By point estimate."""
        return self.valid and all(one.met for one in self.point.sla)

    @property
    def held(self) -> bool:
        """It ran, and meets the SLA."""
        return self.point.error is None and self.meets

    @property
    def unmeasured(self) -> SlaResult | None:
        """An SLA on a metric that the run did not measure, so that no setting can meet or miss it."""
        return next((one for one in self.point.sla if one.unmeasured), None)

    @property
    def verdict(self) -> Literal["proven", "unproven", "missed", "untold"]:
        """unproven: met by point estimate, with too few requests to prove it. untold: an SLA was not measured."""
        if self.unmeasured is not None:
            return "untold"
        if not self.meets:
            return "missed"
        return "proven" if all(one.verdict == "pass" for one in self.point.sla) else "unproven"

    @property
    def needed(self) -> int | None:
        """Requests needed at least for a verdict on every SLA; None where more requests would not give one."""
        return max((one.needed for one in self.point.sla if one.verdict == "inconclusive" and one.needed), default=None)

    @property
    def valid(self) -> bool:
        """Whether its latencies describe the setting. Those of an overloaded run depend on its length, unless every SLA
        applies to a part of the load that kept up."""
        validity = self.point.validity
        if validity is not None and validity.verdict == "overloaded":
            return kept_up(self.point)
        return validity is None or validity.verdict != "invalid"

    @property
    def goodput_per_s(self) -> float:
        """Requests per second within the SLA; all that complete where no SLA bounds a latency of single requests."""
        point = self.point
        return (point.goodput_per_s if point.goodput_per_s is not None else point.request_per_s) or 0.0


def best_of(trials: Sequence[Trial]) -> Trial:
    """Of the trials within the SLA the one with the fewest slots whose goodput is within 1 % of the largest. Where none
    is within it, of those that kept up with the load the one whose worst miss is the smallest, to continue from."""
    ran = [one for one in trials if one.point.error is None]
    if not (fit := [one for one in ran if one.meets]):
        return min(ran, key=lambda one: (not one.valid, excess(one)))
    most = max(one.goodput_per_s for one in fit)
    return min(
        (one for one in fit if one.goodput_per_s * GAIN >= most),
        key=lambda one: (one.setting.max_num_seqs, -one.goodput_per_s),
    )


def outcome_of(trials: Sequence[Trial]) -> Trial:
    """The best trial. Where none is within the SLA, of those that kept up with the load the one that misses the fewest
    SLAs, then has the smallest worst miss, then the largest goodput."""
    if (best := best_of(trials)).meets:
        return best
    ran = [one for one in trials if one.point.error is None]
    return min(ran, key=lambda one: (not one.valid, len(misses(one)), excess(one), -one.goodput_per_s))


def excess(trial: Trial) -> float:
    """How far the worst SLA is missed, as a factor; infinite where one was not measured."""
    return max(map(_times_off, misses(trial)), default=1.0)


def misses(trial: Trial) -> list[SlaResult]:
    """The SLAs that are missed or were not measured."""
    return [one for one in trial.point.sla if not one.met]


def _times_off(one: SlaResult) -> float:
    return max(one.value / one.bound, one.bound / one.value) if one.value and one.bound > 0 else inf


def over(miss: SlaResult) -> str:
    """P99 TTFT is 612 of 500 ms"""
    unit = " ms" if miss.metric.endswith("_ms") else ""
    name = miss.metric.removesuffix("_ms").removesuffix("_sched").replace("_", " ").upper()
    whose = f" of {miss.scope.replace('=', ' ')}" if miss.scope else ""
    value = milliseconds(miss.value) if unit else "not known" if miss.value is None else f"{miss.value:.3g}"
    return f"{name}{whose} is {value} of {miss.bound:g}{unit}"


def missed(point: Point, *names: str) -> SlaResult | None:
    failed = [one for one in point.sla if one.missed and one.value is not None]
    return next((one for one in failed if any(name in one.metric for name in names)), None)


def slow_tokens(point: Point) -> SlaResult | None:
    """The SLA missed by slow decodes: one on TPOT or ITL, or on E2EL where most of it is decode."""
    answer = missed(point, "e2el")
    return missed(point, "tpot", "itl") or (answer if decode_share(point) >= MOST else None)


def late_first_token(point: Point) -> SlaResult | None:
    """The SLA missed by a late first token: one on TTFT, or on E2EL where most of it is the time before the first
    token."""
    answer = missed(point, "e2el")
    return missed(point, "ttft") or (answer if decode_share(point) < MOST else None)


def wants_slots(trial: Trial) -> bool:
    """It misses the SLA, and not for slow decodes, which more slots would slow further."""
    return trial.point.error is None and not trial.meets and not slow_tokens(trial.point)


def decode_share(point: Point) -> float:
    """Share of E2EL after the first token, in the slowest requests. E2EL is TTFT + (tokens - 1) TPOT."""
    return sum(share for part, share in point.slow_e2el.items() if part == "decode")


def stalled(point: Point) -> float | None:
    """P99 TPOT over its median, if it is STALLED or more."""
    times = (point.p99_tpot_ms or 0.0) / point.p50_tpot_ms if point.p50_tpot_ms else 0.0
    return times if times >= STALLED else None


def short_of_kv(point: Point) -> bool:
    blocked = point.signals.blocked
    return bool(point.signals.preemptions) or blocked.get("kv", 0.0) + blocked.get("watermark", 0.0) >= OFTEN


def has_room(point: Point) -> bool:
    return not short_of_kv(point) and (point.signals.kv_usage_peak or 0.0) < ROOM


def signals_of(point: Point) -> str:
    """The three signals that decisions rest on, as text."""
    tpot = next((one for one in point.sla if "tpot" in one.metric and one.scope is None), None)
    bound = "" if tpot is None else f" of {tpot.bound:g}"
    p99 = "not measured" if point.p99_tpot_ms is None else f"{milliseconds(point.p99_tpot_ms)}{bound} ms"
    signals = point.signals
    return f"device busy {share(signals.device_busy)}, KV peak {share(signals.kv_usage_peak)}, P99 TPOT {p99}"


def share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.0%}"
