"""MixedGraphs: steps with a prompt, replayed from CUDA graphs, one per number of tokens.

Launched kernel by kernel, such a step costs the host longer than it costs the device for a small model.

    tokens of the step   d d d c c c c c c . .      bucket: the smallest captured size that holds them
    decode rows          r r r · · ·                row r is token r; from n on their length is 0, and they read nothing
    chunks               |- n -|a a a|b b b|        at chunk_starts[i] .. chunk_starts[i + 1]; the others are empty
    samples              s s · · · ·                which tokens; the others' token goes to an entry that no slot uses

A padding token (.) belongs to no row, so it attends to nothing, and its KV goes to the dummy block. Only the number of
tokens is in a graph's shape: rows and samples have room for every slot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from engines.reference import sampling
from engines.reference.batch import Batch, reached
from engines.reference.columns import Columns
from engines.reference.device import Device
from engines.reference.graphs import Packed, table_columns
from engines.reference.kernels import Kernels, MixedRows
from engines.reference.kv_pool import KVPool
from engines.reference.model.llama import Llama, Tokens
from engines.reference.staging import Send
from engines.scheduling.plan import Tables

LARGEST = 1024  # tokens; beyond it the device takes longer for a step than the host for its launches


def mixed_sizes(max_num_batched_tokens: int) -> tuple[int, ...]:
    """Ascending: steps of 16 to 256, then eight a doubling, so that little of a step is padding; always the largest."""
    most = min(max_num_batched_tokens, LARGEST)
    sizes = (*range(16, 256, 16), *range(256, 512, 32), *range(512, LARGEST, 64))
    return (*(size for size in sizes if size < most), most)


class MixedGraphs:
    def __init__(
        self,
        llama: Llama,
        pool: KVPool,
        kernels: Kernels,
        device: Device,
        last_token: torch.Tensor,
        *,
        max_blocks: int,
        sizes: Sequence[int],
    ) -> None:
        """Captures a graph per size. last_token: [slots + 1], the last for no sample; max_blocks: of a row."""
        self._llama, self._pool, self._kernels, self._device = llama, pool, kernels, device
        self._last_token = last_token
        self._sizes = sorted(sizes)
        self._rows = rows = len(last_token) - 1
        on = pool.layers.device
        self._tables = torch.zeros(2 * rows, table_columns(max_blocks), dtype=torch.int32, device=on)
        self._inputs = {size: _inputs(size, rows) for size in self._sizes}
        self._inputs_bytes = self._inputs[self._sizes[-1]].nbytes
        self._arrived = torch.zeros(self._inputs_bytes + self._tables.nbytes, dtype=torch.uint8, device=on)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=on)
        self._attention = kernels.static_mixed(rows, self._tables.shape[1], pool, llama.config.heads)
        # Large to small: later captures reuse the memory of the first.
        self._graphs = {size: device.capture(partial(self._step, size)) for size in reversed(self._sizes)}

    def pack(self, batch: Batch) -> Packed | None:
        """The host's part of a step; None where no graph holds the step."""
        tokens = len(batch.ids)
        decodes = batch.decode_rows
        chunks = len(batch.lengths) - decodes
        if tokens > self._sizes[-1] or max(decodes, chunks, len(batch.sampled)) > self._rows:
            return None
        size = self._sizes[bisect_left(self._sizes, tokens)]
        inputs = self._inputs[size]
        tables = reached(batch.tables, batch.lengths, self._pool.block_size)
        packed = np.zeros(inputs.nbytes + tables.nbytes, dtype=np.uint8)
        packed[inputs.nbytes :].view(np.int32).reshape(tables.shape)[:] = tables
        columns = inputs.on_host(packed)
        columns["ids"][:tokens] = batch.ids
        columns["positions"][:tokens] = batch.positions
        columns["slot_mapping"][:tokens] = batch.slot_mapping
        columns["decode_lengths"][:decodes] = batch.lengths[:decodes]
        columns["chunk_lengths"][:chunks] = batch.lengths[decodes:]
        columns["chunk_starts"][:] = tokens
        columns["chunk_starts"][: chunks + 1] = batch.starts[decodes:]
        columns["sampled"][: len(batch.sampled)] = batch.sampled
        columns["slots"][:] = len(self._last_token) - 1
        columns["slots"][: len(batch.sampled)] = batch.sample_slots
        columns["sampling"][:, : len(batch.sampled)] = batch.sampling
        launch = partial(self._launch, size, packed, tables, decodes, len(batch.sampled))
        return Packed(launch, slice(None), size - tokens)

    def _launch(
        self, size: int, packed: np.ndarray, tables: Tables, decodes: int, samples: int, send: Send
    ) -> torch.Tensor:
        """Queue the step. Returns the sampled tokens, on the device, valid until the next launch runs."""
        (rows, width), main = tables.shape, self._device.main
        arrived = send.now(packed, self._arrived[: len(packed)])
        own = arrived[len(packed) - tables.nbytes :].view(torch.int32).view(rows, width)
        decode_tables = self._tables[:decodes, :width]
        chunk_tables = self._tables[self._rows : self._rows + rows - decodes, :width]
        main.run(lambda: decode_tables.copy_(own[:decodes]))
        main.run(lambda: chunk_tables.copy_(own[decodes:]))
        main.run(self._graphs[size])
        return self._tokens[:samples]

    @torch.inference_mode()
    def _step(self, size: int) -> None:
        """The captured work: `size` tokens, from embedding to sampled tokens."""
        columns = self._inputs[size].on_device(self._arrived)
        rows = MixedRows(
            decode_tables=self._tables[: self._rows],
            decode_lengths=columns["decode_lengths"],
            chunk_tables=self._tables[self._rows :],
            chunk_lengths=columns["chunk_lengths"],
            chunk_starts=columns["chunk_starts"],
        )
        tokens = Tokens(
            ids=columns["ids"],
            positions=columns["positions"],
            slot_mapping=columns["slot_mapping"],
            attend=self._attention(rows),
            last_token=self._last_token,
        )
        hidden = self._llama.forward(tokens, self._pool, self._kernels)
        logits = self._llama.logits(hidden.index_select(0, columns["sampled"]), self._kernels)
        self._kernels.sample(logits, columns["sampling"], self._tokens)
        self._last_token.index_copy_(0, columns["slots"], self._tokens)


def _inputs(tokens: int, rows: int) -> Columns:
    return Columns(
        ids=((tokens,), np.int64),
        positions=((tokens,), np.int64),
        slot_mapping=((tokens,), np.int64),
        decode_lengths=((rows,), np.int64),
        chunk_lengths=((rows,), np.int32),
        chunk_starts=((rows + 1,), np.int32),
        sampled=((rows,), np.int64),
        slots=((rows,), np.int64),
        sampling=((sampling.COLUMNS, rows), np.int64),
    )
