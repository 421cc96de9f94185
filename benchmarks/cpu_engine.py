"""How fast is the reference engine on a CPU? Continuous batching, 32 slots, against transformers' padded generate.

    python benchmarks/cpu_engine.py [--pairs 3] [--requests 64] [--model smollm2-135m] [--dtype auto]

Both serve the same requests with the same weights, dtype and threads. transformers takes them in order, in
batches of 8, left-padded; every batch runs to its longest output. A machine's speed drifts, so the two run in turns in
one process. The result is the median of the ratios within a pair.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from engines.base import SilentObserver
from engines.reference.engine import ReferenceEngine
from engines.reference.kv_capacity import default_kv_blocks
from engines.reference.model.weights import LoadedModel, load_model
from engines.scheduling.config import SchedulerConfig
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.spec import build_plan

WORKLOAD = "prompt=lognormal(median=128,sigma=0.75,max=512);output=lognormal(median=96,sigma=0.65,max=256)"
MAX_NUM_SEQS = 32
PEER_BATCH = 8
CONTEXT = 1024


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    model = load_model(options.model, dtype=options.dtype, device="cpu")
    plan = build_plan(WORKLOAD, num_requests=options.requests, seed=1234, arrival="constant", max_model_len=CONTEXT)
    prompts = Prompts(plan, model.checkpoint.prompt_ids)
    engine = _engine(model)
    peer = None if options.no_peer else _transformers_twin(model)
    print(f"{options.model} {model.llama.dtype} ({model.dtype_reason}), {torch.get_num_threads()} threads")
    print(f"{len(plan)} requests, {plan.prompt_tokens.sum()} prompt and {plan.output_tokens.sum()} output tokens")
    ratios = []
    for pair in range(options.pairs):
        ours = plan.output_tokens.sum() / _run_engine(engine, plan)
        line = f"pair {pair + 1}: cbbench continuous, {MAX_NUM_SEQS} slots {ours:7.1f} output tok/s"
        if peer is not None:
            theirs = plan.output_tokens.sum() / _run_peer(peer, plan, prompts)
            ratios.append(ours / theirs)
            line += f" | transformers generate, batch {PEER_BATCH} {theirs:7.1f} | ratio {ratios[-1]:.2f}"
        print(line, flush=True)
    if ratios:
        print(f"median ratio {statistics.median(ratios):.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-peer", action="store_true", help="only run the engine")
    return parser.parse_args()


def _engine(model: LoadedModel) -> ReferenceEngine:
    blocks = default_kv_blocks(model, block_size=16, max_num_seqs=MAX_NUM_SEQS, max_model_len=CONTEXT)
    return ReferenceEngine(model, SchedulerConfig(kv_blocks=blocks, max_model_len=CONTEXT, max_num_seqs=MAX_NUM_SEQS))


def _run_engine(engine: ReferenceEngine, plan: RequestPlan) -> float:
    """Seconds from the first request sent to the last token."""
    record = engine.run(plan, Pacing(plan.arrivals_ugap), SilentObserver())
    assert record.column("output_tokens").tolist() == plan.output_tokens[record.column("i")].tolist()
    return float(record.column_ns("end").max()) / 1e9


def _transformers_twin(model: LoadedModel) -> LlamaForCausalLM:
    """transformers' own Llama with the weights of ours (read once more from the same checkpoint)."""
    c = model.llama.config
    config = LlamaConfig(
        vocab_size=c.vocab,
        hidden_size=c.d_model,
        intermediate_size=c.ffn,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_position,
        rms_norm_eps=c.eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    twin = LlamaForCausalLM(config)
    own = twin.state_dict()
    names = [name for name in own if not (c.tied and name == "lm_head.weight")]
    twin.load_state_dict({n: model.checkpoint.read(n, tuple(own[n].shape)) for n in names}, strict=not c.tied)
    twin.tie_weights()
    return twin.to(model.llama.dtype).eval()


def _run_peer(twin: LlamaForCausalLM, plan: RequestPlan, prompts: Prompts) -> float:
    begin = time.perf_counter()
    for first in range(0, len(plan), PEER_BATCH):
        batch = range(first, min(first + PEER_BATCH, len(plan)))
        ids, mask = _left_padded([prompts.ids(i) for i in batch])
        longest = int(plan.output_tokens[batch.start : batch.stop].max())
        with torch.inference_mode():
            twin.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=False,
                pad_token_id=0,
            )
    return time.perf_counter() - begin


def _left_padded(prompts: list[NDArray[np.int32]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, attention mask), both int64 [rows, longest prompt]"""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, width - len(prompt) :] = 1
    return ids, mask


if __name__ == "__main__":
    main()
