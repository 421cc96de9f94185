"""Paged attention by Triton: rows of one query by `triton_decode`, the longer rows behind them by `triton_prefill`."""

from __future__ import annotations

import numpy as np
import torch

from engines.base import EngineError
from engines.reference.kernels import Attend
from engines.reference.kernels.triton_decode import SPLIT, DecodeSplits, decode_attention, plan_splits
from engines.reference.kernels.triton_prefill import prefill_attention
from engines.scheduling.plan import IntArray, Tables

HEAD_SIZES = (16, 32, 64, 128)
LARGEST_GROUP = 32


def require_shape(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raise EngineError (exit code 2) for a model whose heads these kernels cannot tile."""
    if head_dim not in HEAD_SIZES or heads // kv_heads > LARGEST_GROUP:
        raise EngineError(
            f"this model has {heads} heads of {head_dim} numbers and {kv_heads} KV heads; the Triton kernels take "
            f"head sizes {', '.join(map(str, HEAD_SIZES))} and up to {LARGEST_GROUP} heads per KV head "
            "(try --attention torch)"
        )


def prepare(tables: Tables, lengths: IntArray, starts: IntArray, kv: torch.Tensor) -> Attend:
    """For eager steps of any mix. A captured graph calls the kernels on buffers of its own."""
    return _Step(tables, lengths, starts, kv.device)


class _Step:
    def __init__(self, tables: Tables, lengths: IntArray, starts: IntArray, device: torch.device) -> None:
        # A row of one query further behind is a chunk of length 1: slower, and right.
        longer = np.flatnonzero(np.diff(starts) != 1)
        self._decodes = int(longer[0]) if len(longer) else len(lengths)
        self._items = int((-(-lengths[: self._decodes] // SPLIT)).sum())
        self._splits: DecodeSplits | None = None  # the first layer allocates it, for all

        def on_device(column: IntArray | Tables) -> torch.Tensor:
            return torch.from_numpy(column.astype(np.int32)).to(device)

        self._tables, self._lengths = on_device(tables), on_device(lengths)
        self._starts = on_device(starts[self._decodes :] - self._decodes)

    def __call__(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        n = self._decodes
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if n:
            if self._splits is None:
                self._splits = DecodeSplits(n, max(self._items, n), *q.shape[1:], q.device)
                plan_splits(self._splits, self._lengths[:n])
            decode_attention(q[:n], kv, self._tables[:n], self._lengths[:n], self._splits, out[:n])
        if n < len(self._lengths):
            prefill_attention(q[n:], kv, self._tables[n:], self._lengths[n:], self._starts, out[n:])
        return out
