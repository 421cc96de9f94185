"""The parts of a step that differ between backends, one `Kernels` each; `oracles` has them written to be read.

Every backend's attention computes the same thing. Row r has queries q[starts[r]:starts[r+1]], n of them, and its KV is
positions 0 .. lengths[r]-1 of the blocks tables[r]. Query j is at position max(lengths[r] - n + j, 0) and sees the
positions up to its own. Positions from lengths[r] on are never read, or have no effect.

What is the same in every layer of a step is prepared once: prepare(tables, lengths, starts, kv, upload)(q, kv) is
paged_attention(q, kv, tables, lengths, starts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray

from engines.scheduling.plan import IntArray, Tables

if TYPE_CHECKING:
    from engines.reference.kv_pool import KVPool
    from engines.reference.model.linear import Linear

Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (q, one layer of the pool) -> like q
Upload = Callable[[NDArray[Any]], torch.Tensor]  # an array's copy on the device, there when attention runs
PrepareAttention = Callable[[Tables, IntArray, IntArray, torch.Tensor, Upload], Attend]


class MixedRows(NamedTuple):
    """The rows of a step on buffers of fixed address: those of one query, then the longer ones. Tables: [rows, blocks]

    Row r of one query is token r; one of length 0 is none. Chunk i has the queries chunk_starts[i] up to
    chunk_starts[i + 1], none where the two are equal, and the first of them comes behind the rows of one query.
    """

    decode_tables: torch.Tensor  # int32
    decode_lengths: torch.Tensor  # int64[rows]
    chunk_tables: torch.Tensor  # int32
    chunk_lengths: torch.Tensor  # int32[rows]
    chunk_starts: torch.Tensor  # int32[rows + 1]


class Kernels(Protocol):
    """x: [tokens, d]; eps: of the norms; slot_mapping: index of a position in the pool, block * block_size + offset"""

    @property
    def name(self) -> str:
        """Their name in run.json."""
        ...

    @property
    def captures(self) -> bool:
        """Whether a step needs no work on the host, so that a CUDA graph can capture it."""
        ...

    @property
    def prepare(self) -> PrepareAttention:
        """Attention for steps of any mix: (tables, lengths, starts, a layer of the pool, upload)"""
        ...

    def static_decode(
        self, tables: torch.Tensor, lengths: torch.Tensor, pool: KVPool, heads: int
    ) -> Callable[[int], Attend]:
        """Attention for rows of one query, on buffers of fixed address: int32[rows, blocks] and int64[rows].

        The result, called with n, prepares a step of the first n rows from what the buffers hold when the step runs; a
        row of length 0 reads nothing and gives 0. Only where `captures`.
        """
        ...

    def static_mixed(self, rows: int, blocks: int, pool: KVPool, heads: int) -> Callable[[MixedRows], Attend]:
        """Attention for steps of up to `rows` rows of one query and as many chunks, of up to `blocks` blocks each.

        The result, called with buffers, prepares a step from what they hold when it runs; tokens of no row get any
        value. Only where `captures`.
        """
        ...

    def kv_index(self, slot_mapping: torch.Tensor, pool: KVPool) -> torch.Tensor:
        """Where `rope_and_write` writes the step's tokens, computed once a step. slot_mapping: int64[tokens]"""
        ...

    def embed(
        self,
        ids: torch.Tensor,
        last_token: torch.Tensor | None,
        embedding: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(the tokens' rows of the embedding, their norm), both [tokens, d].

        ids: int64[tokens]; below 0, where last_token is given: the last token of slot -1 - id;
        last_token: int64[slots + 1]
        """
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def project_and_norm(
        self, linear: Linear, y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x + linear(y), its norm). x may be overwritten."""
        ...

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
        """Norm (where the model has it) and rotate q in place; write the rotated k, and v, into a layer of the pool.

        qkv: [tokens, heads + 2 kv_heads, head_dim], of which k may be overwritten;
        cos, sin: [tokens, 1, head_dim / 2]
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[tokens, 2 f] -> [tokens, f]: silu(first half) * second half"""
        ...

    def sample(self, logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """logits: [rows, vocab]; columns: int64[5, >= rows] by engines.reference.sampling.columns; out: int64[rows]"""
        ...
