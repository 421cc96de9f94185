"""Paged attention, one entry per backend: an oracle that is easy to read, and paths that are fast.

Every backend computes the same thing. Row r has queries q[starts[r]:starts[r+1]], n of them, and its KV is positions
0 .. lengths[r]-1 of the blocks tables[r]. Query j sits at position max(lengths[r] - n + j, 0) and sees the positions up
to its own. Nothing beyond lengths[r] matters, whatever it holds.

What is the same in every layer of a step is prepared once: prepare(tables, lengths, starts, kv)(q, kv) is
paged_attention(q, kv, tables, lengths, starts).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engines.scheduling.plan import IntArray, Tables

Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (q, one layer of the pool) -> like q
PrepareAttention = Callable[[Tables, IntArray, IntArray, torch.Tensor], Attend]  # (tables, lengths, starts, a layer)
