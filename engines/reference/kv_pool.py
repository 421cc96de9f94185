"""KVPool: the keys and values of every sequence, in blocks of one preallocated tensor.

    pool.layers[l]: [blocks + 1, 2 (K, V), kv_heads, block_size, head_dim]

A block is contiguous, and so is one head's K (or V) in it: gathering the blocks of a sequence head by head is a plain
copy of such pieces, and gives K as the matrix [positions, head_dim] that a batched product wants. Block 0 is the dummy.
"""

from __future__ import annotations

import gc
import os

import torch

from engines.reference.model.config import ModelConfig

MEMORY_SHARE = 0.25  # of what is free, when the number of blocks is left to us


class KVPool:
    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`blocks` counts usable blocks; the dummy comes on top."""
        self.blocks = blocks
        self.block_size = block_size
        self.kv_heads = config.kv_heads
        shape = (config.layers, blocks + 1, 2, config.kv_heads, block_size, config.head_dim)
        # Zeros, not garbage: a padding query reads the dummy before anybody wrote it.
        self.layers = torch.zeros(shape, dtype=dtype, device=device)

    def bytes_per_token(self) -> int:
        return self.layers[:, 0, :, :, 0].numel() * self.layers.element_size()


def write_kv(layer: torch.Tensor, vectors: torch.Tensor, index: torch.Tensor) -> None:
    """Store tokens in a layer of the pool. vectors: [tokens, 2 * kv_heads, head_dim], K heads then V heads."""
    head_dim = layer.shape[-1]
    layer.view(-1, head_dim).index_copy_(0, index, vectors.reshape(-1, head_dim))


def default_blocks(
    config: ModelConfig,
    block_size: int,
    *,
    max_num_seqs: int,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Enough for every seat at full length, if a quarter of the free memory holds that; at least one sequence."""
    per_sequence = -(-max_model_len // block_size)
    block_bytes = config.kv_elements_per_token * block_size * dtype.itemsize
    affordable = int(free_bytes(device) * MEMORY_SHARE) // block_bytes
    return max(min(max_num_seqs * per_sequence, affordable), per_sequence)


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken on the device."""
    if device.type == "cuda":
        gc.collect()  # an engine of an earlier run may still hold its pool,
        torch.cuda.empty_cache()  # and torch what that run gave back
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
