"""A sweep in the terminal: table, curves, recommendation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.curves import merge, short_label
from reports.render.plot import curve
from reports.render.words import number, share, verdict
from reports.schema import Point, SweepFile

SIDE_BY_SIDE_WIDTH = 140
WIDE = 90

COLUMNS: Sequence[tuple[str, Callable[[Point], str]]] = (
    ("tok/s", lambda one: number(one.output_token_per_s)),
    ("P50 TTFT", lambda one: number(one.p50_ttft_ms)),
    ("P99 TTFT", lambda one: number(one.p99_ttft_ms)),
    ("P50 TPOT", lambda one: number(one.p50_tpot_ms)),
    ("P99 TPOT", lambda one: number(one.p99_tpot_ms)),
    ("busy", lambda one: share(one.signals.device_busy)),
    ("KV peak", lambda one: share(one.signals.kv_usage_peak)),
    ("preempt", lambda one: number(one.signals.preemptions)),
)
DECIDING = ("tok/s", "P99 TTFT", "P99 TPOT")


def sweep_table(sweep: SweepFile, *, width: int = 100) -> Table:
    """One row per point; the recommended one is marked. A narrow terminal gets the columns that decide."""
    columns = COLUMNS if width >= WIDE else [one for one in COLUMNS if one[0] in DECIDING]
    table = Table(
        title=f"sweep of {name_of(sweep)}", title_justify="left", header_style="bold", box=None, pad_edge=False
    )
    for name in (name_of(sweep), *(name for name, _ in columns)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("SLA" if sweep.sla else "")
    chosen = sweep.recommendation.values if sweep.recommendation else None
    for point in (one.point for one in merge(sweep.points)):
        marked = chosen is not None and point.values == chosen
        name = f"{'→ ' if marked else ''}{short_label(point.values)}"
        table.add_row(name, *(show(point) for _, show in columns), _verdict(point), style="bold" if marked else "")
    table.caption = "latencies in ms"
    table.caption_justify = "left"
    return table


def name_of(sweep: SweepFile) -> str:
    return ", ".join(sweep.params)


def _verdict(point: Point) -> Text:
    if point.error is not None:
        return Text(point.error.splitlines()[0] if point.error else "failed", style="red")
    words: list[str] = []
    if point.validity is not None and point.validity.verdict != "ok":
        words.append(point.validity.verdict)
    verdicts = {one.verdict for one in point.sla}
    words += [word for word in ("fail", "inconclusive", "pass") if word in verdicts][:1]
    return Text(" ").join(verdict(word) for word in words)


def sweep_view(sweep: SweepFile, *, width: int = 100) -> RenderableType:
    """The table, throughput against P99 TTFT and P99 TPOT, and the recommendation with its reason."""
    ttft, tpot = (_plot(sweep, name, key, width) for name, key in (("TTFT", "p99_ttft_ms"), ("TPOT", "p99_tpot_ms")))
    predictions = dict.fromkeys(one.prediction for one in sweep.points if one.prediction)
    parts: list[RenderableType] = [Text(one, "yellow") for one in predictions]
    parts += [sweep_table(sweep, width=width), Text()]
    if width >= SIDE_BY_SIDE_WIDTH:
        grid = Table.grid(padding=(0, 4))
        grid.add_row(ttft, tpot)
        parts.append(grid)
    else:
        parts += [ttft, Text(), tpot]
    parts += [Text(), _recommendation(sweep)]
    return Group(*parts)


def _plot(sweep: SweepFile, name: str, key: str, width: int) -> Text:
    room = (width - 4) // 2 if width >= SIDE_BY_SIDE_WIDTH else width
    curve_points = [one.point for one in merge(sweep.points)]
    points = [one for one in curve_points if one.output_token_per_s and getattr(one, key) is not None]
    return curve(
        [one.output_token_per_s or 0.0 for one in points],
        [getattr(one, key) for one in points],
        [short_label(one.values) for one in points],
        x_name="output tok/s",
        y_name=f"P99 {name} in ms, by {name_of(sweep)}",
        width=min(room, 100),
        height=12,
    )


def _recommendation(sweep: SweepFile) -> Text:
    advice = sweep.recommendation
    if advice is None:
        return Text("no recommendation yet", style="dim")
    if advice.values is None:
        return Text.assemble(("No recommendation. ", "bold red"), advice.reason)
    proven = advice.proven or not sweep.sla
    head = ("Recommended: ", "bold green") if proven else ("Recommended, unproven: ", "bold yellow")
    return Text.assemble(head, advice.reason)
