"""How many KV blocks fit: on a GPU, a share of what is left beside the weights and the largest step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engines.base import EngineError
from engines.loop import WallClock
from engines.reference.dry_step import dry_step, largest_step
from engines.reference.executor import TorchExecutor
from engines.reference.kernels import Kernels
from engines.reference.kv_pool import KVPool, free_bytes
from engines.reference.model.llama import Llama

GPU_SHARE = 0.9  # the rest is for graphs, for what other processes take, and for the allocator's rounding


@dataclass(frozen=True, slots=True)
class Budget:
    free_bytes: int  # beside the weights
    step_bytes: int  # that the largest step takes for a while

    def blocks(self, utilization: float, block_bytes: int) -> int:
        """Usable KV blocks in this share of what is left; the dummy block is paid for out of it as well.

        EngineError where that is not one block.
        """
        left_bytes = self.free_bytes - self.step_bytes
        blocks = int(max(left_bytes, 0) * utilization) // block_bytes - 1
        if blocks < 1:
            raise EngineError(
                f"--gpu-memory-utilization {utilization:g}: {self.free_bytes / 2**30:.2f} GiB are free beside the "
                f"weights and the largest step takes {self.step_bytes / 2**30:.2f} GiB, which leaves no KV block; "
                "lower --max-num-batched-tokens or take a smaller model"
            )
        return blocks


def measure_gpu(
    llama: Llama,
    kernels: Kernels,
    *,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
) -> Budget:
    """Run the largest step once, on a pool of one block, and see what it took."""
    left_bytes = free_bytes(llama.device)
    before_bytes = torch.cuda.memory_allocated(llama.device)
    torch.cuda.reset_peak_memory_stats(llama.device)
    pool = KVPool(llama.config, 1, block_size, dtype=llama.dtype, device=llama.device)
    executor = TorchExecutor(llama, pool, max_num_seqs=max_num_seqs, clock=WallClock(), kernels=kernels)
    executor.submit(dry_step(largest_step(max_num_seqs, max_num_batched_tokens, max_model_len)))
    executor.collect()
    peak_bytes = torch.cuda.max_memory_allocated(llama.device)
    del executor, pool
    torch.cuda.empty_cache()
    return Budget(left_bytes, peak_bytes - before_bytes)
