"""Where the time of requests went, in a table; and the requests that waited longest."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from reports.render.fitting import Table
from reports.render.words import number, share
from reports.summary_schema import Breakdown, Part
from reports.worst import Worst

WIDE = 120  # columns, from which on the table has room for words
WORDS = {
    "client": "not yet sent: capped, or late",
    "intake": "sent, while a step ran",
    "queue": "waiting for a first seat",
    "prefill": "seated, before the first token",
    "preempted": "without a seat again",
    "server": "in the server, before the first token",
    "handover": "until a step to decode with room for it",
    "transfer": "KV on its way to the decode instance",
    "decode": "seated, after the first token",
}
REASONS = {
    "rows": "no seat was free",
    "tokens": "the step's tokens were spent",
    "kv": "no KV was free",
    "watermark": "free KV was kept back",
    "batch": "a batch had to end",
    "preempted": "somebody had lost a seat",
    "quota": "the tenant's quota",
    "peak": "KV would have run out",
    "patience": "a batch waited to fill",
}


def breakdown_view(parts: Breakdown, *, width: int) -> RenderableType:
    """The table; what its names mean is beside them where there is room, else below."""
    if width >= WIDE:
        return breakdown_table(parts)
    told = [f"{name}: {WORDS[name]}" for name in parts.e2el]
    told += [f"blocked by {reason}: {REASONS[reason]}" for reason in parts.blocked]
    return Group(breakdown_table(parts, explained=False), Text("; ".join(told) + ".", "dim"))


def breakdown_table(parts: Breakdown, *, explained: bool = True) -> Table:
    """Means over all requests, and over those at or above P99, with their shares of the latency. Times in ms."""
    table = Table(spare=[4], box=None, header_style="bold", pad_edge=False)
    table.add_column("time went to, ms", no_wrap=True)
    for name in ("TTFT", "from P99 on", "E2EL", "from P99 on"):
        table.add_column(name, justify="right", no_wrap=True)
    if explained:
        table.add_column("")
    for name in parts.e2el:
        words = [WORDS[name]] if explained else []
        table.add_row(name, *_cells(parts.ttft.get(name)), *_cells(parts.e2el[name]), *words)
        if name == "queue":
            for reason, part in parts.blocked.items():
                words = [REASONS[reason]] if explained else []
                table.add_row(f"  blocked: {reason}", *_cells(part), *_cells(None), *words, style="dim")
    return table


def worst_table(requests: Sequence[Worst], title: str) -> Table:
    """One line a request: its lengths, its latency and the parts of it in ms, and what ran meanwhile: the longest step,
    who else sat in it, and the most prompt tokens that one step computed. Two lines of header keep it in 80 columns."""
    names = [name for name in WORDS if any(one.parts_ns.get(name) for one in requests)]
    seen = any(one.neighbours for one in requests)
    near_names = ("longest\nstep ms", "other\nseats", "prefill\ntokens") if seen else ()
    spare = [-1, -2, -3] if seen else []
    table = Table(spare=spare, box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for name in (title.replace(" ", "\n", 1), "prompt", "output", "ms", *names, *near_names):
        table.add_column(name, justify="right")
    for one in requests:
        cells = [f"{one.row.i}", f"{one.row.prompt_tokens:,}", f"{one.row.output_tokens:,}", number(one.total_ns / 1e6)]
        cells += [number(one.parts_ns.get(name, 0) / 1e6) for name in names]
        if seen:
            near = one.neighbours
            cells += ["", "", ""] if near is None else [
                number(near.step_ms), f"{len(near.prompts)}", f"{near.prefill_tokens:,}"
            ]  # fmt: skip
        table.add_row(*cells)
    return table


def _cells(part: Part | None) -> tuple[str, str]:
    """Of all requests, and of those at or above P99."""
    if part is None:
        return "", ""
    pairs = ((part.mean_ms, part.share), (part.tail_mean_ms, part.tail_share))
    whole, tail = (f"{number(value_ms)}{share(of_it):>7}" for value_ms, of_it in pairs)
    return whole, tail
