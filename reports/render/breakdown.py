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
    "client": "scheduled, not yet sent: concurrency cap or late client",
    "intake": "sent, not yet submitted: a step was running",
    "queue": "waiting for its first slot",
    "prefill": "running, before its first token",
    "preempted": "preempted, waiting for a slot again",
    "server": "in the server, before its first token",
    "handover": "waiting until the decode instance has room",
    "transfer": "KV transfer to the decode instance",
    "decode": "running, after its first token",
}
BLOCK_MEANINGS = {
    "rows": "no slot was free",
    "tokens": "the token budget of the step was spent",
    "kv": "too few KV blocks were free",
    "watermark": "free KV blocks would fall below the watermark",
    "batch": "the static batch had to end",
    "preempted": "a running request was preempted in this step",
    "quota": "the tenant's quota was spent",
    "peak": "the predicted KV peak exceeds the pool",
    "patience": "the static batch waited for more requests",
    "partial": "as many prompts were partly computed as may be at a time",
}


def breakdown_view(parts: Breakdown, *, width: int) -> RenderableType:
    """The table of parts; their meanings in a column from `WIDE` columns on, else in a table below."""
    if width >= WIDE:
        return breakdown_table(parts)
    meanings = Table(show_header=False, box=None, pad_edge=False)
    for name in parts.e2el:
        meanings.add_row(name, PART_MEANINGS[name], style="dim")
    for reason in parts.blocked:
        meanings.add_row(f"blocked: {block_name(reason)}", BLOCK_MEANINGS[reason], style="dim")
    return Group(breakdown_table(parts, explained=False), Text(), meanings)


def block_name(reason: str) -> str:
    """The name shown for a reason of the ledger: run.json says `rows` where no slot was free."""
    return "slots" if reason == "rows" else reason


def breakdown_table(parts: Breakdown, *, explained: bool = True) -> Table:
    """A row for each part: its mean over all requests and over those at or above P99, in ms and as a share of the
    latency."""
    table = Table(spare=[4], box=None, header_style="bold", pad_edge=False)
    table.add_column("part, ms and share", no_wrap=True)
    for name in ("TTFT", "from P99 on", "E2EL", "from P99 on"):
        table.add_column(name, justify="right", no_wrap=True)
    if explained:
        table.add_column("")
    for name in parts.e2el:
        meaning = [PART_MEANINGS[name]] if explained else []
        table.add_row(name, *_cells(parts.ttft.get(name)), *_cells(parts.e2el[name]), *meaning)
        if name == "queue":
            for reason, part in parts.blocked.items():
                meaning = [BLOCK_MEANINGS[reason]] if explained else []
                table.add_row(f"  blocked: {block_name(reason)}", *_cells(part), *_cells(None), *meaning, style="dim")
    return table


def worst_table(requests: Sequence[SlowRequest], title: str) -> Table:
    """A row for each request: its lengths, its latency and the parts of it in ms; of the steps it waited for, the
    longest, the other requests in that one, and the most prompt tokens of any. Two header lines fit 80 columns."""
    names = [name for name in PART_MEANINGS if any(one.parts_ns.get(name) for one in requests)]
    seen = any(one.neighbours for one in requests)
    near_names = ("longest\nstep ms", "others\nin it", "prefill\ntokens") if seen else ()
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
    """(of all requests, of those at or above P99)"""
    if part is None:
        return "", ""
    pairs = ((part.mean_ms, part.share), (part.tail_mean_ms, part.tail_share))
    whole, tail = (f"{number(value_ms)}{share(of_it):>7}" for value_ms, of_it in pairs)
    return whole, tail


MEANING_WIDTH = 20  # columns that the meaning of a kind needs at least; with fewer it is left out
TOKEN_KINDS = (
    ("useful_tokens", "useful", "prompt and output tokens of requests"),
    ("prompt_padding_tokens", "prompt padding", "shorter prompts padded to the longest of their static batch"),
    ("bucket_padding_tokens", "bucket padding", "batches padded to the next size that can be launched"),
    ("dead_row_tokens", "dead rows", "finished requests launched until their static batch ends"),
    ("recomputed_tokens", "recomputed", "KV lost in a preemption and computed again"),
    ("discarded_tokens", "discarded", "computed for a request that had already ended"),
)
SLOT_KINDS = (
    ("active_slot_steps", "active", "an unfinished request in the slot"),
    ("dead_slot_steps", "dead", "a finished request, launched until its static batch ends"),
    ("idle_slot_steps", "idle", "an empty slot, or one held by a finished request"),
)


def token_table(waste: Waste) -> Table:
    """Launched tokens by kind; kinds that did not occur are left out."""
    return _kinds_table("launched tokens", waste, TOKEN_KINDS, waste.launched_tokens)


def slot_table(waste: Waste) -> Table:
    """Slot-steps (slots × steps) by the state of the slot."""
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
    """The waste of slots and of tokens in one sentence; "" where nothing was launched."""
    if not waste.slot_steps or not waste.launched_tokens:
        return ""
    lost = waste.dead_slot_steps + waste.idle_slot_steps
    parts = [
        f"{count:,} {state}"
        for count, state in (
            (waste.dead_slot_steps, "dead (a finished request kept in its static batch)"),
            (waste.idle_slot_steps, "idle"),
        )
        if count
    ]
    slots = f"{lost:,} of {waste.slot_steps:,} slot-steps were wasted"
    slots = f"{slots} ({lost / waste.slot_steps:.0%})" if lost else "no slot-step was wasted"
    wasted = waste.launched_tokens - waste.useful_tokens
    kinds = (
        (waste.dead_row_tokens, "dead rows"),
        (waste.prompt_padding_tokens, "prompt padding"),
        (waste.bucket_padding_tokens, "bucket padding"),
        (waste.recomputed_tokens, "recomputed"),
        (waste.discarded_tokens, "discarded"),
    )
    tokens = f"{wasted:,} of {waste.launched_tokens:,} launched tokens were wasted"
    tokens = f"{tokens} ({wasted / waste.launched_tokens:.0%})" if wasted else "no launched token was wasted"
    detail = ", ".join(f"{count:,} {name}" for count, name in kinds if count)
    return f"{slots}{': ' + ', '.join(parts) if parts else ''}; {tokens}{': ' + detail if detail else ''}."
