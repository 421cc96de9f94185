"""The attention that gpu_check gives transformers where flash-attn is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu.varlen import NAME, disagreement, one_by_one, use_varlen
from engines.reference.model.config import SHAPES

CPU = torch.device("cpu")


def test_the_right_attention_is_right() -> None:
    assert disagreement(one_by_one, CPU) == ""


def test_attention_that_aligns_its_mask_with_the_first_position_is_told() -> None:
    """What some kernels mean by causal: the first query sees the first position alone."""

    def top_left(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: Any) -> torch.Tensor:
        starts_q, starts_k = given[0].tolist(), given[1].tolist()
        short = [(start, start + hi - lo) for start, lo, hi in zip(starts_k, starts_q, starts_q[1:], strict=False)]
        kept = torch.tensor([at for lo, hi in short for at in range(lo, hi)])
        return one_by_one(q, k[kept], v[kept], given[0], given[0], *given[2:])

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

    def tokens(attend: Any) -> list[list[int]]:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(peer.peer_config(SHAPES["tiny"])).eval()
        if attend is not None:
            if why_not := use_varlen(model, attend):
                pytest.skip(why_not)
            assert model.config._attn_implementation == NAME
        outputs = model.generate_batch(
            [list(range(5, 5 + n)) for n in (3, 40, 17)],
            generation_config=transformers.GenerationConfig(do_sample=False, max_new_tokens=9, eos_token_id=-1),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                num_blocks=8, max_batch_tokens=32, allow_block_sharing=False
            ),
        )
        return [output.generated_tokens for output in outputs.values()]

    found = tokens(one_by_one)
    assert [len(one) for one in found] == [9, 9, 9]
    assert found == tokens(None)
