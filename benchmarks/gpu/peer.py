"""Stage: the same requests on the same shape, dtype and device, by cbbench and by transformers' continuous batching.

Both have all requests at once, random weights, no EOS, and warm up before the clock starts. transformers chooses its
batch, its memory and its kernels itself, as its user would leave it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import driving
from benchmarks.gpu.setting import Row, Skip, Task
from engines.base import SilentObserver
from engines.reference.engine import ReferenceEngine, default_kv_blocks
from engines.reference.model.config import SHAPES, ModelConfig
from engines.reference.model.weights import DTYPES, LoadedModel
from engines.scheduling.config import SchedulerConfig
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.spec import build_plan

SEATS = 128
CONTEXT = 4096
PEER_S = 20.0  # what transformers needs at least: a model, its warm-up and the requests


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
    # On a CPU it would take all memory for its cache, and a minute to warm up.
    bounds = {"num_blocks": 8, "max_batch_tokens": 64} if setting.quick else {}
    theirs, attention = _theirs(SHAPES[name], setting.device, plan, prompts, bounds)
    yield "transformers", {"output_token_per_s": theirs, "attention": attention, **work}
    yield "ratio", {"cbbench_over_transformers": ours / theirs}


def _require_peer() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # it looks for kernels to download
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5 or not hasattr(transformers, "ContinuousBatchingConfig"):
        raise Skip(f"transformers {transformers.__version__} has no continuous batching to compare with (5 has)")


def _ours(model: LoadedModel, plan: RequestPlan, context: int) -> float:
    seats = min(SEATS, len(plan))
    budget = max(8192 if model.device == "cuda" else 512, seats)
    blocks = default_kv_blocks(
        model, block_size=16, max_num_seqs=seats, max_model_len=context, max_num_batched_tokens=budget
    )
    engine = ReferenceEngine(
        model,
        SchedulerConfig(kv_blocks=blocks, max_model_len=context, max_num_seqs=seats, max_num_batched_tokens=budget),
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


def _theirs(
    shape: ModelConfig, device: str, plan: RequestPlan, prompts: Prompts, bounds: dict[str, int]
) -> tuple[float, str]:
    """(output tokens per second, the attention it chose)"""
    from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES["bf16"])
    try:
        with torch.device(device):
            model = LlamaForCausalLM(peer_config(shape)).eval()
    finally:
        torch.set_default_dtype(before)
    generation = GenerationConfig(do_sample=False, max_new_tokens=int(plan.output_tokens.max()), eos_token_id=-1)
    batching = ContinuousBatchingConfig(**bounds)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, **({"warmup": False} if bounds else {})
    ) as manager:
        _answer(manager, [prompts.ids(0).tolist()], [2])
        began = time.perf_counter()
        asked = [prompts.ids(i).tolist() for i in range(len(plan))]
        tokens = _answer(manager, asked, plan.output_tokens.tolist())
        seconds = time.perf_counter() - began
    if tokens != int(plan.output_tokens.sum()):
        raise RuntimeError(f"transformers gave {tokens} tokens, asked for {plan.output_tokens.sum()}")
    return tokens / seconds, str(model.config._attn_implementation)


def _answer(manager: Any, prompts: list[list[int]], lengths: list[int]) -> int:
    """Tokens generated."""
    for prompt, length in zip(prompts, lengths, strict=True):
        manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
    tokens = ended = 0
    while ended < len(prompts):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"transformers: {result.error}")
            ended += 1
            tokens += len(result.generated_tokens)
        elif result is None and not manager.is_running():
            raise RuntimeError("transformers' generation thread ended")
    return tokens
