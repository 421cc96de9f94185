"""TritonKernels: a step on a GPU, by paged split-KV attention and fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from engines.reference.kernels import Attend, MixedRows, Upload, triton_fused, triton_sampling
from engines.reference.kernels.triton_attention import EagerStep
from engines.reference.kernels.triton_decode import SHIPPED, SPLIT, DecodeSplits, Tuning, decode_attention, plan_splits
from engines.reference.kernels.triton_prefill import prefill_attention
from engines.reference.kv_pool import KVPool
from engines.reference.model.linear import Linear
from engines.scheduling.plan import IntArray, Tables


class TritonKernels:
    captures = True

    def __init__(self, max_num_seqs: int, *, early: bool = False) -> None:
        """max_num_seqs: the usual largest number of rows; more are computed correctly too. early: a layer's kernels
        start while the previous ones still end (compute capability 9.0)."""
        self._rows = max_num_seqs
        self._early = early
        self.name = "triton: paged kernels, split over KV" + (", launched early" if early else "")
        self._tuning = replace(SHIPPED, early=early)

    def prepare(
        self, tables: Tables, lengths: IntArray, starts: IntArray, kv: torch.Tensor, upload: Upload = torch.from_numpy
    ) -> Attend:
        return EagerStep(tables, lengths, starts, kv.shape[3], upload, self._rows)

    def static_decode(
        self, tables: torch.Tensor, lengths: torch.Tensor, pool: KVPool, heads: int
    ) -> Callable[[int], Attend]:
        splits = splits_for(*tables.shape, pool, heads)

        def step(n: int) -> Attend:
            plan_splits(splits, lengths[:n])
            return partial(_decode, tables=tables[:n], lengths=lengths[:n], splits=splits, tuning=self._tuning)

        return step

    def static_mixed(self, rows: int, blocks: int, pool: KVPool, heads: int) -> Callable[[MixedRows], Attend]:
        splits = splits_for(rows, blocks, pool, heads)

        def step(on: MixedRows) -> Attend:
            plan_splits(splits, on.decode_lengths)
            return partial(_mixed, rows=on, splits=splits, tuning=self._tuning)

        return step

    def kv_index(self, slot_mapping: torch.Tensor, pool: KVPool) -> torch.Tensor:
        return slot_mapping

    def embed(
        self,
        ids: torch.Tensor,
        last_token: torch.Tensor | None,
        embedding: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return triton_fused.embed(ids, last_token, embedding, weight, eps)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return triton_fused.rms_norm(x, weight, eps)

    def project_and_norm(
        self, linear: Linear, y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x, triton_fused.add_rms_norm(linear(y), x, weight, eps, early=self._early)

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor,
        kv_index: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        triton_fused.rope_and_write(qkv, kv, kv_index, cos, sin, q_norm, k_norm, eps, self._early)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return triton_fused.silu_mul(gate_up, early=self._early)

    def sample(self, logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return triton_sampling.sample(logits, columns, out)


def splits_for(rows: int, blocks: int, pool: KVPool, heads: int, split: int = SPLIT) -> DecodeSplits:
    """Room for all items of `rows` rows of up to `blocks` blocks each."""
    longest = -(-min(blocks, pool.blocks) * pool.block_size // split)
    in_pool = rows + pool.blocks * pool.block_size // split  # enough as long as rows share no blocks
    capacity = max(min(rows * longest, in_pool), rows)
    return DecodeSplits(rows, capacity, heads, pool.layers.shape[-1], pool.layers.device)


def _decode(
    q: torch.Tensor,
    kv: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    splits: DecodeSplits,
    tuning: Tuning,
) -> torch.Tensor:
    return decode_attention(q, kv, tables, lengths, splits, tuning=tuning)


def _mixed(q: torch.Tensor, kv: torch.Tensor, rows: MixedRows, splits: DecodeSplits, tuning: Tuning) -> torch.Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    n = min(len(q), len(rows.decode_lengths))
    decode = rows.decode_tables[:n], rows.decode_lengths[:n], splits, out[:n]
    decode_attention(q[:n], kv, *decode, tuning)  # writes 0 to what belongs to a chunk, before the chunk is computed
    return prefill_attention(q, kv, rows.chunk_tables, rows.chunk_lengths, rows.chunk_starts, out)
