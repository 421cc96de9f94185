"""A decode step as the runtime's graphs hold it, whole and in parts.

A part runs alone: on every layer's own weights and KV, so that they do not stay in a cache, and on activations of fixed
address, which are in the cache in a whole step too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from engines.reference import sampling
from engines.reference.batch import reached
from engines.reference.kernels import Attend, Kernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.llama import Llama, Tokens
from engines.scheduling.request import Sampling

Work = Callable[[], object]


@dataclass(frozen=True)
class Part:
    """A part with a floor has the name of an operator of benchmarks.gpu.floor."""

    name: str
    works: Sequence[Work]  # what a step does of it, in order


class DecodeStep:
    def __init__(self, llama: Llama, pool: KVPool, kernels: Kernels, *, rows: int, context: int) -> None:
        """Rows of one query each, at position `context`, in consecutive blocks; greedy."""
        self._llama, self._pool, self._kernels, self._rows = llama, pool, kernels, rows
        on, size = llama.device, pool.block_size
        self._tables = tables_of(rows, context + 1, size)
        self._lengths = np.full(rows, context + 1)
        slots = self._tables[:, context // size].astype(np.int64) * size + context % size
        columns = sampling.columns([Sampling()] * rows, range(rows))
        self._positions, self._slot_mapping, self._slots, self._columns = (
            torch.from_numpy(array).to(on) for array in (np.full(rows, context), slots, np.arange(rows), columns)
        )
        self._ids = -1 - self._slots  # the token that was sampled for it last
        self._last_token = torch.arange(rows + 1, device=on) % llama.config.vocab
        self._sampled = torch.zeros(rows, dtype=torch.int64, device=on)
        self._on_device = [torch.from_numpy(column).to(on) for column in (self._tables, self._lengths)]
        self._static = kernels.static_decode(*self._on_device, pool, llama.config.heads) if kernels.captures else None

    def whole(self) -> torch.Tensor:
        """The logits, for a comparison."""
        tokens = Tokens(self._ids, self._positions, self._slot_mapping, self._prepared(), self._last_token)
        hidden = self._llama.forward(tokens, self._pool, self._kernels)
        logits = self._llama.logits(hidden, self._kernels)
        self._sample(logits)
        return logits

    def _prepared(self) -> Attend:
        if self._static is not None:
            return self._static(self._rows)
        starts = np.arange(self._rows + 1)
        return self._kernels.prepare(self._tables, self._lengths, starts, self._pool.layers[0], torch.from_numpy)

    def _sample(self, logits: torch.Tensor) -> None:
        self._kernels.sample(logits, self._columns, self._sampled)
        self._last_token.index_copy_(0, self._slots, self._sampled)

    def parts(self) -> list[Part]:
        """All of `whole`, each part as often as it occurs."""
        llama, pool, kernels, c = self._llama, self._pool, self._kernels, self._llama.config
        x, normed = self._random(c.d_model), self._random(c.d_model)
        qkv = self._random(c.heads + 2 * c.kv_heads, c.head_dim)
        attended, gate_up, gated = self._random(c.heads * c.head_dim), self._random(2 * c.ffn), self._random(c.ffn)
        logits = self._random(c.vocab)
        cos, sin = llama.rotation(self._positions)
        kv_index = kernels.kv_index(self._slot_mapping, pool)
        norms = [*(layer.attention_norm for layer in llama.layers[1:]), None]

        def rope(layer: int) -> None:
            own = llama.layers[layer]
            kernels.rope_and_write(qkv, pool.layers[layer], kv_index, cos, sin, own.q_norm, own.k_norm, c.eps)

        def o(layer: int) -> None:
            own = llama.layers[layer]
            kernels.project_and_norm(own.o, attended, x, own.mlp_norm, c.eps)

        def down(layer: int) -> None:
            if (norm := norms[layer]) is None:
                llama.layers[layer].down(gated, residual=x)
            else:
                kernels.project_and_norm(llama.layers[layer].down, gated, x, norm, c.eps)

        def each(work: Callable[[int], object]) -> list[Work]:
            return [partial(work, layer) for layer in range(c.layers)]

        embed = (self._ids, self._last_token, llama.embedding, llama.layers[0].attention_norm, c.eps)
        return [
            Part("embedding", [partial(kernels.embed, *embed)]),
            Part("rotation", [lambda: (llama.rotation(self._positions), kernels.kv_index(self._slot_mapping, pool))]),
            Part("norm", [partial(kernels.rms_norm, x, llama.norm, c.eps)]),
            Part("qkv", each(lambda layer: llama.layers[layer].qkv(normed))),
            Part("rope", each(rope)),
            *self._attention(qkv[:, : c.heads]),
            Part("o", each(o)),
            Part("gate_up", each(lambda layer: llama.layers[layer].gate_up(normed))),
            Part("silu", [partial(kernels.silu_mul, gate_up)] * c.layers),
            Part("down", each(down)),
            Part("head", [lambda: llama.head(normed)]),
            Part("sampling", [lambda: self._sample(logits)]),
        ]

    def _attention(self, q: torch.Tensor) -> list[Part]:
        """With Triton's kernels, attention and merge separately."""
        layers = self._pool.layers
        if self._static is None:
            attend = self._prepared()
            return [Part("plan", [self._prepared]), Part("attention", [partial(attend, q, kv) for kv in layers])]
        from engines.reference.kernels import triton_decode
        from engines.reference.kernels.triton_kernels import splits_for

        (tables, lengths), out = self._on_device, torch.empty(q.shape, dtype=q.dtype, device=q.device)
        splits = splits_for(*tables.shape, self._pool, q.shape[1])
        triton_decode.plan_splits(splits, lengths)
        attend = partial(triton_decode.attend, q, tables=tables, lengths=lengths, splits=splits, out=out)
        return [
            Part("plan", [partial(self._static, self._rows)]),
            Part("attention", [partial(attend, kv=kv) for kv in layers]),
            Part("merge", [partial(triton_decode.merge, splits, out)] * len(layers)),
        ]

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(self._rows, *shape, dtype=self._llama.dtype, device=self._llama.device)


def tables_of(rows: int, tokens: int, block_size: int) -> np.ndarray:
    """int32[rows, blocks]: rows of consecutive blocks, as a scheduler allocates them at first."""
    each = -(-tokens // block_size)
    tables = 1 + np.arange(rows * each, dtype=np.int32).reshape(rows, each)
    return reached(tables, np.full(rows, tokens), block_size)
