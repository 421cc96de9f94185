"""A table at every width: whole, without what it can spare, stacked."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.text import Text

from reports.render.table import Table


def table() -> Table:
    made = Table(spare=[-1, 2], title="a title", title_justify="left", box=None, pad_edge=False, header_style="bold")
    made.add_column("setting", no_wrap=True)
    made.add_column("P99 TTFT", justify="right", no_wrap=True)
    made.add_column("busy", justify="right", no_wrap=True)
    made.add_column("max-num-\nbatched-\ntokens", justify="right", no_wrap=True)
    made.add_column("why", min_width=10)
    made.add_row("first", "1,234,567", "93.1%", "8192", "mostly waits for a slot")
    made.add_row(Text("second"), "0.1234", "", "512", Text("late", "red"))
    return made


def shown(width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as caught:
        console.print(table())
    return [line.rstrip() for line in caught.get().splitlines()]


def test_whole_where_there_is_room_and_words_wrap_first() -> None:
    assert "first    1,234,567  93.1%      8192  mostly waits for a slot" in shown(80)
    assert "first    1,234,567  93.1%      8192  mostly" in shown(47)


def test_columns_that_can_be_spared_go_one_by_one() -> None:
    assert "first    1,234,567  93.1%      8192" in shown(40)
    lines = shown(30)
    assert "first    1,234,567      8192" in lines
    assert lines[0] == "a title"


def test_each_row_is_stacked_where_nothing_else_fits() -> None:
    assert shown(24) == [
        "a title",
        "setting first",
        "  P99 TTFT  1,234,567",
        "  busy      93.1%",
        "  max-num-  8192",
        "  batched-",
        "  tokens",
        "  why       mostly waits",
        "            for a slot",
        "setting second",
        "  P99 TTFT  0.1234",
        "  max-num-  512",
        "  batched-",
        "  tokens",
        "  why       late",
    ]


@pytest.mark.parametrize("width", range(24, 100))
def test_no_number_is_ever_cut(width: int) -> None:
    lines = shown(width)
    text = " ".join(lines)
    assert "…" not in text
    assert "1,234,567" in text
    assert "8192" in text
    assert max(map(len, lines)) <= width
