"""A table that fits every width of terminal: whole, without the columns it can spare, or a line for each cell.

Rich would cut numbers off with an ellipsis, or break headers letter by letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column
from rich.text import Text

INDENT = 2


class Table(rich_table.Table):
    """As Rich's, without a box. spare: indices of the columns to leave out, in this order, where the width is small."""

    def __init__(self, *headers: str, spare: Sequence[int] = (), **looks: Any) -> None:
        super().__init__(*headers, **looks)
        self.spare = spare

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(range(len(self.columns)))
        for place in (None, *self.spare):
            if place is not None:
                kept.remove(range(len(self.columns))[place])
            if (widths := self._widths(console, [self.columns[at] for at in kept], options.max_width)) is not None:
                yield self._of([self.columns[at] for at in kept], widths)
                return
        yield from self._stacked(console, options.max_width)

    def _widths(self, console: Console, columns: Sequence[Column], most: int) -> list[int] | None:
        """The widths at which no word is cut; width that is left goes to the columns that wrap. None: `most` is too
        small."""
        _, right, _, left = self.padding
        gap = right + (max(0, left - right) if self.collapse_padding else left)
        needs = [self._least_and_most(console, one) for one in columns]
        spare = most - gap * (len(columns) - 1) - sum(least for least, _ in needs)
        if spare < 0:
            return None
        wanted = sum(whole - least for least, whole in needs)
        share = min(1.0, spare / wanted) if wanted else 0.0
        return [least + int((whole - least) * share) for least, whole in needs]

    def _least_and_most(self, console: Console, column: Column) -> tuple[int, int]:
        """(the longest word, or the longest cell of a column that does not wrap; the longest cell)"""
        cells = [_plain(console, one) for one in (*([column.header] if self.show_header else []), *column.cells)]
        whole = max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0)
        words = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        return (whole, whole) if column.no_wrap else (max(words, min(whole, column.min_width or 0)), whole)

    def _of(self, columns: Sequence[Column], widths: Sequence[int]) -> rich_table.Table:
        """The table with these columns alone, at these widths."""
        made = rich_table.Table(
            title=self.title, caption=self.caption, title_justify=self.title_justify,
            caption_justify=self.caption_justify, header_style=self.header_style, box=None, pad_edge=False,
            collapse_padding=self.collapse_padding, padding=self.padding, show_header=self.show_header,
        )  # fmt: skip
        for one, width in zip(columns, widths, strict=True):
            made.add_column(one.header, justify=one.justify, no_wrap=one.no_wrap, width=width)
        for row, cells in zip(self.rows, zip(*(one.cells for one in columns), strict=True), strict=True):
            made.add_row(*cells, style=row.style)
        return made

    def _stacked(self, console: Console, width: int) -> RenderResult:
        """The first cell of a row, and below it a line for each other cell that is not empty."""
        if self.title:
            yield Text.assemble((_plain(console, self.title), "italic"))
        names = [_name(_plain(console, one.header), width // 2) if self.show_header else "" for one in self.columns]
        named = min(width // 2, max(cell_len(line) for name in names[1:] or [""] for line in [*name.splitlines(), ""]))
        for row, cells in zip(self.rows, zip(*(one.cells for one in self.columns), strict=True), strict=True):
            cells_shown = [console.render_str(cell) if isinstance(cell, str) else cell for cell in cells]
            head, *rest = cells_shown
            first = names[0].replace("\n", "")
            yield Text.assemble((f"{first} " if first else "", "dim"), head, style=row.style or "bold")
            lines = rich_table.Table.grid(padding=(0, 2))
            if named:
                lines.add_column(width=named, overflow="fold")
            lines.add_column(overflow="fold")
            for name, cell in zip(names[1:], rest, strict=True):
                if not isinstance(cell, Text) or cell.plain.strip():
                    lines.add_row(*([name] if named else []), cell)
            yield Padding(lines, (0, 0, 0, INDENT))
        if self.caption:
            yield Text.assemble((_plain(console, self.caption), "dim italic"))


def _plain(console: Console, cell: RenderableType) -> str:
    if isinstance(cell, Text):
        return cell.plain
    return console.render_str(cell).plain if isinstance(cell, str) else ""


def _name(header: str, width: int) -> str:
    """The header in one line where it fits, as in max-num-batched-tokens, though it was broken after its hyphens."""
    name = header.replace("-\n", "-").replace("\n", " ")
    return name if cell_len(name) <= width else header
