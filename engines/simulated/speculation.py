"""SpeculationTerms: speculative decoding as acceptance times cost.

A step drafts K tokens for each row and verifies K + 1. If each is accepted with probability p, independently, the row
gains (1 - p^(K+1)) / (1 - p) tokens a step on average (Leviathan, Kalman and Matias, ICML 2023, equation 1). The
simulated step still gives each row one token, in the time of a step divided by that number: throughput and mean TPOT
are those of speculation, the single ITLs are evened out.
"""

from __future__ import annotations

import msgspec


class SpeculationTerms(msgspec.Struct, frozen=True, kw_only=True):
    draft_tokens: int  # K
    acceptance: float  # p
    draft_cost: float  # time to draft one token, as a share of a decode step of the same rows without its KV

    @property
    def tokens_per_step(self) -> float:
        """Of a row, on average: 1 + p + p² + ... + p^K, which is the formula above and has a value at p = 1."""
        total, power = 1.0, 1.0
        for _ in range(self.draft_tokens):
            power = power * self.acceptance
            total = total + power
        return total
