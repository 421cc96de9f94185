"""What each tenant gets at each setting of a sweep: a small table in the terminal."""

from __future__ import annotations

from rich.text import Text

from reports.curves import merge, short_label
from reports.render.fitting import Table
from reports.render.words import number, stacked
from reports.sweep_schema import SweepFile
from reports.tenants import tenants_of


def tenants_table(sweep: SweepFile) -> Table | None:
    """P99 TTFT and P99 TPOT of each tenant, a row per setting; None where no run has two tenants."""
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
