"""PartialPrefills: how many prompts may be partly computed at a time.

With chunks of a fixed size several prompts advance side by side, and each of them holds KV while it is not yet of use.
Long ones can be limited by themselves, so that shorter prompts behind them are computed first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engines.scheduling.plan import IntArray
from engines.scheduling.slots import Slots

NO_LIMIT = 1 << 62


class Partial(NamedTuple):
    """Prompts that a step leaves partly computed."""

    prompts: int = 0
    long: int = 0  # of these


NONE_PARTIAL = Partial()


@dataclass(frozen=True, slots=True)
class PartialPrefills:
    most: int = NO_LIMIT
    most_long: int = NO_LIMIT
    long_above: int = NO_LIMIT  # tokens: a prompt of more is long

    @property
    def limited(self) -> bool:
        return self.most < NO_LIMIT or self.most_long < NO_LIMIT

    def left_by(self, order: IntArray, counts: IntArray, slots: Slots) -> Partial:
        """Those of a step in which the slots `order` compute `counts` tokens. A decode is none of them."""
        left = np.minimum(slots.known[order], slots.kv_limit[order]) - slots.computed[order]
        unfinished = order[(left > np.maximum(counts, 1)) & slots.active[order]]
        return Partial(len(unfinished), int(np.count_nonzero(slots.prompt[unfinished] > self.long_above)))

    def admits(self, prompt_tokens: int, partial: Partial) -> bool:
        """Whether one more may be left partly computed."""
        return not self.full(partial) and not (self.is_long(prompt_tokens) and partial.long >= self.most_long)

    def full(self, partial: Partial) -> bool:
        """Whether no prompt may be left partly computed beside these, of whatever length."""
        return partial.prompts >= self.most

    def is_long(self, prompt_tokens: int) -> bool:
        return prompt_tokens > self.long_above

    def beside(self, prompt_tokens: int, partial: Partial) -> Partial:
        """With one more."""
        return Partial(partial.prompts + 1, partial.long + self.is_long(prompt_tokens))
