"""The slot timeline as charts: the state of every slot over steps and over seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engines.base import RunRecord
from reports.document import Axis, Chart, Line, Lines, SlotTimeline
from reports.over_time import slots_over_time
from reports.schema import RunFile
from reports.slots import SlotSpan, SlotState, num_slots, slot_spans

NAMES = {
    SlotState.DECODE: ("decode", "decode"),
    SlotState.PREFILL: ("prefill", "prefill"),
    SlotState.TRANSFER: ("KV transfer", "series-3"),
    SlotState.PADDING: ("padding only", "padding"),
    SlotState.DEAD: ("dead row", "dead"),
    SlotState.HELD: ("held", "held"),
    SlotState.PREEMPTED: ("preempted, empty", "preempted"),
    SlotState.SWAPPED: ("swapped out, empty", "swapped"),
    SlotState.IDLE: ("idle", "idle"),
}
MOST_SLOTS = 48
MOST_SPANS = 2000  # drawn of one run; of a longer run a window is shown
LEAST_STEPS = 40

Labelled = tuple[str, RunRecord, RunFile]


class Window(NamedTuple):
    """Steps begin to end, both inside."""

    begin: int
    end: int


def slot_charts(runs: Sequence[Labelled]) -> list[Chart]:
    """Each run's slots over steps and then over seconds, one run above the other on the same axis; [] without slots."""
    seen = [(label, record, run, slot_spans(record, run)) for label, record, run in runs if len(record.steps)]
    seen = [one for one in seen if one[3]]
    if not seen:
        return []
    end = max(len(record.steps) for _, record, _, _ in seen)
    middle = len(seen) == 1 and seen[0][2].workload.pacing.rate_per_s is not None
    window = _window([spans for _, _, _, spans in seen], end, middle)
    charts = []
    for unit in ("step", "second"):
        domain = _domain(seen, window, unit)
        for at, (label, record, _, spans) in enumerate(seen):
            last = at == len(seen) - 1
            made = _chart(label, record, spans, window, domain, unit, quiet=not last)
            charts.append(replace(made, name=f"{made.name}-{at + 1}") if len(seen) > 1 else made)
    return charts


def _window(runs: Sequence[Sequence[SlotSpan]], end: int, middle: bool) -> Window:
    """As many steps as can be drawn: from the first one, or around the middle where the load comes at a rate."""
    most = max(sum(one.slot < MOST_SLOTS for one in spans) for spans in runs)
    length = min(end, max(LEAST_STEPS, int(end * min(1.0, MOST_SPANS / max(1, most)))))
    begin = (end - length) // 2 + 1 if middle else 1
    return Window(begin, begin + length - 1)


def _chart(
    label: str,
    record: RunRecord,
    spans: Sequence[SlotSpan],
    window: Window,
    domain: tuple[float, float],
    unit: str,
    *,
    quiet: bool,
) -> Chart:
    slots, steps = num_slots(record), len(record.steps)
    drawn = min(slots, MOST_SLOTS)
    rows = []
    for slot, state, begin, until in spans:
        begin, until = max(begin, window.begin), min(until, window.end, steps)  # steps may be lost in a crash
        if slot < drawn and begin <= until:
            rows.append((slot, NAMES[state][0], *_place(record, begin, until, unit)))
    states = {name: colour for name, colour in NAMES.values() if any(row[1] == name for row in rows)}
    states |= dict([NAMES[SlotState.IDLE]])
    whole = window.begin == 1 and window.end >= steps
    shown = "The whole run" if whole else f"Steps {window.begin:,} to {min(window.end, steps):,} of {steps:,}"
    end = _place(record, steps, steps, unit)[1]
    few = f"; {drawn} of {slots} slots" if drawn < slots else ""
    title = "Slots over steps" if unit == "step" else "Slots over time"
    return Chart(
        f"slots-by-{unit}",
        f"{title}, {label}" if label else title,
        SlotTimeline(Axis("step" if unit == "step" else "s", domain=domain, quiet=quiet), drawn, end, rows, states),
        caption=f"{shown}{few}.",
        wide=True,
    )


def _place(record: RunRecord, begin: int, end: int, unit: str) -> tuple[float, float]:
    if unit == "step":
        return float(begin - 1), float(end)
    steps = record.steps
    # A span lasts to the start of the next step, so that the time of the host between steps is no gap.
    until = steps["start_ns"][end] if end < len(steps) else steps["end_ns"][end - 1]
    return round(float(steps["start_ns"][begin - 1]) / 1e9, 6), round(float(until) / 1e9, 6)


def _domain(
    seen: Sequence[tuple[str, RunRecord, RunFile, list[SlotSpan]]], window: Window, unit: str
) -> tuple[float, float]:
    """The axis that all of them share."""
    places = []
    for _, record, _, _ in seen:
        last = len(record.steps)
        if window.begin <= last:
            places.append(_place(record, window.begin, min(window.end, last), unit))
    return min(one[0] for one in places), max(one[1] for one in places)


def slot_states_chart(name: str, label: str, record: RunRecord, run: RunFile) -> Chart | None:
    """The slots of a whole run by their state, over steps; None without slots."""
    at, states = slots_over_time(record, run)
    if not states:
        return None
    lines = [Line(name, at.tolist(), states[one], colour) for one, (name, colour) in NAMES.items() if one in states]
    return Chart(
        name,
        f"States of all slots, {label}" if label else "States of all slots",
        Lines(Axis("step"), Axis("slots", domain=(0, num_slots(record)), whole=True), lines, stacked=True),
        caption="Slots of the whole run by their state.",
        wide=not label,
    )
