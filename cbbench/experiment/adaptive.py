"""Where to measure next, if no values were given: coarse first, then around the knee and the edge of the SLA.

    coarse    LOW, the powers of two between, HIGH; a rate climbs them one by one until arrivals outrun completions
    refine    the middle (geometric) of each gap beside the knee, of the gap in which the best setting that meets the
              SLA is next to one that does not, and of the gap in which a rate begins to saturate
    stop      when those gaps are within a factor of 1.2, or between neighbouring whole numbers

Pure: what is measured goes in, what to measure next comes out; so a sweep that was broken off goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cbbench.experiment.sweep_params import as_number
from reports.curves import CurvePoint, knee, short_label
from reports.recommend import best_within_sla, qualifies, smallest_within_sla
from reports.sweep_schema import Value

CLOSE = 1.2  # the ratio of two neighbours between which nothing is looked for
MOST_SETTINGS = 24
DIGITS = 3  # of a rate between others

Number = int | float


@dataclass(frozen=True)
class AdaptiveSearch:
    low: Number
    high: Number
    whole: bool  # only whole numbers can be set
    climbs: bool  # from the lowest up, until saturated
    latency: str  # whose ratio to throughput makes the knee
    judged: bool  # there is an SLA


@dataclass(frozen=True)
class Round:
    """What to measure next, and why; no values: nothing more, and why not."""

    values: tuple[Number, ...]
    why: str


def next_round(search: AdaptiveSearch, curve: Sequence[CurvePoint]) -> Round:
    """`curve`: all settings measured so far, those that could not run too."""
    tried = {one.values[0] for one in curve}
    line = sorted((one for one in curve if one.runs), key=_at)
    top = next((one for one in line if one.point.saturated), None) if search.climbs else None
    if top is not None:
        line = line[: line.index(top) + 1]  # what lies beyond saturation is of no use
    steps = [value for value in ladder(search) if value not in tried]
    if search.climbs:
        steps = [value for value in steps if top is None or value < _at(top)][:1]
    if len(tried) >= MOST_SETTINGS:
        return Round((), f"Stopped after {len(tried)} settings, the most that are measured. {_found(search, line)}")
    if steps:
        return Round(tuple(steps), "climbing until arrivals outrun completions" if search.climbs else "coarse")
    if not line:
        return Round((), "no setting could run")
    gaps = [*_knee_gaps(search, line), *_sla_gaps(search, line)]
    if top is not None and top is not line[0]:  # how much can be served at all
        gaps.append((_number(line[-2].values[0]), _number(top.values[0])))
    middles = dict.fromkeys(middle for left, right in gaps if (middle := between(search, left, right)) is not None)
    values = tuple(value for value in middles if value not in tried)[: MOST_SETTINGS - len(tried)]
    if values:
        return Round(values, _aim(search))
    return Round((), _found(search, line))


def _aim(search: AdaptiveSearch) -> str:
    aims = ["the knee", *(["saturation"] if search.climbs else []), *(["the edge of the SLA"] if search.judged else [])]
    return f"around {', '.join(aims)}"


def ladder(search: AdaptiveSearch) -> list[Number]:
    """LOW, the powers of two between, HIGH."""
    exponents = range(math.floor(math.log2(search.low)) + 1, math.ceil(math.log2(search.high)))
    powers = [as_number(2.0**exponent) for exponent in exponents]
    possible = [one for one in powers if isinstance(one, int) or not search.whole]
    return [search.low, *(one for one in possible if search.low < one < search.high), search.high]


def between(search: AdaptiveSearch, left: Number, right: Number) -> Number | None:
    """The middle of a gap that is worth looking into."""
    if right / left <= CLOSE:
        return None
    middle = math.sqrt(left * right)
    if search.whole:
        rounded = round(middle)
        return rounded if left < rounded < right else None
    return as_number(float(f"{middle:.{DIGITS}g}"))


def _at(one: CurvePoint) -> float:
    return float(one.values[0])


def _knee_gaps(search: AdaptiveSearch, line: Sequence[CurvePoint]) -> list[tuple[Number, Number]]:
    top = knee(line, search.latency)
    return _gaps_beside(line, top, line) if top is not None else []


def _sla_gaps(search: AdaptiveSearch, line: Sequence[CurvePoint]) -> list[tuple[Number, Number]]:
    best = best_within_sla(line) if search.judged else None
    if best is None:
        return []
    return _gaps_beside(line, best, [one for one in line if not qualifies(one.point, judged=True)])


def _gaps_beside(
    line: Sequence[CurvePoint], chosen: CurvePoint, wanted: Sequence[CurvePoint]
) -> list[tuple[Number, Number]]:
    """The gaps between a point and its neighbours, where these are wanted."""
    at = line.index(chosen)
    pairs = [(line[i], line[i + 1]) for i in (at - 1, at) if 0 <= i < len(line) - 1]
    return [
        (_number(left.values[0]), _number(right.values[0]))
        for left, right in pairs
        if (right if left is chosen else left) in wanted
    ]


def _number(value: Value) -> Number:
    assert isinstance(value, (int, float))
    return value


def _found(search: AdaptiveSearch, line: Sequence[CurvePoint]) -> str:
    """Where the knee and the edge of the SLA are, and between which neighbours."""
    top = knee(line, search.latency)
    if top is None:
        return "No knee: no setting has both a throughput and a latency."
    sentences = [f"The knee is at {_where(line, top)}."]
    if top is line[-1] and not top.point.saturated:
        sentences.append(f"It may lie beyond {short_label(top.values)}, the largest value tried.")
    full = next((one for one in line if one.point.saturated), None) if search.climbs else None
    if full is not None:
        below = f", not at {line[-2].label}" if len(line) > 1 else ""
        sentences.append(f"Saturated at {full.label}{below}: {full.point.saturated}.")
    elif search.climbs:
        sentences.append(f"Not saturated at {short_label(line[-1].values)}, the highest rate tried.")
    if search.judged:
        sentences.append(_best(line))
    return " ".join(sentences)


def _best(line: Sequence[CurvePoint]) -> str:
    best, smallest = best_within_sla(line), smallest_within_sla(line)
    if best is None or smallest is None:
        return "No setting meets the SLA."
    said = f"The best within the SLA is {_where(line, best)}"
    return f"{said}." if smallest is best else f"{said}; {smallest.label} is as good to within 1 %, and the smaller."


def _where(line: Sequence[CurvePoint], chosen: CurvePoint) -> str:
    at = line.index(chosen)
    beside = [one.label for one in (*line[max(0, at - 1) : at], *line[at + 1 : at + 2])]
    if len(beside) == 2:
        return f"{chosen.label}, measured between {beside[0]} and {beside[1]}"
    return f"{chosen.label}, {'the smallest' if at == 0 else 'the largest'} value tried"
