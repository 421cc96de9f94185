"""The next token of each row: greedy, or drawn with temperature, top-k and top-p.

A draw turns one uniform number into a token by inverting the cumulative distribution. The number depends on the
request's seed and the output's index alone, so neither other rows of the batch nor a preemption change a request's
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.scheduling.plan import IntArray
from engines.scheduling.request import Sampling

COLUMNS = 5
OUTPUT_INDEX = 4
_MASK = (1 << 64) - 1
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def columns(samplings: Sequence[Sampling], output_indices: Sequence[int]) -> IntArray:
    """int64[5, rows]: temperature and top-p (the bits of a float64), top-k, seed (modulo 2**64), output index."""
    out = np.empty((COLUMNS, len(samplings)), dtype=np.int64)
    floats = out[:2].view(np.float64)
    floats[0] = [s.temperature for s in samplings]
    floats[1] = [s.top_p for s in samplings]
    out[2] = [s.top_k for s in samplings]
    out[3].view(np.uint64)[:] = [s.seed & _MASK for s in samplings]
    out[OUTPUT_INDEX] = output_indices
    return out


def sample(logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """logits: [rows, vocab]; columns: int64[5, >= rows], as `columns` makes them; out: int64[rows], which is returned.

    Only rows with a temperature cost a draw.
    """
    # max, not argmax: the same first maximum, but argmax is four times slower in bfloat16 on a CPU.
    out.copy_(logits.max(dim=-1).indices)
    if not columns[0].any():  # the bits of 0.0
        return out
    table = columns[:, : len(out)].cpu().numpy()
    temperature, top_p = table[:2].view(np.float64)
    drawn = temperature > 0
    top_k, seed, index = table[2:]
    cut = (top_k > 0) | (top_p < 1.0)
    for filtered in (False, True):
        rows = np.flatnonzero(drawn & (cut == filtered))
        if len(rows):
            at = torch.from_numpy(rows).to(logits.device)
            draws = uniforms(seed[rows], index[rows])
            out[at] = _draw(logits[at], temperature[rows], (top_k[rows], top_p[rows]) if filtered else None, draws)
    return out


def uniforms(seeds: IntArray, indices: IntArray) -> NDArray[np.float64]:
    """A number in [0, 1) with 52 random bits for each (seed, output index): Philox, with the seed as its key."""
    key, count = seeds.view(np.uint64), indices.view(np.uint64)
    nothing = np.zeros_like(key)
    high, low, *_ = philox((count & _LOW, count >> _HALF, nothing, nothing), (key & _LOW, key >> _HALF))
    return ((high << _HALF | low) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def philox(counter: Sequence[NDArray[np.uint64]], key: Sequence[NDArray[np.uint64]]) -> list[NDArray[np.uint64]]:
    """Philox4x32-10: four random words of 32 bits, each in a uint64, for a counter of four and a key of two.

    Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        even, odd = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (odd >> _HALF) ^ b ^ left, odd & _LOW, (even >> _HALF) ^ d ^ right, even & _LOW
        left, right = (left + np.uint64(0x9E3779B9)) & _LOW, (right + np.uint64(0xBB67AE85)) & _LOW
    return [a, b, c, d]


def _draw(
    logits: torch.Tensor,
    temperature: NDArray[np.float64],
    kept: tuple[IntArray, NDArray[np.float64]] | None,
    draws: NDArray[np.float64],
) -> torch.Tensor:
    """logits: [rows, vocab] -> int64[rows]; kept: (top-k, top-p) of each row, where they cut anything"""

    def column(values: NDArray[Any]) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    weights = (logits.double() / column(temperature)).softmax(dim=-1)
    ids = None
    if kept is not None:
        top_k, top_p = kept
        weights, ids = weights.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(weights.shape[-1], device=logits.device)
        before = weights.cumsum(dim=-1) - weights  # mass of the likelier tokens
        likely = (rank < column(np.where(top_k > 0, top_k, weights.shape[-1]))) & (
            (before < column(top_p)) | (rank == 0)
        )
        weights = weights * likely
    cumulative = weights.cumsum(dim=-1)
    # right=True: the first token whose cumulative weight exceeds the target, so never one of weight 0.
    chosen = torch.searchsorted(cumulative, column(draws) * cumulative[:, -1:], right=True)
    chosen = chosen.clamp(max=weights.shape[-1] - 1)
    return (chosen if ids is None else ids.gather(-1, chosen)).squeeze(-1)
