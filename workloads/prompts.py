"""Token ids of prompts. They are not part of the plan, so text can change between runs while the requests stay equal.

If a file has the prompts (prompt_texts.py), their ids are what the tokenizer made of them, whatever the seed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.plan import RequestPlan

# A text's random stream has the key (kind, id); the text of a single request has its index alone.
_SESSION = 1
_PREFIX = 2
_BLOCK = 3


class Prompts:
    """Random ordinary token ids, a function of prompt_seed and of the plan's sessions and prefixes.

    prompt = [ the prefix ] [ the session's text, or the request's own ], or the texts of its blocks

    So a longer prompt of the same request begins with the shorter one, a turn begins with the turns before it, and
    texts that no session or prefix shares are equal only by chance.
    """

    def __init__(self, plan: RequestPlan, token_ids: NDArray[np.int32], prompt_seed: int = 0) -> None:
        """token_ids: the ids a prompt may use, without special tokens. Raises ValueError."""
        if not 0 < len(token_ids) < 2**32:
            raise ValueError(f"prompts need between 1 and 2**32 - 1 token ids to choose from, got {len(token_ids)}")
        if prompt_seed < 0:
            raise ValueError(f"prompt_seed must be 0 or more, got {prompt_seed}")
        self._plan = plan
        self._token_ids = np.ascontiguousarray(token_ids, dtype=np.int32)
        self._prompt_seed = prompt_seed

    def ids(self, index: int) -> NDArray[np.int32]:
        """int32[prompt_tokens of request `index`]. Raises ValueError if the plan's texts were not tokenised."""
        plan = self._plan
        if plan.texts is not None:
            return plan.texts.tokens(index)
        count, session, prefix = int(plan.prompt_tokens[index]), int(plan.session[index]), int(plan.prefix[index])
        if plan.blocks is not None:
            return self._of_blocks(plan.blocks.of_prompt(index).tolist(), plan.blocks.block_tokens, index, count)
        text = (_SESSION, session) if session >= 0 else (index,)
        if prefix < 0:
            return self._text(text, count)
        shared = min(plan.prefix_tokens[prefix], count)
        return np.concatenate([self._text((_PREFIX, prefix), shared), self._text(text, count - shared)])

    def _of_blocks(self, ids: list[int], block_tokens: int, index: int, count: int) -> NDArray[np.int32]:
        """The blocks' texts, the last one cut where the prompt ends; tokens without a block are the request's own."""
        ids = ids[: -(-count // block_tokens)]
        texts = [self._text((_BLOCK, one), min(block_tokens, count - at * block_tokens)) for at, one in enumerate(ids)]
        own = count - block_tokens * len(ids)
        return np.concatenate([*texts, self._text((index,), own)]) if own > 0 else np.concatenate(texts)

    def _text(self, key: tuple[int, ...], count: int) -> NDArray[np.int32]:
        """The first `count` tokens of one text."""
        bits = np.random.PCG64(np.random.SeedSequence(self._prompt_seed, spawn_key=key))
        # Two 32-bit draws from each 64-bit one, low half first; (draw * n) >> 32 spreads a draw over n ids without the
        # division of a remainder.
        halves = bits.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]
        choice = (halves.astype(np.uint64) * np.uint64(len(self._token_ids))) >> np.uint64(32)
        return self._token_ids[choice.astype(np.intp)]
