"""Two tenants beside each other: in a comparison of runs, and along a sweep."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console, RenderableType

from engines.base import RunRecord
from reports.curves import merge, point_of, tenants_of
from reports.pages.sweep import tenant_blocks
from reports.render.compare import side_by_side
from reports.render.sweep import sweep_view
from reports.render.sweep_tables import tenants_table
from reports.schema import RunFile
from reports.summary import completed_run
from reports.sweep_schema import Point, SweepFile, TenantPoint
from tests.reports.factory import header, record, row


def two(first_ms: float, other_ms: float, *, tenants: str = "ab") -> RunRecord:
    """Four requests of each tenant, each with a token 20 ms after its first."""
    made = []
    for i in range(8):
        first = i * 10 + (first_ms if i % 2 == 0 else other_ms)
        made.append(row(i, [first, first + 20], scheduled_ms=i * 10, tenant=tenants[i % len(tenants)], priority=i % 2))
    return record(made)


def run_of(made: RunRecord, **fields: object) -> RunFile:
    return completed_run(made, header(**fields))  # type: ignore[arg-type]


def text_of(view: RenderableType | None) -> str:
    assert view is not None
    console = Console(width=100)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def row_of(text: str, *starts: str) -> list[str]:
    """The cells of the first line that begins with the last of `starts`, after lines that begin with those before."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    for start in starts:
        at = next(at for at, words in enumerate(lines) if words[: len(start.split())] == start.split())
        lines, found = lines[at + 1 :], lines[at]
    return found[len(starts[-1].split()) :]


def test_a_comparison_has_a_section_per_tenant_and_priority() -> None:
    runs = [run_of(two(100, 400)), run_of(two(50, 800))]
    text = text_of(side_by_side(runs, ["x", "y"]))
    assert row_of(text, "by tenant") == ["x", "y", "y", "/", "x"]
    assert row_of(text, "by tenant", "tenant a", "requests") == ["4", "4", "1.00x"]
    assert row_of(text, "by tenant", "tenant a", "TTFT P99") == ["100", "50", "0.50x"]
    assert row_of(text, "by tenant", "tenant b", "TTFT P50") == ["400", "800", "2.00x"]
    assert row_of(text, "by tenant", "tenant b", "TPOT P99") == ["20", "20", "1.00x"]
    assert row_of(text, "by tenant", "tenant b", "longest wait") == ["400", "800", "2.00x"]
    summary = runs[0].summary
    assert summary is not None
    rate = summary.by_tenant["b"].output_token_per_s
    assert float(row_of(text, "by tenant", "tenant b", "output tok/s")[0]) == pytest.approx(rate, rel=1e-3)
    assert row_of(text, "by priority", "priority 0", "TTFT P99") == ["100", "50", "0.50x"]
    assert "from the scheduled time" not in text


def test_in_open_loop_it_is_from_the_schedule() -> None:
    late = record([row(i, [90.0], sent_ms=80, tenant="ab"[i % 2]) for i in range(4)])
    text = text_of(side_by_side([run_of(late, rate_per_s=5), run_of(late, rate_per_s=5)], ["x", "y"]))
    assert row_of(text, "by tenant", "tenant a", "TTFT P99")[0] == "90"
    assert "TTFT from the scheduled time" in text


def test_only_tenants_that_both_runs_have_are_compared() -> None:
    alone = text_of(side_by_side([run_of(two(1, 1)), run_of(two(1, 1, tenants="a"))], ["x", "y"]))
    assert "by tenant" not in alone
    others = text_of(side_by_side([run_of(two(1, 1)), run_of(two(1, 1, tenants="bc"))], ["x", "y"]))
    assert "tenant b" in others
    assert "tenant a" not in others
    assert "tenant c" not in others


def points(repeats: int = 1) -> tuple[Point, ...]:
    made = {"fcfs": (400, 400), "fair": (50, 800)}
    return tuple(
        point_of((value,), f"{value}{repeat}", run_of(two(a + 10 * repeat, b)), repeat=repeat)
        for value, (a, b) in made.items()
        for repeat in range(repeats)
    )


def test_a_point_has_what_each_tenant_got() -> None:
    fcfs, fair = points()
    assert fcfs.by_tenant["a"] == TenantPoint(p99_ttft_ms=400, p99_tpot_ms=20)
    assert fair.by_tenant["b"] == TenantPoint(p99_ttft_ms=800, p99_tpot_ms=20)
    assert msgspec.json.decode(msgspec.json.encode(fair), type=Point) == fair
    assert point_of((1,), "one", run_of(two(1, 1, tenants="a"))).by_tenant == {}
    late = record([row(i, [90.0], sent_ms=80, tenant="ab"[i % 2]) for i in range(4)])
    assert point_of((1,), "", run_of(late, rate_per_s=5)).by_tenant["a"].p99_ttft_ms == pytest.approx(90)


def test_repeats_are_medians_for_each_tenant_too() -> None:
    fcfs, fair = merge(points(repeats=3))
    assert fcfs.point.by_tenant["a"].p99_ttft_ms == 410
    assert fair.point.by_tenant["b"].p99_ttft_ms == 800


def test_a_sweep_has_a_table_by_tenant() -> None:
    failed = Point(values=("priority",), folder="", error="could not run")
    sweep = SweepFile(params=("order",), settings=(), points=(*points(), failed))
    text = text_of(tenants_table(sweep))
    assert row_of(text, "fcfs") == ["400", "20", "400", "20"]
    assert row_of(text, "fair") == ["50", "20", "800", "20"]
    assert "priority" not in text
    assert "by tenant" in text_of(sweep_view(sweep))
    (table,) = tenant_blocks(sweep, merge(sweep.points))
    assert table.columns == ("order", "a, P99 TTFT", "a, P99 TPOT", "b, P99 TTFT", "b, P99 TPOT")  # type: ignore[union-attr]
    assert list(table.rows) == [("fcfs", "400", "20", "400", "20"), ("fair", "50", "20", "800", "20")]  # type: ignore[union-attr]


def test_without_tenants_there_is_no_such_table() -> None:
    alone = SweepFile(params=("n",), settings=(), points=(point_of((1,), "", run_of(two(1, 1, tenants="a"))),))
    assert tenants_table(alone) is None
    assert tenant_blocks(alone, merge(alone.points)) == []
    assert "by tenant" not in text_of(sweep_view(alone))


def test_a_tenant_that_one_setting_lacks_has_no_numbers_there() -> None:
    some = point_of((1,), "", run_of(two(1, 1, tenants="bc")))
    names, rows = tenants_of(merge([*(msgspec.structs.replace(one, values=(0,)) for one in points()[:1]), some]))
    assert names == ["a", "b", "c"]
    assert [one.tenants[0].p99_ttft_ms for one in rows] == [400, None]
