"""The tables of a sweep in the terminal: its settings, its tenants, and static against continuous batching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from reports.curves import CurvePoint, merge, short_label, tenants_of
from reports.render.formatting import MISSING, number, share, stacked, verdict
from reports.render.table import Table
from reports.sweep_schema import Point, SweepFile, Value

WIDE = 120  # characters of a terminal, below which a table is easier to read without the columns of detail
DETAIL = 6  # rank of the last of these columns


@dataclass(frozen=True)
class Column:
    name: str
    show: Callable[[CurvePoint], str]
    spare: int | None = None  # rank of the columns that a narrow terminal leaves out, 1 first; None: always shown


COLUMNS = (
    Column("tok/s", lambda one: number(one.point.output_token_per_s)),
    Column("tok/s/user", lambda one: number(one.point.tokens_per_s_per_user), spare=2),
    Column("P50 TTFT", lambda one: number(one.point.p50_ttft_ms), spare=4),
    Column("P99 TTFT", lambda one: number(one.point.p99_ttft_ms)),
    Column("P50 TPOT", lambda one: number(one.point.p50_tpot_ms), spare=3),
    Column("P99 TPOT", lambda one: number(one.point.p99_tpot_ms)),
    Column("busy", lambda one: share(one.point.signals.device_busy), spare=6),
    Column("KV peak", lambda one: share(one.point.signals.kv_usage_peak), spare=5),
    Column("preempt", lambda one: number(one.point.signals.preemptions), spare=1),
)
ARRIVED = Column("arrived/s", lambda one: number(one.point.arrivals_per_s), spare=10)
SPREAD = Column("±", lambda one: spread(one, "output_token_per_s"), spare=9)
GOODPUT = Column("goodput", lambda one: number(one.point.goodput_per_s), spare=8)
LIMIT = Column("limit", lambda one: one.point.limit or MISSING, spare=7)


def sweep_table(sweep: SweepFile, *, width: int = 100) -> Table:
    """A row for each setting; the recommended one is marked. width: characters of the terminal."""
    curve = merge(sweep.points)
    columns = [one for one in _columns(sweep) if width >= WIDE or one.spare is None or one.spare > DETAIL]
    title = f"sweep of {', '.join(sweep.params)}" + (f", {sweep.repeats} runs each" if sweep.repeats > 1 else "")
    ranked = sorted((one.spare, len(sweep.params) + at) for at, one in enumerate(columns) if one.spare is not None)
    table = Table(
        spare=[at for _, at in ranked], title=title, title_justify="left", header_style="bold", box=None, pad_edge=False
    )
    for name in (*map(stacked, sweep.params), *(one.name for one in columns)):
        table.add_column(name, justify="right", no_wrap=True)
    last = [_verdict(one.point) for one in curve]
    if any(last):  # without SLAs the validity of the runs, where one is not ok
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
    spreads = {SPREAD.show(one) for one in merge(sweep.points)}
    columns = [COLUMNS[0], *([SPREAD] if spreads - {MISSING} else []), *COLUMNS[1:]]
    if any(one.goodput_per_s is not None for one in sweep.points):
        columns.append(GOODPUT)
    if any(one.arrivals_per_s is not None for one in sweep.points):
        columns.insert(0, ARRIVED)
    return [*columns, LIMIT]


def spread(one: CurvePoint, field: str) -> str:
    """Half the 95 % interval as a share of the value; a dash without an interval."""
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


def tenants_table(sweep: SweepFile) -> Table | None:
    """P99 TTFT and P99 TPOT of each tenant, a row for each setting; None where no run has two tenants."""
    names, rows = tenants_of(merge(sweep.points))
    if not names:
        return None
    table = Table(title="by tenant", title_justify="left", header_style="bold", box=None, pad_edge=False)
    for param in sweep.params:
        table.add_column(stacked(param), justify="right", no_wrap=True)
    for name in names:
        table.add_column(Text(f"{name}\nP99 TTFT"), justify="right")
        table.add_column(Text(f"{name}\nP99 TPOT"), justify="right")
    chosen = sweep.recommendation.values if sweep.recommendation else None
    for row in rows:
        marked = chosen is not None and row.values == chosen
        first, *others = [short_label([value]) for value in row.values]
        times = [number(value) for one in row.tenants for value in (one.p99_ttft_ms, one.p99_tpot_ms)]
        table.add_row(f"{'→ ' if marked else ''}{first}", *others, *times, style="bold" if marked else "")
    return table


MODES = ("static", "continuous")
MODE_METRICS = (("tok/s", "output_token_per_s"), ("P99 TTFT", "p99_ttft_ms"), ("P99 TPOT", "p99_tpot_ms"))


def pairs_of_modes(sweep: SweepFile) -> list[tuple[tuple[Value, ...], CurvePoint, CurvePoint]]:
    """(values of the other parameters, static, continuous) where a sweep over the mode measured both."""
    if "mode" not in sweep.params:
        return []
    at = sweep.params.index("mode")
    found: dict[tuple[Value, ...], dict[Value, CurvePoint]] = {}
    for one in merge(sweep.points):
        if one.runs:
            found.setdefault(one.values[:at] + one.values[at + 1 :], {})[one.values[at]] = one
    return [(rest, both["static"], both["continuous"]) for rest, both in found.items() if set(MODES) <= both.keys()]


def modes_view(sweep: SweepFile) -> Group | None:
    """A row for each pair of static and continuous; None without one."""
    pairs = pairs_of_modes(sweep)
    if not pairs:
        return None
    others = [param for param in sweep.params if param != "mode"]
    table = Table(box=None, header_style="bold", pad_edge=False, title="continuous over static", title_justify="left")
    for name in (
        *map(stacked, others),
        *(f"{one}\n{name}" for name, _ in MODE_METRICS[:1] for one in MODES),
        "ratio",
        "predicted",
    ):
        table.add_column(name, justify="right")
    for name, _ in MODE_METRICS[1:]:
        table.add_column(f"{name}\nratio", justify="right")
    for rest, static, continuous in pairs:
        speeds = [number(one.point.output_token_per_s) for one in (static, continuous)]
        ratios = [_ratio(static, continuous, key) for _, key in MODE_METRICS]
        predicted = f"{gain:.2f}x" if (gain := static.point.max_over_mean) else "–"
        table.add_row(*_words(rest), *speeds, ratios[0], predicted, *ratios[1:])
    note = "predicted: E[longest of B outputs] / mean output, B = max_num_seqs, for a queue that never empties and "
    return Group(table, Text(note + "steps of equal length", style="dim"))


def _words(rest: Sequence[Value]) -> list[str]:
    return [short_label([one]) for one in rest]


def _ratio(static: CurvePoint, continuous: CurvePoint, key: str) -> str:
    before, after = getattr(static.point, key), getattr(continuous.point, key)
    return f"{after / before:.2f}x" if before and after is not None else "–"
