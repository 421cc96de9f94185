"""A sweep in the terminal: table, curves, what limits each setting, recommendation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from reports.curves import CurvePoint, bend, label_of, latency_of_knee, merge, series, short_label
from reports.limits import empty_seats
from reports.recommend import TWO_DEVICES, unequal_devices
from reports.render.fitting import Table
from reports.render.modes import modes_view
from reports.render.sweep_plots import NAMES, pictures
from reports.render.tenants import tenants_table
from reports.render.words import MISSING, number, share, stacked, verdict
from reports.sweep_schema import Point, SweepFile

SIDE_BY_SIDE_WIDTH = 140
WIDE = 120
MOST_REASONS = 24  # settings; sweep.json has all


@dataclass(frozen=True)
class Column:
    name: str
    show: Callable[[CurvePoint], str]
    decides: bool = False  # shown in a narrow terminal too


COLUMNS = (
    Column("tok/s", lambda one: number(one.point.output_token_per_s), decides=True),
    Column("tok/s/user", lambda one: number(one.point.tokens_per_s_per_user)),
    Column("P50 TTFT", lambda one: number(one.point.p50_ttft_ms)),
    Column("P99 TTFT", lambda one: number(one.point.p99_ttft_ms), decides=True),
    Column("P50 TPOT", lambda one: number(one.point.p50_tpot_ms)),
    Column("P99 TPOT", lambda one: number(one.point.p99_tpot_ms), decides=True),
    Column("busy", lambda one: share(one.point.signals.device_busy)),
    Column("KV peak", lambda one: share(one.point.signals.kv_usage_peak)),
    Column("preempt", lambda one: number(one.point.signals.preemptions)),
)
SPREAD = Column("±", lambda one: spread(one, "output_token_per_s"), decides=True)
GOODPUT = Column("goodput", lambda one: number(one.point.goodput_per_s), decides=True)
LIMIT = Column("limit", lambda one: one.point.limit or MISSING, decides=True)


def sweep_view(sweep: SweepFile, *, width: int = 100, charts: bool = True) -> RenderableType:
    """The table, the plots (unless there shall be none), why each setting is as fast as it is, and the recommendation
    with its reason."""
    predictions = dict.fromkeys(one.prediction for one in sweep.points if one.prediction)
    parts: list[RenderableType] = [Text(one, "yellow") for one in predictions]
    parts += [sweep_table(sweep, width=width)]
    if unequal_devices(sweep.params, sweep.points):
        parts.append(Text(TWO_DEVICES, "yellow"))
    parts.append(Text())
    if (tenants := tenants_table(sweep)) is not None:
        parts += [tenants, Text()]
    if (modes := modes_view(sweep)) is not None:
        parts += [modes, Text()]
    wide = width >= SIDE_BY_SIDE_WIDTH
    drawn = pictures(sweep, (width - 4) // 2 if wide else width) if charts else []
    for first, second in zip(drawn[::2], [*drawn[1::2], None], strict=False):
        if wide and second is not None:
            grid = Table.grid(padding=(0, 4))
            grid.add_row(first, second)
            parts += [grid, Text()]
        else:
            parts += [first, Text()] + ([second, Text()] if second is not None else [])
    idle = empty_seats(sweep)
    parts += [*_reasons(sweep), *([Text(idle)] if idle is not None else []), Text()]
    parts += [Text(sweep.ended)] if sweep.adaptive and sweep.ended else _knees(sweep)
    if sweep.skipped:
        skipped = ", ".join(map(short_label, sweep.skipped))
        parts.append(Text(f"Not measured: {skipped}. {sweep.ended or ''}"))
    return Group(*parts, _recommendation(sweep))


def sweep_table(sweep: SweepFile, *, width: int = 100) -> Table:
    """One row per setting; the recommended one is marked. A narrow terminal gets the columns that decide."""
    curve = merge(sweep.points)
    columns = [one for one in _columns(sweep) if one.decides or width >= WIDE]
    title = f"sweep of {', '.join(sweep.params)}" + (f", {sweep.repeats} runs each" if sweep.repeats > 1 else "")
    spared = [len(sweep.params) + columns.index(one) for one in (LIMIT, GOODPUT, SPREAD) if one in columns]
    table = Table(spare=spared, title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in (*map(stacked, sweep.params), *(one.name for one in columns)):
        table.add_column(name, justify="right", no_wrap=True)
    last = [_verdict(one.point) for one in curve]
    if any(last):  # without an SLA it says what was wrong with a run, if anything was
        table.add_column("SLA" if sweep.sla else "run")
    chosen = sweep.recommendation.values if sweep.recommendation else None
    for one, judged in zip(curve, last, strict=True):
        marked = chosen is not None and one.values == chosen
        first, *others = [short_label([value]) for value in one.values]
        words = [f"{'→ ' if marked else ''}{first}", *others, *(column.show(one) for column in columns)]
        table.add_row(*words, *([judged] if any(last) else []), style="bold" if marked else "")
    table.caption = "latencies in ms" + ("; ± 95 % of the mean tok/s over the runs" if SPREAD in columns else "")
    table.caption_justify = "left"
    return table


def _columns(sweep: SweepFile) -> list[Column]:
    columns = [COLUMNS[0], *([SPREAD] if sweep.repeats > 1 else []), *COLUMNS[1:]]
    if any(one.goodput_per_s is not None for one in sweep.points):
        columns.append(GOODPUT)
    return [*columns, LIMIT]


def spread(one: CurvePoint, field: str) -> str:
    """Half the interval, in percent of the value; a dash without one."""
    value, interval = getattr(one.point, field), one.intervals.get(field)
    return f"{(interval[1] - interval[0]) / 2 / value:.1%}" if interval is not None and value else MISSING


def _verdict(point: Point) -> Text:
    if point.error is not None:
        return Text("failed", style="red")
    words: list[str] = []
    if point.validity is not None and point.validity.verdict != "ok":
        words.append(point.validity.verdict)
    verdicts = {one.verdict for one in point.sla}
    words += [word for word in ("fail", "inconclusive", "pass") if word in verdicts][:1]
    return Text(" ").join(verdict(word) for word in words)


def _reasons(sweep: SweepFile) -> list[Text]:
    """What limits each setting, with the numbers; why one has none."""
    curve = [one for one in merge(sweep.points) if one.point.why or one.point.error is not None]
    told = _without_repetition(curve) if len(sweep.params) == 1 else [(one.label, one) for one in curve]
    texts = [Text.assemble((f"{label}: ", "bold"), _reason(one.point)) for label, one in told[:MOST_REASONS]]
    if len(told) > MOST_REASONS:
        texts.append(Text(f"and {len(told) - MOST_REASONS} more in sweep.json", style="dim"))
    return texts


def _without_repetition(curve: Sequence[CurvePoint]) -> list[tuple[str, CurvePoint]]:
    """(label, last point) of each stretch in which nobody waits: one sentence is enough for it."""
    told: list[tuple[str, CurvePoint]] = []
    for limit, stretch in groupby(curve, key=lambda one: one.point.limit):
        points = list(stretch)
        if limit == "demand" and len(points) > 1:
            told.append((f"{points[0].label} to {points[-1].label}", points[-1]))
        else:
            told += [(one.label, one) for one in points]
    return told


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
        beyond = f"Beyond it, 1 % more throughput costs more than 1 % of {NAMES[latency].removesuffix(' in ms')}."
        texts.append(Text.assemble(("Knee: ", "bold"), f"{label_of(sweep.params, top.values)}. {beyond}"))
    return texts


def _recommendation(sweep: SweepFile) -> Text:
    advice = sweep.recommendation
    if advice is None:
        return Text("no recommendation yet", style="dim")
    if advice.values is None:
        return Text.assemble(("No recommendation. ", "bold red"), advice.reason)
    proven = advice.proven or not sweep.sla
    head = ("Recommended: ", "bold green") if proven else ("Recommended, unproven: ", "bold yellow")
    return Text.assemble(head, advice.reason)
