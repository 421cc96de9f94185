"""The search of `cbbench tune`: which setting to try next and why, and when to stop.

It goes by three signals: device busy, peak KV usage and P99 TPOT. See moves.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import msgspec

from reports.sweep_schema import Point
from reports.tuning.grid import next_of_grid
from reports.tuning.moves import Bounds, moves_from
from reports.tuning.trials import (
    Setting,
    Trial,
    best_of,
    has_room,
    late_first_token,
    share,
    short_of_kv,
    signals_of,
    slow_tokens,
    stalled,
)


class Decision(msgspec.Struct, frozen=True):
    """One step of the search. `to` is None where it ends."""

    rule: str
    words: str
    signals: str
    origin: Setting
    to: Setting | None


def decide(trials: Sequence[Trial], bounds: Bounds) -> Decision:
    """The next setting to try, or the end of the search, with the reason. trials: one that ran, at least."""
    best = best_of(trials)
    tried = {one.setting for one in trials}
    signals = signals_of(best.point)
    if best.unmeasured is not None:
        return Decision("stop", _why_stop(best, bounds), signals, best.setting, None)
    for move in moves_from(best, trials, bounds):
        if move.to not in tried and move.to != best.setting:
            return Decision(move.rule, move.words, signals, best.setting, move.to)
    # In open loop a setting within the SLA serves nearly all that arrives, and no other can serve more.
    if bounds.cheap_runs and not (best.meets and bounds.open_loop):
        to = next_of_grid(best, trials, bounds)
        if to is not None:
            return Decision("grid", f"No single change helps: try {to.label()}.", signals, best.setting, to)
    return Decision("stop", _why_stop(best, bounds), signals, best.setting, None)


def _why_stop(best: Trial, bounds: Bounds) -> str:
    if (untold := best.unmeasured) is not None:
        return f"{untold.expr} is inconclusive at every setting: {untold.reason}."
    if not best.meets and best.point.sla:
        return "Nothing left to try meets the SLA."
    if (best.point.signals.waiting_mean or 0) < 1:
        return "No request waits, so there is no more load to batch."
    if not has_room(best.point):
        return "KV memory is full at this setting, so more requests would not fit."
    if best.setting.max_num_seqs >= bounds.most_slots:
        return f"At most {bounds.most_slots} requests are in flight, so more slots would stay idle."
    return "Larger settings were tried and gain no goodput within the SLA."


def advice(best: Trial, bounds: Bounds, load: str | None) -> list[str]:
    """Changes beyond the settings that the search varies. load: the setting that bounds the load (`rate`,
    `concurrency`); None: none is set."""
    ease = f"a lower {load}, or another replica" if load else "another replica"
    told, point = [], best.point
    if short_of_kv(point):
        told.append("KV memory is the limit: more KV blocks (kv_blocks, or a smaller dtype) would raise it.")
    if slow_tokens(point) and stalled(point):
        told.append(
            "Prompts stall decodes at this setting too: disaggregate puts prefill and decode on separate devices."
        )
    if point.validity is not None and point.validity.verdict == "overloaded":
        told.append(f"Requests arrive faster than they complete at every setting tried: {ease}.")
    elif late_first_token(point) and (point.signals.waiting_mean or 0) >= 1:
        told.append(f"{_awaited(point)}: {ease}.")
    if best.setting.max_num_seqs == bounds.most_slots and (point.signals.waiting_mean or 0) >= 1 and best.meets:
        told.append(f"The search ends at max_num_seqs {bounds.most_slots}; requests still wait there.")
    return told


def _awaited(point: Point) -> str:
    blocked = point.signals.blocked
    no_slot, no_tokens = blocked.get("rows", 0.0), blocked.get("tokens", 0.0)
    if no_slot > no_tokens:
        often = share(no_slot)
        return f"First tokens wait for a slot in {often} of the steps, and no max_num_seqs tried meets the SLA"
    return "First tokens wait for the prefill of earlier prompts, and not for a slot"


def long_prompt_tokens(prompt_tokens: Sequence[int]) -> int | None:
    """The 99th percentile; None where the lengths are too alike."""
    found = _median_and(prompt_tokens, 0.99)
    return None if found is None else found[1]


def bucket_edge_tokens(prompt_tokens: Sequence[int]) -> int | None:
    """A power of two between the median and the 95th percentile; None where the lengths are too alike."""
    found = _median_and(prompt_tokens, 0.95)
    return None if found is None else 1 << round(log2(found[0] * found[1]) / 2)


def _median_and(prompt_tokens: Sequence[int], share: float) -> tuple[int, int] | None:
    """The median and a percentile above it; None unless that is 4 times the median or more."""
    median, long = (sorted(prompt_tokens)[int(one * (len(prompt_tokens) - 1))] for one in (0.5, share))
    return (median, long) if long >= 4 * median else None
