"""The oracle: paged attention one row at a time, in float32, written to be read."""

from __future__ import annotations

from functools import partial

import torch

from engines.reference.kernels import Attend, Upload
from engines.scheduling.plan import IntArray, Tables


def paged_attention(
    q: torch.Tensor, kv: torch.Tensor, tables: Tables, lengths: IntArray, starts: IntArray
) -> torch.Tensor:
    """q: [queries, heads, head_dim]; kv: [blocks, 2, kv_heads, block_size, head_dim], one layer of the pool;
    tables: [rows, blocks]; lengths: [rows], each >= 1; starts: [rows + 1]. Returns the shape of q.
    """
    out = torch.empty(q.shape, dtype=q.dtype)
    group = q.shape[1] // kv.shape[2]
    for row, length in enumerate(lengths.tolist()):
        first, last = int(starts[row]), int(starts[row + 1])
        blocks = torch.from_numpy(tables[row]).long()
        keys, values = (kv[blocks, which].transpose(1, 2).flatten(0, 1)[:length].float() for which in (0, 1))
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[first:last].float(), keys) * q.shape[-1] ** -0.5
        position = (length - (last - first) + torch.arange(last - first)).clamp(min=0)
        scores.masked_fill_(torch.arange(length) > position[:, None], float("-inf"))
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values).to(q.dtype)
    return out


def prepare(
    tables: Tables, lengths: IntArray, starts: IntArray, kv: torch.Tensor, upload: Upload = torch.from_numpy
) -> Attend:
    return partial(paged_attention, tables=tables, lengths=lengths, starts=starts)
