"""FlashInferKernels: attention by FlashInfer, the rest of a step by Triton. The one module that imports flashinfer.

A layer of our pool already has its layout "HND". It takes the block tables as one list (CSR); it calls blocks pages:

    tables   7 2 9 0    lengths  40         indices        7 2 9 5      on the device
    (of 16)  5 0 0 0              3         indptr         0     3 4    on the host, like the others
                                            last_page_len      8 3
    starts   0 30 31                        qo_indptr      0 30 31

It plans each step on the host from the lengths, so no CUDA graph can capture such a step. Rows of one query come
first and use its decode wrapper; the longer rows use its prefill wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch

from engines.reference.kernels import Attend, Upload
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.config import ModelConfig
from engines.scheduling.plan import IntArray, Tables
from engines.scheduling.scheduler import MAX_STEPS_IN_FLIGHT
from workloads.errors import CbbenchError

HEAD_SIZES = (64, 128)
DTYPES = (torch.bfloat16, torch.float16)
WORKSPACE_BYTES = 128 << 20  # recommended by its documentation; for partial results where KV is split


class Library(NamedTuple):
    version: str
    decode: Any  # a type, BatchDecodeWithPagedKVCacheWrapper
    prefill: Any  # BatchPrefillWithPagedKVCacheWrapper


def load() -> Library:
    """CbbenchError where it is installed and does not load."""
    try:
        import flashinfer
    except (ImportError, OSError, RuntimeError) as error:
        raise CbbenchError(
            "attention",
            f"flashinfer does not load: {_line(error)}; reinstall it: pip install 'cbbench[flashinfer]'",
        ) from error
    return Library(
        flashinfer.__version__,
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
    )


def require_shape(config: ModelConfig, dtype: torch.dtype) -> None:
    """Raise CbbenchError (exit code 2) for a model that it has no kernels for."""
    if config.head_dim not in HEAD_SIZES:
        raise CbbenchError(
            "attention",
            f"this model has heads of {config.head_dim} numbers, and flashinfer takes "
            f"{' or '.join(map(str, HEAD_SIZES))}; take triton",
        )
    if dtype not in DTYPES:
        raise CbbenchError(
            "attention",
            f"this model runs in {str(dtype).removeprefix('torch.')}, and flashinfer takes `dtype` bf16 or fp16",
        )


class FlashInferKernels(TritonKernels):
    captures = False

    def __init__(self, config: ModelConfig, device: torch.device, max_num_seqs: int, library: Library) -> None:
        """For a model that passed `require_shape`."""
        super().__init__(max_num_seqs)
        self.name = f"flashinfer {library.version}: paged attention, its choice of backend; the rest by triton"
        self._heads = (config.heads, config.kv_heads, config.head_dim)
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)  # for one kernel after another
        # A plan is copied to the device from its wrapper's pinned memory, which may be written again only after the
        # step's end: each step in flight has wrappers of its own.
        self._turns = cycle(
            [
                # Tensor cores: the kernels without them support few numbers of heads per KV head.
                (library.decode(workspace, "HND", use_tensor_cores=True), library.prefill(workspace, "HND"))
                for _ in range(MAX_STEPS_IN_FLIGHT)
            ]
        )

    def prepare(
        self, tables: Tables, lengths: IntArray, starts: IntArray, kv: torch.Tensor, upload: Upload = torch.from_numpy
    ) -> Attend:
        decode, prefill = next(self._turns)
        tables, lengths, counts = split_early(tables, lengths, np.diff(starts))
        longer = np.flatnonzero(counts != 1)
        n = int(longer[0]) if len(longer) else len(counts)
        block_size = kv.shape[3]
        shape = (*self._heads, block_size)
        types = {"q_data_type": kv.dtype, "kv_data_type": kv.dtype}
        parts = []
        if n:
            pages = paged(tables[:n], lengths[:n], block_size, upload)
            parts.append(_Part(slice(0, n), decode, partial(decode.plan, *pages, *shape, **types)))
        if n < len(counts):
            pages = paged(tables[n:], lengths[n:], block_size, upload)
            plan = partial(prefill.plan, indptr(counts[n:]), *pages, *shape, causal=True, **types)
            parts.append(_Part(slice(n, None), prefill, plan))
        return _Step(parts)

    def static_decode(
        self, tables: torch.Tensor, lengths: torch.Tensor, pool: KVPool, heads: int
    ) -> Callable[[int], Attend]:
        raise NotImplementedError("each step is planned on the host")


@dataclass(frozen=True, slots=True)
class _Part:
    """Neighbouring rows of a step."""

    queries: slice
    wrapper: Any
    plan: Callable[[], None]


class _Step:
    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts
        self._planned = False

    def __call__(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        if not self._planned:  # in the first layer, on the step's stream, where the plan is copied
            self._plan()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in self._parts:
            part.wrapper.run(q[part.queries], kv, out=out[part.queries])
        return out

    def _plan(self) -> None:
        try:
            for part in self._parts:
                part.plan()
        except (
            RuntimeError,
            OSError,
        ) as error:  # the first plan of a kind compiles kernels, which fails without a recent nvcc
            raise CbbenchError(
                "attention", f"flashinfer cannot plan a step: {_line(error)} (`debug` shows all)"
            ) from error
        self._planned = True


def split_early(tables: Tables, lengths: IntArray, counts: IntArray) -> tuple[Tables, IntArray, IntArray]:
    """Splits rows with more queries than KV (padding): each early query, which attends to position 0, becomes a row.

    FlashInfer masks every position for a query before position 0.
    """
    early = np.maximum(counts - lengths, 0)
    row = np.repeat(np.arange(len(counts)), early + 1)
    last = np.cumsum(early + 1) - 1  # the last part of each row has the remaining queries
    new_lengths, new_counts = np.ones_like(row), np.ones_like(row)
    new_lengths[last], new_counts[last] = lengths, counts - early
    return tables[row], new_lengths, new_counts


def paged(
    tables: Tables, lengths: IntArray, page_size: int, upload: Upload
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(indptr, indices, last_page_len), all int32. The wrappers read the first and the last on the host."""
    pages = -(-lengths // page_size)
    indices = tables[np.arange(tables.shape[1]) < pages[:, None]]
    last_page_len = lengths - (pages - 1) * page_size
    return (
        indptr(pages),
        upload(indices.astype(np.int32, copy=False)),
        torch.from_numpy(last_page_len.astype(np.int32)),
    )


def indptr(counts: IntArray) -> torch.Tensor:
    """int32[rows + 1]: where each row's part of a list begins, and the end of the last"""
    starts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return torch.from_numpy(starts)


def _line(error: Exception) -> str:
    """The line with the cause: a compiler prints many."""
    lines = (str(error) or type(error).__name__).splitlines()
    return next((line for line in lines if "error:" in line), lines[0])
