"""StepPlan: what one step computes, as columns; StepResult: what came of it.

A row is one request in one step. Row r of a plan:

    position   0 ......... starts[r] ........ starts[r]+counts[r] ........ known
               |<- in KV ->|<- computed now ->|<- for later steps ------->|
                           padding[r] dead tokens are launched before these

Its KV lives in the blocks of t = tables[slots[r]]: position p is offset p % block_size of block t[p // block_size].
Block 0 is the dummy: padding and dead rows write there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines.scheduling.request import Request

IntArray = NDArray[np.int64]
Tables = NDArray[np.int32]

NO_MOVES: IntArray = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: int  # counts from 1
    now_ns: int
    requests: Sequence[Request]  # [rows]
    slots: IntArray  # [rows] the slot of each row
    starts: IntArray  # [rows] first position computed now
    counts: IntArray  # [rows] positions computed now, >= 0 (0: a padded row whose columns are all padding)
    padding: IntArray  # [rows] padding tokens launched before the row's own
    samples: NDArray[np.bool_]  # [rows] True where the row's last position gives the request's next token
    dead_slots: IntArray  # [dead rows] slots of finished requests that are launched all the same
    dead_lengths: IntArray  # [dead rows] KV positions such a row still attends to
    dead_tokens: int  # tokens launched in each dead row
    tables: Tables  # [max_num_seqs, max blocks per sequence], by reference: indexed by slot
    # [moves, 2] (device block, host block), carried out before anything of the step is written
    swap_out: IntArray = field(default_factory=lambda: NO_MOVES)
    # [moves, 2] (host block, device block), carried out after swap_out
    swap_in: IntArray = field(default_factory=lambda: NO_MOVES)

    @property
    def launched_tokens(self) -> int:
        return int(self.counts.sum() + self.padding.sum()) + self.dead_tokens * len(self.dead_slots)


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    tokens: NDArray[np.int32] | None  # [samples.sum()] in row order; None when only lengths matter
    start_ns: int
    end_ns: int
    busy_ns: int  # time the device worked for this step
    bucket_padding_tokens: int = 0  # launched beyond the plan, to fill up a shape that can be launched
    host_ahead_ns: int = 0  # from the end of the launch to the device's, at least 1; 0 where the host computes


@dataclass(slots=True)
class StepNumbers:
    """Numbers of steps: 1, 2, 3, ... in the order of their launch, over all instances that share this."""

    last: int = 0
