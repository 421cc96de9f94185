"""Where the latency of requests, the launched tokens and the slots of a run went, in tables and a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from reports.render.formatting import number, share
from reports.render.table import Table
from reports.slowest import SlowRequest
from reports.summary_schema import Breakdown, Part, Waste

WIDE = 120  # columns, from which on the table has room for words
PART_MEANINGS = {
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
BLOCK_MEANINGS = {
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
    told = [f"{name}: {PART_MEANINGS[name]}" for name in parts.e2el]
    told += [f"blocked by {reason}: {BLOCK_MEANINGS[reason]}" for reason in parts.blocked]
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
        words = [PART_MEANINGS[name]] if explained else []
        table.add_row(name, *_cells(parts.ttft.get(name)), *_cells(parts.e2el[name]), *words)
        if name == "queue":
            for reason, part in parts.blocked.items():
                words = [BLOCK_MEANINGS[reason]] if explained else []
                table.add_row(f"  blocked: {reason}", *_cells(part), *_cells(None), *words, style="dim")
    return table


def worst_table(requests: Sequence[SlowRequest], title: str) -> Table:
    """One line a request: its lengths, its latency and the parts of it in ms, and what ran meanwhile: the longest step,
    who else sat in it, and the most prompt tokens that one step computed. Two lines of header keep it in 80 columns."""
    names = [name for name in PART_MEANINGS if any(one.parts_ns.get(name) for one in requests)]
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


MEANING_WIDTH = 20  # columns for what a kind is, or it is not said
TOKEN_KINDS = (
    ("useful_tokens", "useful", "prompt and output tokens that a request wanted"),
    ("prompt_padding_tokens", "prompt padding", "shorter prompts filled up to the longest of their static batch"),
    ("bucket_padding_tokens", "bucket padding", "rows filled up to the next shape that can be launched"),
    ("dead_row_tokens", "dead rows", "finished requests computed until the longest of their batch ends"),
    ("recomputed_tokens", "recomputed", "KV that was lost to a preemption and computed again"),
    ("discarded_tokens", "discarded", "computed for a request that had ended already"),
)
SLOT_KINDS = (
    ("active_slot_steps", "active", "an unfinished request sat there"),
    ("dead_slot_steps", "dead", "a finished request was still launched with its batch"),
    ("idle_slot_steps", "idle", "nobody sat there, or a finished request held the seat"),
)


def token_table(waste: Waste) -> Table:
    """Launched tokens by what became of them; kinds that did not occur are left out."""
    return _kinds_table("launched tokens", waste, TOKEN_KINDS, waste.launched_tokens)


def slot_table(waste: Waste) -> Table:
    """Slot-steps (seats times steps) by who sat there."""
    return _kinds_table("slot-steps", waste, SLOT_KINDS, waste.slot_steps)


def _kinds_table(title: str, waste: Waste, kinds: tuple[tuple[str, str, str], ...], total: int) -> Table:
    table = Table(spare=[3], box=None, header_style="bold", pad_edge=False)
    table.add_column(title)
    table.add_column(f"{total:,}", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("", min_width=MEANING_WIDTH)
    for key, name, words in kinds:
        count: int = getattr(waste, key)
        if count:
            table.add_row(name, f"{count:,}", share(count / total), words)
    return table


def waste_sentence(waste: Waste) -> str:
    """Where the seats and the tokens went, in words."""
    if not waste.slot_steps or not waste.launched_tokens:
        return ""
    lost = waste.dead_slot_steps + waste.idle_slot_steps
    parts = [
        f"{count:,} {words}"
        for count, words in (
            (waste.dead_slot_steps, "with a finished request kept in its batch"),
            (waste.idle_slot_steps, "with nobody at work in the seat"),
        )
        if count
    ]
    seats = f"{lost:,} of {waste.slot_steps:,} slot-steps did no work ({lost / waste.slot_steps:.0%})"
    useless = waste.launched_tokens - waste.useful_tokens
    kinds = (
        (waste.dead_row_tokens, "dead rows"),
        (waste.prompt_padding_tokens, "prompt padding"),
        (waste.bucket_padding_tokens, "bucket padding"),
        (waste.recomputed_tokens, "recomputed"),
        (waste.discarded_tokens, "discarded"),
    )
    tokens = (
        f"{useless:,} of {waste.launched_tokens:,} launched tokens were useless ({useless / waste.launched_tokens:.0%})"
    )
    detail = ", ".join(f"{count:,} {name}" for count, name in kinds if count)
    return f"{seats}{': ' + ', '.join(parts) if parts else ''}; {tokens}{': ' + detail if detail else ''}."
