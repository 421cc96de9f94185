from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engines.reference import sampling
from engines.reference.kernels import triton_sampling
from engines.reference.kernels._triton import tl, triton
from engines.scheduling.request import Sampling
from tests.engines.kernels.checks.paged import DEVICE, DTYPES
from tests.engines.reference.stepping import next_tokens as expected_tokens

VOCAB = 2 * triton_sampling.BLOCK + 37
MODES = [
    Sampling(),
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.3, seed=2**63 + 11),
    Sampling(temperature=1.0, top_k=5, seed=4),
    Sampling(temperature=1.5, top_k=1, seed=4),
    Sampling(temperature=0.8, top_p=0.7, seed=5),
    Sampling(temperature=2.0, top_k=40, top_p=0.9, seed=6),
    Sampling(temperature=1.0, top_p=0.0, seed=7),
    Sampling(temperature=1e-42, seed=8),
    Sampling(temperature=1.0, top_k=10**6, seed=9),
]


def rows(number: int, vocab: int = VOCAB, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (3 * torch.randn(number, vocab, generator=torch.Generator().manual_seed(vocab))).to(DEVICE, dtype)


def next_tokens(logits: torch.Tensor, modes: Sequence[Sampling], indices: Sequence[int]) -> torch.Tensor:
    columns = torch.from_numpy(sampling.columns(modes, indices)).to(DEVICE)
    return triton_sampling.sample(logits, columns)


@triton.jit
def _uniforms(out, seeds, indices):
    row = tl.program_id(0)
    tl.store(out + row, triton_sampling._uniform(tl.load(seeds + row), tl.load(indices + row)))


def test_the_uniform_number_is_the_same_bits() -> None:
    seeds, indices = [0, 1, 2**63, 2**64 - 1, 12345], [0, 7, 2**31, 2**32 + 3, 10**6]
    table = torch.from_numpy(sampling.columns([Sampling(seed=seed) for seed in seeds], indices)).to(DEVICE)
    out = torch.zeros(5, dtype=torch.float64, device=DEVICE)
    _uniforms[(5,)](out, table[3], table[4])
    assert out.tolist() == sampling.uniforms(*table[3:].cpu().numpy()).tolist()


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [
        pytest.param(vocab, dtype, marks=() if (vocab, dtype) == (50, torch.float16) else pytest.mark.slow)
        for vocab in (1, 50, triton_sampling.BLOCK, VOCAB)
        for dtype in DTYPES
    ],
)
def test_the_tokens_are_the_oracles(vocab: int, dtype: torch.dtype) -> None:
    logits = rows(len(MODES), vocab, dtype)
    for step in range(2 if vocab > 50 else 1):
        indices = [step + 100 * row for row in range(len(MODES))]
        expected = expected_tokens(logits, MODES, indices)
        assert next_tokens(logits, MODES, indices).tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[3:8], ids=str)
def test_ties_are_cut_in_order_of_id(mode: Sampling) -> None:
    """Logits of three values, of both signs and both zeros."""
    logits = torch.tensor([2.0, 0.0, -0.0, -1.0], device=DEVICE)[rows(1, 60).long().remainder(4)]
    many = logits.half().expand(8, -1).contiguous()
    expected = expected_tokens(many, [mode] * 8, range(8))
    assert next_tokens(many, [mode] * 8, range(8)).tolist() == expected.tolist()


def test_greedy_takes_the_first_maximum_across_blocks() -> None:
    logits = torch.zeros(3, VOCAB, device=DEVICE)
    logits[0, [triton_sampling.BLOCK + 5, 2 * triton_sampling.BLOCK + 5]] = 1.0
    logits[1] = float("-inf")
    logits[2, VOCAB - 1] = 1.0
    tokens = next_tokens(logits, [Sampling()] * 3, [0] * 3)
    assert tokens.tolist() == [triton_sampling.BLOCK + 5, 0, VOCAB - 1]


@pytest.mark.parametrize("mode", [Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=50)], ids=str)
def test_a_token_of_no_weight_is_never_drawn(mode: Sampling) -> None:
    logits = torch.full((6, 300), float("-inf"), device=DEVICE).half()
    logits[:, 7] = logits[:, 250] = 0.0
    tokens = next_tokens(logits, [mode] * 6, range(6)).tolist()
    assert set(tokens) == {7, 250}


@pytest.mark.slow
def test_neighbours_do_not_change_a_row() -> None:
    logits = rows(len(MODES))
    together = next_tokens(logits, MODES, [3] * len(MODES)).tolist()
    for row, mode in enumerate(MODES):
        assert next_tokens(logits[row : row + 1], [mode], [3]).tolist() == together[row : row + 1]


def test_a_row_without_a_right_answer_gives_a_token_that_exists() -> None:
    logits = torch.full((3, 40), float("-inf"), device=DEVICE)
    logits[2] = float("nan")
    modes = [Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=3), Sampling(temperature=1.0, top_p=0.5)]
    assert all(0 <= token < 40 for token in next_tokens(logits, modes, [0] * 3).tolist())
