"""KVPool: the keys and values of every sequence, in blocks of one preallocated tensor.

    pool.layers[l]: [blocks + 1, 2 (K, V), kv_heads, block_size, head_dim]

A block is contiguous, and so is one head's K (or V) in it: gathering the blocks of a sequence head by head is a plain
copy of such pieces, and gives K as the matrix [positions, head_dim] that a batched product takes. Block 0 is the dummy.
"""

from __future__ import annotations

import torch

from engines.reference.model.config import ModelConfig


class KVPool:
    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`blocks` counts usable blocks; the dummy comes on top."""
        self.blocks = blocks
        self.block_size = block_size
        self.kv_heads = config.kv_heads
        shape = (config.layers, blocks + 1, 2, config.kv_heads, block_size, config.head_dim)
        # Zeros: a padding query may read the dummy block before any step has written it.
        self.layers = torch.zeros(shape, dtype=dtype, device=device)

    def bytes_per_token(self) -> int:
        return self.layers[:, 0, :, :, 0].numel() * self.layers.element_size()


def write_kv(layer: torch.Tensor, vectors: torch.Tensor, index: torch.Tensor) -> None:
    """Store tokens in a layer of the pool. vectors: [tokens, 2 * kv_heads, head_dim], K heads then V heads."""
    head_dim = layer.shape[-1]
    layer.view(-1, head_dim).index_copy_(0, index, vectors.reshape(-1, head_dim))
