"""What each tenant gets at each setting of a sweep: a table of the report."""

from __future__ import annotations

from collections.abc import Sequence

from reports.curves import CurvePoint, short_label
from reports.document import Block, Table
from reports.render.words import number
from reports.sweep_schema import SweepFile
from reports.tenants import tenants_of


def tenant_blocks(sweep: SweepFile, curve: Sequence[CurvePoint]) -> list[Block]:
    """P99 TTFT and P99 TPOT of each tenant, a row per setting; nothing where no run has two tenants."""
    names, rows = tenants_of(curve)
    if not names:
        return []
    advice = sweep.recommendation
    marked = next((at for at, row in enumerate(rows) if advice and row.values == advice.values), None)
    columns = [f"{name}, P99 {word}" for name in names for word in ("TTFT", "TPOT")]
    cells = [
        (short_label(row.values), *(number(t) for one in row.tenants for t in (one.p99_ttft_ms, one.p99_tpot_ms)))
        for row in rows
    ]
    return [Table((", ".join(sweep.params), *columns), cells, marked, caption="Latencies in ms.")]
