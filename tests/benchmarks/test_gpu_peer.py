"""The attention that gpu_check gives transformers where flash-attn is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu.setting import Setting, Task
from benchmarks.gpu.varlen import NAME, disagreement, one_by_one, paged, use_varlen
from engines.reference.model.config import SHAPES

CPU = torch.device("cpu")


def test_the_right_attention_is_right() -> None:
    assert disagreement(one_by_one, CPU) == ""


def top_left(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: Any) -> torch.Tensor:
    """What some kernels mean by causal: the first query sees the first position alone."""
    starts_q, starts_k = given[0].tolist(), given[1].tolist()
    short = [(start, start + hi - lo) for start, lo, hi in zip(starts_k, starts_q, starts_q[1:], strict=False)]
    kept = torch.tensor([at for lo, hi in short for at in range(lo, hi)])
    return one_by_one(q, k[kept], v[kept], given[0], given[0], *given[2:])


def test_attention_that_aligns_its_mask_with_the_first_position_is_told() -> None:
    assert disagreement(top_left, CPU).startswith("is off by ")


def test_a_kernel_that_fails_is_told() -> None:
    def fails(*given: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image\nis available")

    assert disagreement(fails, CPU) == "fails: no kernel image is available"


@pytest.mark.slow
def test_the_peer_gives_the_same_tokens_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    peer = pytest.importorskip("benchmarks.gpu.peer")

    def tokens(name: str | None) -> list[list[int]]:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(peer.peer_config(SHAPES["tiny"])).eval()
        for weights in model.parameters():
            torch.nn.init.normal_(weights, std=0.3)  # as they come, every prompt gives the same token for ever
        if name is not None:
            model.set_attn_implementation(name)
        outputs = model.generate_batch(
            [list(range(5, 5 + n)) for n in (3, 40, 17)],
            generation_config=transformers.GenerationConfig(do_sample=False, max_new_tokens=9, eos_token_id=-1),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                num_blocks=8, max_batch_tokens=32, allow_block_sharing=False
            ),
        )
        return [output.generated_tokens for output in outputs.values()]

    model = transformers.LlamaForCausalLM(peer.peer_config(SHAPES["tiny"]))
    if why_not := use_varlen(model, one_by_one):
        pytest.skip(why_not)
    assert model.config._attn_implementation == NAME
    found = tokens(NAME)
    assert [len(one) for one in found] == [9, 9, 9]
    assert found == tokens(None)
    transformers.AttentionInterface.register(NAME, paged(top_left))
    assert found != tokens(NAME)


def test_without_cuda_graphs_where_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    peer = pytest.importorskip("benchmarks.gpu.peer")

    def passes(*given: Any, use_cuda_graph: bool, use_async_batching: bool) -> dict[str, Any]:
        if use_cuda_graph:
            raise RuntimeError("a capture\nfailed")
        return {"cuda_graphs": use_cuda_graph}

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(peer, "use_varlen", lambda model: "")
    monkeypatch.setattr(peer, "_passes", passes)
    found = peer._theirs(Task(Setting("cpu", quick=True)), None, None)
    assert found == {"cuda_graphs": False, "cuda_graphs_reason": "a capture failed"}
