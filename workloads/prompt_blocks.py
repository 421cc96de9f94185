"""Blocks of content that the prompts of a trace share: Mooncake's `hash_ids`, and those of dynamo and aiperf.

A prompt is its blocks in order, each `block_tokens` long but the last; equal ids are equal tokens. So two prompts share
just what the traced ones did, on every engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.columns import IntColumn

SIZES = (512, 256, 128, 64, 32, 16, 8, 1024, 2048, 4096)  # Mooncake's first
_FITTING = 0.99  # share of the prompts that must have as many blocks as their tokens fill


@dataclass(frozen=True, eq=False)
class PromptBlocks:
    """block_tokens  tokens of a block
    ids           int64[blocks of all prompts]; equal ids are equal tokens
    starts        int64[prompts + 1]: prompt i has ids[starts[i]:starts[i + 1]]
    """

    block_tokens: int
    ids: IntColumn
    starts: IntColumn

    @staticmethod
    def of(
        names: Sequence[Sequence[Hashable]], prompt_tokens: IntColumn, block_tokens: int | None
    ) -> PromptBlocks | None:
        """Blocks by the names that a trace gives them; None if no block size fits the prompts' lengths."""
        counts = np.fromiter(map(len, names), dtype=np.int64, count=len(names))
        if block_tokens is None:
            block_tokens = _size(prompt_tokens, counts)
        if block_tokens is None:
            return None
        known: dict[Hashable, int] = {}
        numbered = (known.setdefault(one, len(known)) for each in names for one in each)
        ids = np.fromiter(numbered, dtype=np.int64, count=int(counts.sum()))
        return PromptBlocks(block_tokens, ids, np.concatenate(([0], np.cumsum(counts))))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of_prompt(self, index: int) -> IntColumn:
        return self.ids[self.starts[index] : self.starts[index + 1]]

    def rows(self, rows: NDArray[np.intp]) -> PromptBlocks:
        """The blocks of these prompts, in this order."""
        counts = np.diff(self.starts)[rows]
        starts = np.concatenate(([0], np.cumsum(counts)))
        at = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], counts)
        return PromptBlocks(self.block_tokens, self.ids[at], starts)

    def reusable_tokens(self, prompt_tokens: IntColumn) -> IntColumn:
        """int64[prompts]: tokens at the beginning of each that an earlier one had, all kept by an infinite cache."""
        seen: set[int] = set()
        shared = np.zeros(len(self), dtype=np.int64)
        for index, ids in enumerate(np.split(self.ids, self.starts[1:-1])):
            blocks = ids.tolist()
            shared[index] = next((at for at, one in enumerate(blocks) if one not in seen), len(blocks))
            seen.update(blocks)
        return np.minimum(shared * self.block_tokens, prompt_tokens)


def _size(prompt_tokens: IntColumn, counts: IntColumn) -> int | None:
    """The block size by which nearly all prompts have the blocks that their tokens fill, the last one in part or not
    counted."""
    for filled in (0, 1):
        for size in SIZES:
            wanted = (prompt_tokens + (0 if filled else size - 1)) // size
            if float((wanted == counts).mean()) >= _FITTING:
                return size
    return None
