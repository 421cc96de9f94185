"""How many KV blocks fit in memory, and the error where a setting asks for more.

On a GPU: a share of what weights and the largest step leave. On a CPU: a share of the free memory.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

import psutil
import torch

from engines.loop import WallClock
from engines.reference.executor import TorchExecutor
from engines.reference.kernels import Kernels
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.config import ModelConfig
from engines.reference.model.llama import Llama
from engines.reference.model.weights import LoadedModel
from engines.reference.synthetic_steps import largest_step, synthetic_step
from workloads.errors import CbbenchError

GPU_SHARE = 0.9  # the rest is for graphs, for other processes, and for the allocator's rounding
HOST_SHARE = 0.25  # of the host's free memory, where the number of blocks is not set


def default_kv_blocks(
    model: LoadedModel,
    *,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    max_num_batched_tokens: int = 512,
    attention: str = "auto",
    gpu_memory_utilization: float = GPU_SHARE,
) -> int:
    """Usable KV blocks where `kv_blocks` is not set. CbbenchError where memory allows none.

    On a GPU: that share of what is free beside the weights and the largest step, which is run to measure it. On a CPU:
    every slot at full length, within a quarter of the free memory.
    """
    llama = model.llama
    if llama.device.type == "cuda":
        budget = measure_gpu(
            llama,
            choose_kernels(attention, llama.config, llama.dtype, llama.device, max_num_seqs),
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
        )
        return budget.blocks(gpu_memory_utilization, kv_block_bytes(model, block_size))
    return blocks_for_host(
        llama.config,
        block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        dtype=llama.dtype,
        device=llama.device,
    )


def blocks_for_host(
    config: ModelConfig,
    block_size: int,
    *,
    max_num_seqs: int,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Enough for every slot at full length, if a quarter of the free memory holds that; at least one sequence."""
    per_sequence = -(-max_model_len // block_size)
    block_bytes = config.kv_elements_per_token * block_size * dtype.itemsize
    affordable = int(free_bytes(device) * HOST_SHARE) // block_bytes
    return max(min(max_num_seqs * per_sequence, affordable), per_sequence)


def swap_blocks_for_host(model: LoadedModel, block_size: int) -> int:
    """KV blocks that a quarter of the host's free memory holds, at least one. A GPU's blocks are swapped there."""
    return max(int(free_bytes(torch.device("cpu")) * HOST_SHARE) // kv_block_bytes(model, block_size), 1)


def kv_block_bytes(model: LoadedModel, block_size: int) -> int:
    """K and V of a block in all layers."""
    return block_size * model.llama.config.kv_elements_per_token * model.llama.dtype.itemsize


@dataclass(frozen=True, slots=True)
class GpuMemory:
    free_bytes: int  # beside the weights
    step_bytes: int  # that the largest step allocates while it runs

    def blocks(self, utilization: float, block_bytes: int) -> int:
        """Usable KV blocks in this share of what is left. The dummy block comes out of the same share.

        CbbenchError where that is not one block.
        """
        left_bytes = self.free_bytes - self.step_bytes
        blocks = int(max(left_bytes, 0) * utilization) // block_bytes - 1
        if blocks < 1:
            raise CbbenchError(
                "gpu_memory_utilization",
                f"{utilization:g} leaves no KV block: {self.free_bytes / 2**30:.2f} GiB are free beside the weights "
                f"and the largest step takes {self.step_bytes / 2**30:.2f} GiB; "
                "lower `max_num_batched_tokens` or take a smaller model",
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
) -> GpuMemory:
    """Run the largest step once, on a pool of one block, and measure its peak memory."""
    left_bytes = free_bytes(llama.device)
    before_bytes = torch.cuda.memory_allocated(llama.device)
    torch.cuda.reset_peak_memory_stats(llama.device)
    pool = KVPool(llama.config, 1, block_size, dtype=llama.dtype, device=llama.device)
    executor = TorchExecutor(llama, pool, max_num_seqs=max_num_seqs, clock=WallClock(), kernels=kernels)
    executor.submit(synthetic_step(largest_step(max_num_seqs, max_num_batched_tokens, max_model_len)))
    executor.collect()
    peak_bytes = torch.cuda.max_memory_allocated(llama.device)
    del executor, pool
    torch.cuda.empty_cache()
    return GpuMemory(left_bytes, peak_bytes - before_bytes)


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated on the device."""
    if device.type == "cuda":
        gc.collect()  # an engine of an earlier run may still hold its pool,
        torch.cuda.empty_cache()  # and torch keeps freed memory in its cache
        return int(torch.cuda.mem_get_info(device)[0])
    return psutil.virtual_memory().available


def require_memory(field: str, blocks: int, block_bytes: int, free: int, where: str) -> None:
    """CbbenchError about the field where so many KV blocks do not fit."""
    if blocks * block_bytes > free:
        kv_gib, free_gib = blocks * block_bytes / 2**30, free / 2**30
        raise CbbenchError(field, f"{blocks} blocks take {kv_gib:.1f} GiB of KV, {free_gib:.1f} GiB {where}")
