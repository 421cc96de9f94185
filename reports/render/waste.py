"""Where launched tokens and seats went, in tables that say what each kind of waste is."""

from __future__ import annotations

from reports.render.fitting import Table
from reports.render.words import share
from reports.summary_schema import Waste

WORDS = 20  # columns for what a kind is, or it is not said
TOKENS = (
    ("useful_tokens", "useful", "prompt and output tokens that a request wanted"),
    ("prompt_padding_tokens", "prompt padding", "shorter prompts filled up to the longest of their static batch"),
    ("bucket_padding_tokens", "bucket padding", "rows filled up to the next shape that can be launched"),
    ("dead_row_tokens", "dead rows", "finished requests computed until the longest of their batch ends"),
    ("recomputed_tokens", "recomputed", "KV that was lost to a preemption and computed again"),
    ("discarded_tokens", "discarded", "computed for a request that had ended already"),
)
SLOTS = (
    ("active_slot_steps", "active", "an unfinished request sat there"),
    ("dead_slot_steps", "dead", "a finished request was still launched with its batch"),
    ("idle_slot_steps", "idle", "nobody sat there, or a finished request held the seat"),
)


def token_table(waste: Waste) -> Table:
    """Launched tokens by what became of them; kinds that did not occur are left out."""
    return _breakdown("launched tokens", waste, TOKENS, waste.launched_tokens)


def slot_table(waste: Waste) -> Table:
    """Slot-steps (seats times steps) by who sat there."""
    return _breakdown("slot-steps", waste, SLOTS, waste.slot_steps)


def _breakdown(title: str, waste: Waste, kinds: tuple[tuple[str, str, str], ...], total: int) -> Table:
    table = Table(spare=[3], box=None, header_style="bold", pad_edge=False)
    table.add_column(title)
    table.add_column(f"{total:,}", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("", min_width=WORDS)
    for key, name, words in kinds:
        count: int = getattr(waste, key)
        if count:
            table.add_row(name, f"{count:,}", share(count / total), words)
    return table
