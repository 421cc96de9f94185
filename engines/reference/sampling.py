"""The next token of each row: greedy, or drawn with temperature, top-k and top-p.

A draw turns one uniform number into a token by inverting the cumulative distribution. The number depends on the
request's seed and the output's index alone, so neither the neighbours in the batch nor a preemption change a request's
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.scheduling.request import Sampling

_MASK = (1 << 64) - 1


def next_tokens(logits: torch.Tensor, samplings: Sequence[Sampling], output_indices: Sequence[int]) -> torch.Tensor:
    """logits: [rows, vocab]. Returns int64[rows] on the same device. Only rows with a temperature pay for a draw."""
    # max, not argmax: the same first maximum, but argmax is four times slower in bfloat16 on a CPU.
    tokens = logits.max(dim=-1).indices
    for filtered in (False, True):
        rows = [r for r, s in enumerate(samplings) if s.temperature > 0 and (s.top_k > 0 or s.top_p < 1.0) == filtered]
        if rows:
            index = torch.tensor(rows, device=logits.device)
            wanted = [samplings[r] for r in rows]
            draws = [uniform(samplings[r].seed, output_indices[r]) for r in rows]
            tokens[index] = _draw(logits[index], wanted, draws, filtered)
    return tokens


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 52 random bits: splitmix64's finaliser over the seed, then over (seed's hash, index).

    Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    return (_mix(_mix(seed) ^ (index & _MASK)) >> 12) * 2.0**-52


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _draw(logits: torch.Tensor, samplings: Sequence[Sampling], draws: Sequence[float], filtered: bool) -> torch.Tensor:
    """logits: [rows, vocab] -> int64[rows]"""

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    weights = (logits.double() / column([s.temperature for s in samplings])).softmax(dim=-1)
    ids = None
    if filtered:
        weights, ids = weights.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(weights.shape[-1], device=logits.device)
        before = weights.cumsum(dim=-1) - weights  # mass of the likelier tokens
        kept = (rank < column([s.top_k or weights.shape[-1] for s in samplings])) & (
            (before < column([s.top_p for s in samplings])) | (rank == 0)
        )
        weights = weights * kept
    cumulative = weights.cumsum(dim=-1)
    # right=True: the first token whose cumulative weight exceeds the target, so never one of weight 0.
    chosen = torch.searchsorted(cumulative, column(draws) * cumulative[:, -1:], right=True)
    chosen = chosen.clamp(max=weights.shape[-1] - 1)
    return (chosen if ids is None else ids.gather(-1, chosen)).squeeze(-1)
