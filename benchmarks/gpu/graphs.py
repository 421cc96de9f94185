"""Stage: decode steps from CUDA graphs against the same steps launched one by one: equal tokens, and nothing touched
that belongs to no request.

Equal at batch sizes that have a graph of their own. In between a graph computes padding rows, so matrix products of
another shape may round differently, and a token may differ where two logits are close: reported, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import driving
from benchmarks.gpu.mixed import executor_of, mixed_plan, size_of
from benchmarks.gpu.setting import Row, Task
from engines.reference.graphs import bucket_sizes
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.weights import LoadedModel

SPARE_BLOCKS = 8  # beyond what the requests take
STEPS = 8
CONTEXT = 300  # more than one split of the attention


def run(task: Task) -> Iterator[Row]:
    setting = task.setting
    model = driving.build(setting.small, setting.device)
    for rows in (3,) if setting.quick else (1, 8, 64, 3, 13, 50):
        yield f"{rows} rows", compared(model, rows)
    for decodes, prompt in ((3, 13), (2, 9)) if setting.quick else ((64, 128), (3, 13), (50, 200)):
        yield f"{decodes} rows and a prompt of {prompt}", compared_mixed(model, decodes, prompt)


def compared(model: LoadedModel, rows: int) -> dict[str, Any]:
    """Without capture, as on a CPU, eager steps are compared with themselves."""
    bucket = min(size for size in bucket_sizes(64) if size >= rows)
    pool = driving.filled_pool(model, driving.blocks_for(rows, CONTEXT + STEPS + 1) + SPARE_BLOCKS)
    before = pool.layers.clone()
    outputs, intact, graphs = [], True, False
    for graph_sizes in ((bucket,), ()):
        pool.layers.copy_(before)
        pool.layers[:, 0] = float("nan")  # the dummy block: a read of it shows in the result
        decoded = driving.decode(model, pool, rows=rows, context=CONTEXT, steps=STEPS, graph_sizes=graph_sizes)
        outputs.append(decoded.outputs)
        graphs = graphs or decoded.graphs
        intact = intact and untouched(pool, before, rows)
    graph, eager = (torch.tensor(one) for one in outputs)
    judged = rows == bucket or not graphs
    return {
        "graph": graphs,
        "bucket": bucket,
        "agree": float((graph == eager).float().mean()),
        "canaries": intact,
        "judged": judged,
        "ok": intact and (bool(torch.equal(graph, eager)) or not judged),
    }


def compared_mixed(model: LoadedModel, decodes: int, prompt: int) -> dict[str, Any]:
    """One step with a prompt, from a graph and eager."""
    llama = model.llama
    plan = mixed_plan(decodes, CONTEXT, prompt)
    pool = driving.filled_pool(model, int(plan.tables.max()) + SPARE_BLOCKS)
    kernels = choose_kernels("auto", llama.config, llama.dtype, llama.device, len(plan.slots))
    before = pool.layers.clone()
    size = size_of(plan.launched_tokens)
    outputs, intact = [], True
    for sizes in ((size,), ()) if kernels.captures else ((), ()):
        executor = executor_of(llama, pool, kernels, plan, graph_sizes=sizes)
        pool.layers.copy_(before)
        pool.layers[:, 0] = float("nan")
        executor.submit(plan)
        outputs.append(torch.from_numpy(executor.collect().tokens))
        intact = intact and bool((pool.layers[:, -SPARE_BLOCKS:] == before[:, -SPARE_BLOCKS:]).all())
    graph, eager = outputs
    judged = size == plan.launched_tokens or not kernels.captures
    return {
        "graph": kernels.captures,
        "bucket": size,
        "agree": float((graph == eager).float().mean()),
        "canaries": intact,
        "judged": judged,
        "ok": intact and (bool(torch.equal(graph, eager)) or not judged),
    }


def untouched(pool: KVPool, before: torch.Tensor, rows: int) -> bool:
    """Only the blocks that hold the new positions have changed. The scheduler hands out blocks from 1 on, so the last
    blocks of a pool with spare ones belong to no request."""
    changed = (pool.layers[:, 1:] != before[:, 1:]).flatten(2).any(-1).any(0)
    grown = (
        -(-(CONTEXT + STEPS) // pool.block_size) - CONTEXT // pool.block_size
    )  # blocks with new positions, a request
    return not bool(changed[-SPARE_BLOCKS:].any()) and int(changed.sum()) <= rows * grown
