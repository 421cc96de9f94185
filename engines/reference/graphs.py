"""DecodeGraphs: steps in which every row is one token, replayed from CUDA graphs, one per batch size.

    rows of the step     1 2 3 ...  max_num_seqs          bucket: the smallest captured size that holds them
    bucket of 4          r r r p                          p: padding row

A padding row has length 0, so it attends to nothing; its KV goes to the dummy block and its token to an entry that no
slot uses. A graph reads and writes the addresses it was captured with. So a step's columns are copied to them in one
copy, queued after the previous replay and before this one.

    arrived    | inputs | tables, as wide as this step needs |
                             └─► tables, of the greatest width
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from engines.reference import sampling
from engines.reference.batch import Batch, reached
from engines.reference.device import Device
from engines.reference.kernels import Kernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.llama import Llama, Tokens
from engines.reference.staging import Send
from engines.scheduling.plan import IntArray
from workloads.errors import CbbenchError

IDS, POSITIONS, SLOT_MAPPING, LENGTHS, SLOTS, SAMPLING = range(6)  # rows of `inputs`; SAMPLING and those after it


def choose_sizes(
    wanted: bool | None, kernels: Kernels, device: torch.device, max_num_seqs: int
) -> tuple[tuple[int, ...], str]:
    """(captured batch sizes, the reason for run.json). wanted: None means graphs where possible. CbbenchError."""
    if device.type != "cuda":
        reason = f"they need a GPU, and the device is {device.type}"
    elif not kernels.captures:
        reason = f"{kernels.name.split()[0].rstrip(':')} plans each step on the host; attention triton does not"
    else:
        sizes = bucket_sizes(max_num_seqs)
        return ((), "off: asked for") if wanted is False else (sizes, f"on, for up to {max_num_seqs} rows")
    if wanted:
        raise CbbenchError("cuda_graphs", reason)
    return (), f"off: {reason}"


def bucket_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Ascending: 1, 2, 4, steps of 8 to 256, then of 32; always 1 and max_num_seqs."""
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 32)}
    return (*sorted(size for size in sizes if size < max_num_seqs), max_num_seqs)


def table_columns(max_blocks: int) -> int:
    """Columns of the tables that graphs hold: rows begin at multiples of 64 bytes, for which Triton compiles."""
    return -(-max_blocks // 16) * 16


@dataclass(frozen=True, slots=True)
class Packed:
    """A step that a graph holds, with its columns as the graph reads them, still on the host."""

    launch: Callable[[Send], torch.Tensor]  # queues it; its tokens are on the device until the next launch runs
    of_samples: IntArray | slice  # which of these tokens were sampled, in row order
    bucket_padding: int  # tokens


class DecodeGraphs:
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
        """Captures a graph per size. last_token: [slots + 1], the last for padding rows; max_blocks: of a row."""
        self._llama, self._pool, self._kernels, self._device = llama, pool, kernels, device
        self._last_token = last_token
        self._sizes = sorted(sizes)
        self._rows = self._sizes[-1]
        pitch = -(-self._rows // 2) * 2  # aligns every column to 16 bytes, for which Triton compiles faster code
        on = pool.layers.device
        self._tables = torch.zeros(self._rows, table_columns(max_blocks), dtype=torch.int32, device=on)
        shape = (SAMPLING + sampling.COLUMNS, pitch)
        self._inputs_bytes = math.prod(shape) * torch.int64.itemsize
        self._arrived = torch.zeros(self._inputs_bytes + self._tables.nbytes, dtype=torch.uint8, device=on)
        self._inputs = self._arrived[: self._inputs_bytes].view(torch.int64).view(shape)
        self._inputs[SLOTS] = len(last_token) - 1
        self.tokens = torch.zeros(self._rows, dtype=torch.int64, device=on)
        lengths = self._inputs[LENGTHS, : self._rows]
        self._attention = kernels.static_decode(self._tables, lengths, pool, llama.config.heads)
        # Large to small: later captures reuse the memory of the first.
        self._graphs = {size: device.capture(partial(self._step, size)) for size in reversed(self._sizes)}

    def pack(self, batch: Batch) -> Packed | None:
        """The host's part of a step; None where no graph holds the step."""
        rows = len(batch.ids)
        if not batch.all_single or rows > self._rows:
            return None
        tables = reached(batch.tables, batch.lengths, self._pool.block_size)
        columns = np.zeros(self._inputs_bytes + tables.nbytes, dtype=np.uint8)
        inputs = columns[: self._inputs_bytes].view(np.int64).reshape(self._inputs.shape)
        inputs[SLOTS] = len(self._last_token) - 1
        inputs[IDS, :rows] = batch.ids
        inputs[POSITIONS, :rows] = batch.positions
        inputs[SLOT_MAPPING, :rows] = batch.slot_mapping
        inputs[LENGTHS, :rows] = batch.lengths
        inputs[SLOTS, batch.sampled] = batch.sample_slots
        inputs[SAMPLING:, batch.sampled] = batch.sampling
        columns[self._inputs_bytes :].view(np.int32).reshape(tables.shape)[:] = tables
        size = self._sizes[bisect_left(self._sizes, rows)]
        return Packed(partial(self._launch, size, columns, tables.shape), batch.sampled, size - rows)

    def _launch(self, size: int, columns: NDArray[np.uint8], of_tables: tuple[int, int], send: Send) -> torch.Tensor:
        """Queue the step. Returns its rows' tokens, on the device, valid until the next launch runs."""
        (rows, width), main = of_tables, self._device.main
        arrived = send.now(columns, self._arrived[: len(columns)])
        tables = arrived[self._inputs_bytes :].view(torch.int32).view(rows, width)
        main.run(lambda: self._tables[:rows, :width].copy_(tables))
        main.run(self._graphs[size])
        return self.tokens[:rows]

    @torch.inference_mode()
    def _step(self, size: int) -> None:
        """The captured work: one token of `size` rows, from embedding to sampled token."""
        inputs = self._inputs[:, :size]
        tokens = Tokens(
            ids=inputs[IDS],
            positions=inputs[POSITIONS],
            slot_mapping=inputs[SLOT_MAPPING],
            attend=self._attention(size),
            last_token=self._last_token,
        )
        hidden = self._llama.forward(tokens, self._pool, self._kernels)
        out = self.tokens[:size]
        self._kernels.sample(self._llama.logits(hidden, self._kernels), inputs[SAMPLING:], out)
        self._last_token.index_copy_(0, inputs[SLOTS], out)
