"""Stage: the same requests on the same shape, dtype and device, by cbbench and by transformers' continuous batching.

Both have all requests at once, random weights, no EOS and no prefix cache, and warm up before the clock starts.
transformers gets what makes it fast here: an attention that reads each request's own KV (varlen.py), KV for all
requests at once, and a second pass over the same requests, since it captures CUDA graphs as sizes come up. The better
pass counts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import driving
from benchmarks.gpu.setting import Row, Skip, Task
from benchmarks.gpu.varlen import use_varlen
from engines.base import SilentObserver
from engines.reference.engine import ReferenceEngine
from engines.reference.kv_capacity import default_kv_blocks
from engines.reference.model.config import SHAPES, ModelConfig
from engines.reference.model.weights import DTYPES, LoadedModel
from engines.scheduling.config import SchedulerConfig
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.spec import build_plan

MAX_NUM_SEQS = 128
CONTEXT = 4096
PEER_S = 20.0  # what transformers needs at least: a model, its warm-up and the requests
PEER_BLOCK = 256  # positions in a block of transformers' cache, as it comes
PASSES = 2
PEER_FREE = 0.15  # share of them that its scheduler keeps free when it lets requests in


def run(task: Task) -> Iterator[Row]:
    _require_peer()
    setting = task.setting
    name = setting.large
    requests, workload = (4, "prompt=uniform(4,24);output=uniform(2,8)") if setting.quick else (128, "azure-conv")
    model = driving.build(name, setting.device)
    context = min(CONTEXT, model.context_tokens)
    plan = build_plan(workload, num_requests=requests, seed=0, arrival="constant", max_model_len=context)
    prompts = Prompts(plan, model.checkpoint.prompt_ids)
    work = {"requests": requests, "output_tokens": int(plan.output_tokens.sum())}
    ours = _ours(model, plan, context)
    yield "cbbench", {"output_token_per_s": ours, **work}
    del model
    driving.release(torch.device(setting.device))
    if task.left_s() < PEER_S and not setting.quick:
        yield "transformers", {"skipped": "no time left for it"}
        return
    theirs = _theirs(task, plan, prompts)
    if "output_token_per_s" not in theirs:
        yield "transformers", theirs
        return
    yield "transformers", theirs | work
    yield "ratio", {"cbbench_over_transformers": ours / theirs["output_token_per_s"]}


def _require_peer() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # it looks for kernels to download
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5 or not hasattr(transformers, "ContinuousBatchingConfig"):
        raise Skip(f"transformers {transformers.__version__} has no continuous batching to compare with (5 has)")


def _budget(device: str, plan: RequestPlan) -> int:
    """Tokens of a step, for both."""
    return max(8192 if device == "cuda" else 512, len(plan))


def _ours(model: LoadedModel, plan: RequestPlan, context: int) -> float:
    slots = min(MAX_NUM_SEQS, len(plan))
    budget = _budget(model.device, plan)
    blocks = default_kv_blocks(
        model, block_size=16, max_num_seqs=slots, max_model_len=context, max_num_batched_tokens=budget
    )
    engine = ReferenceEngine(
        model,
        SchedulerConfig(kv_blocks=blocks, max_model_len=context, max_num_seqs=slots, max_num_batched_tokens=budget),
    )
    pacing = Pacing(plan.arrivals_ugap)
    record = engine.run(plan, pacing, SilentObserver())
    return float(plan.output_tokens.sum()) * 1e9 / float(record.column_ns("end").max())


def peer_config(shape: ModelConfig) -> Any:
    """transformers' Llama of this shape. Its rotation is not slowed for long contexts, which costs no time."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.d_model,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position,
        rms_norm_eps=shape.eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def _theirs(task: Task, plan: RequestPlan, prompts: Prompts) -> dict[str, Any]:
    """How it ran, and the output tokens per second of its better pass; "skipped" where none was done in time."""
    from transformers import LlamaForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES["bf16"])
    try:
        with torch.device(task.setting.device):
            model = LlamaForCausalLM(peer_config(SHAPES[task.setting.large])).eval()
    finally:
        torch.set_default_dtype(before)
    left_alone = use_varlen(model)
    if left_alone:
        return _passes(model, task, plan, prompts) | {"attention_reason": left_alone}
    try:
        return _passes(model, task, plan, prompts, use_cuda_graph=True, use_async_batching=True)
    except RuntimeError as problem:
        reason = " ".join(str(problem).split())[:200]
    driving.release(torch.device(task.setting.device))
    eager = _passes(model, task, plan, prompts, use_cuda_graph=False, use_async_batching=True)
    return eager | {"cuda_graphs_reason": reason}


def _passes(model: Any, task: Task, plan: RequestPlan, prompts: Prompts, **chosen: bool) -> dict[str, Any]:
    from transformers import GenerationConfig

    generation = GenerationConfig(do_sample=False, max_new_tokens=int(plan.output_tokens.max()), eos_token_id=-1)
    token_ids = [prompts.ids(i).tolist() for i in range(len(plan))]
    lengths = plan.output_tokens.tolist()
    passes_s: list[float] = []
    with model.continuous_batching_context_manager(
        generation_config=generation,
        continuous_batching_config=_batching(plan, _budget(task.setting.device, plan), **chosen),
    ) as manager:
        took = _took(model, manager)
        _generate(manager, token_ids[:1], [2], task)
        while not passes_s or (len(passes_s) < PASSES and task.left_s() > 1.2 * passes_s[-1]):
            began = time.perf_counter()
            tokens = _generate(manager, token_ids, lengths, task)
            if tokens is None:
                break
            passes_s.append(time.perf_counter() - began)
            if tokens != sum(lengths):
                took |= {"ok": False, "error": f"it gave {tokens} tokens"}
    if not passes_s:
        return took | {"skipped": "not done in time"}
    return took | {"output_token_per_s": sum(lengths) / min(passes_s), "passes_s": passes_s}


def _batching(plan: RequestPlan, budget: int, **chosen: bool) -> Any:
    """KV for all requests at once: its default takes all memory, and warms up on a prompt that fills it."""
    from transformers import ContinuousBatchingConfig

    blocks = sum(math.ceil(int(n) / PEER_BLOCK) + 1 for n in plan.prompt_tokens + plan.output_tokens)
    return ContinuousBatchingConfig(
        num_blocks=math.ceil(blocks / (1 - PEER_FREE)),
        max_batch_tokens=budget,
        max_requests_per_batch=len(plan),
        allow_block_sharing=False,
        **chosen,
    )


def _took(model: Any, manager: Any) -> dict[str, Any]:
    """The settings that decide its speed, as far as it reports them."""
    batching = manager.continuous_batching_config
    return {
        "attention": str(model.config._attn_implementation),
        "cuda_graphs": any(batching.cuda_graph_booleans),
        "async_batching": bool(batching.use_async_batching),
    }


def _generate(manager: Any, prompts: list[list[int]], lengths: list[int], task: Task) -> int | None:
    """Tokens generated; None where the stage's time ended before the requests."""
    waiting = {
        manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
        for prompt, length in zip(prompts, lengths, strict=True)
    }
    tokens = 0
    while waiting:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"transformers: {result.error}")
            waiting.discard(result.request_id)
            tokens += len(result.generated_tokens)
        elif result is None and not manager.is_running():
            raise RuntimeError("transformers' generation thread ended")
        if task.left_s() <= 0:
            for name in waiting:
                manager.cancel_request(name)
            return None
    return tokens
