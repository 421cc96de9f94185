"""Paged attention by Triton: rows of one query by `triton_decode`, the longer rows behind them by `triton_prefill`."""

from __future__ import annotations

import numpy as np
import torch

from engines.reference.batch import reached, rows_of_one
from engines.reference.kernels import Upload
from engines.reference.kernels.triton_decode import SPLIT, DecodeSplits, decode_attention, plan_splits
from engines.reference.kernels.triton_prefill import prefill_attention
from engines.scheduling.plan import IntArray, Tables

HEAD_SIZES = (16, 32, 64, 128)
LARGEST_GROUP = 32


def why_not(heads: int, kv_heads: int, head_dim: int) -> str:
    """Why these kernels cannot tile a model's heads; "" where they can."""
    if head_dim in HEAD_SIZES and heads // kv_heads <= LARGEST_GROUP:
        return ""
    return (
        f"this model has {heads} heads of {head_dim} numbers and {kv_heads} KV heads; the Triton kernels take "
        f"head sizes {', '.join(map(str, HEAD_SIZES))} and up to {LARGEST_GROUP} heads per KV head"
    )


class EagerStep:
    """Attention of one step of any mix. A captured graph calls the kernels on buffers of its own."""

    def __init__(
        self,
        tables: Tables,
        lengths: IntArray,
        starts: IntArray,
        block_size: int,
        upload: Upload,
        usual_rows: int = 1,
    ) -> None:
        """usual_rows: least rows of the scratch, whose size is a compile-time constant: fixed, it avoids compiling."""
        # A row of one query after longer rows is computed as a chunk of length 1: slower, but correct.
        self._decodes = n = rows_of_one(starts)
        self._chunks = len(lengths) - n
        self._rows = max(n, usual_rows)
        self._items = int((-(-lengths[:n] // SPLIT)).sum())
        self._splits: DecodeSplits | None = None  # allocated by the first layer, used by all
        tables = reached(tables, lengths, block_size)
        # Two uploads: a slice of one buffer may not be aligned, for which Triton compiles another kernel.
        if n:
            self._tables, self._lengths = upload(tables[:n]), upload(lengths[:n].astype(np.int32))
        if self._chunks:
            self._chunk_tables, self._chunk_lengths = upload(tables[n:]), upload(lengths[n:].astype(np.int32))
            self._starts = upload((starts[n:] - n).astype(np.int32))

    def __call__(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        n = self._decodes
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if n:
            if self._splits is None:
                self._splits = DecodeSplits(self._rows, max(self._items, self._rows), *q.shape[1:], q.device)
                plan_splits(self._splits, self._lengths)
            decode_attention(q[:n], kv, self._tables, self._lengths, self._splits, out[:n])
        if self._chunks:
            prefill_attention(q[n:], kv, self._chunk_tables, self._chunk_lengths, self._starts, out[n:])
        return out
