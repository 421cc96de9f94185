"""HostPool: KV blocks of swapped-out requests, in host memory.

    host.blocks[h]: [layers, 2 (K, V), kv_heads, block_size, head_dim], contiguous

One block of all layers is one piece, so that on CUDA each move is a single copy between the device and pinned memory.
All copies are queued where the steps are: behind the step that wrote a block, and before the one that reuses it.
"""

from __future__ import annotations

import torch

from engines.reference.kv_pool import KVPool
from engines.scheduling.plan import StepPlan


class HostPool:
    def __init__(self, pool: KVPool, blocks: int) -> None:
        layers, _, *block_shape = pool.layers.shape
        on_cuda = pool.layers.device.type == "cuda"
        self.blocks = torch.empty((blocks, layers, *block_shape), dtype=pool.layers.dtype, pin_memory=on_cuda)

    def carry_out(self, plan: StepPlan, pool: KVPool) -> None:
        """The plan's moves: out, then in. Call before anything of the step is written."""
        device = pool.layers.device
        if len(plan.swap_out):
            blocks, hosts = torch.from_numpy(plan.swap_out).unbind(1)
            leaving = pool.layers.index_select(1, blocks.to(device)).transpose(0, 1).contiguous()
            for i, host in enumerate(hosts.tolist()):
                self.blocks[host].copy_(leaving[i], non_blocking=True)
        if len(plan.swap_in):
            hosts, blocks = torch.from_numpy(plan.swap_in).unbind(1)
            arriving = torch.empty((len(hosts), *self.blocks.shape[1:]), dtype=self.blocks.dtype, device=device)
            for i, host in enumerate(hosts.tolist()):
                arriving[i].copy_(self.blocks[host], non_blocking=True)
            pool.layers.index_copy_(1, blocks.to(device), arriving.transpose(0, 1))
