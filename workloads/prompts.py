"""Prompt content: token ids, apart from the plan, so that text can change between runs while the work asked stays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.plan import RequestPlan


class Prompts:
    """Random ordinary token ids, a function of (prompt_seed, request index) alone."""

    def __init__(self, plan: RequestPlan, token_ids: NDArray[np.int32], prompt_seed: int = 0) -> None:
        self._plan = plan
        self._token_ids = token_ids  # the ids a prompt may use (no special tokens)
        self._prompt_seed = prompt_seed

    def ids(self, index: int) -> NDArray[np.int32]:
        """int32[prompt_tokens of request `index`]"""
        rng = np.random.Generator(np.random.PCG64([self._prompt_seed, index]))
        raw = rng.bit_generator.random_raw(int(self._plan.prompt_tokens[index]))
        return self._token_ids[(raw % np.uint64(len(self._token_ids))).astype(np.int64)]
