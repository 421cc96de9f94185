"""A sweep in the terminal: table, curves, what limits each setting, recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from reports.curves import CurvePoint, bend, label_of, latency_of_knee, merge, series, short_label
from reports.devices import note_of_sweep
from reports.limits import unused_slots
from reports.render.sweep_plots import NAMES, sweep_plots
from reports.render.sweep_tables import modes_view, sweep_table, tenants_table
from reports.render.table import Table
from reports.sweep_schema import Point, SweepFile

SIDE_BY_SIDE_WIDTH = 140
MOST_REASONS = 24  # settings; sweep.json has them all


def sweep_view(sweep: SweepFile, *, width: int = 100, charts: bool = True) -> RenderableType:
    """The table, the plots (with `charts`), what limits each setting, and the recommendation with its reason.

    width: characters; from SIDE_BY_SIDE_WIDTH on two plots stand side by side.
    """
    predictions = dict.fromkeys(one.prediction for one in sweep.points if one.prediction)
    parts: list[RenderableType] = [Text(one, "yellow") for one in predictions]
    parts += [sweep_table(sweep, width=width)]
    if (note := note_of_sweep(sweep.params, sweep.points)) is not None:
        parts.append(Text(note, "yellow"))
    parts.append(Text())
    if (tenants := tenants_table(sweep)) is not None:
        parts += [tenants, Text()]
    if (modes := modes_view(sweep)) is not None:
        parts += [modes, Text()]
    wide = width >= SIDE_BY_SIDE_WIDTH
    drawn = sweep_plots(sweep, (width - 4) // 2 if wide else width) if charts else []
    for first, second in zip(drawn[::2], [*drawn[1::2], None], strict=False):
        if wide and second is not None:
            grid = Table.grid(padding=(0, 4))
            grid.add_row(first, second)
            parts += [grid, Text()]
        else:
            parts += [first, Text()] + ([second, Text()] if second is not None else [])
    idle = unused_slots(sweep)
    parts += [*_reasons(sweep), *([Text(idle)] if idle is not None else []), Text()]
    parts += [Text(sweep.ended)] if sweep.adaptive and sweep.ended else _knees(sweep)
    if sweep.skipped:
        skipped = ", ".join(map(short_label, sweep.skipped))
        parts.append(Text(f"Not measured: {skipped}. {sweep.ended or ''}"))
    return Group(*parts, _recommendation(sweep))


def _reasons(sweep: SweepFile) -> list[Text]:
    """What limits each setting, with the numbers; of one that failed its error."""
    curve = [one for one in merge(sweep.points) if one.point.why or one.point.error is not None]
    listed = _without_repetition(curve) if len(sweep.params) == 1 else [(one.label, one) for one in curve]
    texts = [Text.assemble((f"{label}: ", "bold"), _reason(one.point)) for label, one in listed[:MOST_REASONS]]
    if len(listed) > MOST_REASONS:
        texts.append(Text(f"and {len(listed) - MOST_REASONS} more in sweep.json", style="dim"))
    return texts


def _without_repetition(curve: Sequence[CurvePoint]) -> list[tuple[str, CurvePoint]]:
    """(label, point), where neighbouring settings without waiting requests are one entry, with the last of them."""
    merged: list[tuple[str, CurvePoint]] = []
    for limit, group in groupby(curve, key=lambda one: one.point.limit):
        points = list(group)
        if limit == "demand" and len(points) > 1:
            merged.append((f"{points[0].label} to {points[-1].label}", points[-1]))
        else:
            merged += [(one.label, one) for one in points]
    return merged


def _reason(point: Point) -> tuple[str, str]:
    if point.error is not None:
        return (point.error or "failed").splitlines()[0], "red"
    return point.why or "", ""


def _knees(sweep: SweepFile) -> list[Text]:
    latency = latency_of_knee(sweep.params)
    texts = []
    for line in series(merge(sweep.points)).values():
        top = bend(line, latency)
        if top is None:
            continue
        beyond = f"Beyond it, 1 % more throughput costs more than 1 % more {NAMES[latency].removesuffix(' in ms')}."
        texts.append(Text.assemble(("Knee: ", "bold"), f"{label_of(sweep.params, top.values)}. {beyond}"))
    return texts


def _recommendation(sweep: SweepFile) -> Text:
    advice = sweep.recommendation
    if advice is None:
        return Text("No recommendation yet: no setting has been measured.", style="dim")
    if advice.values is None:
        return Text.assemble(("No recommendation. ", "bold red"), advice.reason)
    proven = advice.proven or not sweep.sla
    head = ("Recommended: ", "bold green") if proven else ("Recommended, unproven: ", "bold yellow")
    return Text.assemble(head, advice.reason)
