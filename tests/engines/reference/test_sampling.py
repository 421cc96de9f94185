"""Sampling: greedy, distributions, filters, and independence of other rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from engines.reference.sampling import columns, philox, uniforms
from engines.scheduling.request import GREEDY, Sampling
from tests.engines.reference.stepping import next_tokens

DRAWS = 4000


def _draw(logits: torch.Tensor, sampling: Sampling, draws: int = DRAWS) -> np.ndarray:
    """`draws` outputs of one request with constant logits."""
    return next_tokens(logits.expand(draws, -1), [sampling] * draws, range(draws)).numpy()


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 5.0, 5.0], [0.0, 1.0, 2.0]])
    for dtype in (torch.float32, torch.bfloat16):
        assert next_tokens(logits.to(dtype), [GREEDY] * 3, [0, 0, 0]).tolist() == [1, 0, 2]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_the_softmax(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    counts = np.bincount(_draw(logits, Sampling(temperature=temperature, seed=11)), minlength=5)
    expected = torch.softmax(logits.double() / temperature, dim=-1).numpy() * DRAWS
    assert stats.chisquare(counts, expected).pvalue > 0.01


def test_top_k_keeps_the_k_likeliest_in_proportion() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    counts = np.bincount(_draw(logits, Sampling(temperature=1.0, top_k=2, seed=3)), minlength=5)
    assert counts[[0, 3, 4]].sum() == 0
    expected = torch.softmax(logits[[1, 2]].double(), dim=-1).numpy() * DRAWS
    assert stats.chisquare(counts[[1, 2]], expected).pvalue > 0.01


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for top_p, kept in ((0.4, {0}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        assert set(_draw(logits, Sampling(temperature=1.0, top_p=top_p, seed=5)).tolist()) == kept


def test_top_1_and_a_tiny_p_are_greedy() -> None:
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    best = int(logits.argmax())
    for sampling in (Sampling(temperature=5.0, top_k=1), Sampling(temperature=5.0, top_p=1e-9)):
        assert set(_draw(logits[0], sampling, 50).tolist()) == {best}


def test_a_token_of_weight_zero_is_never_drawn() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")])
    assert set(_draw(logits, Sampling(temperature=1.0, seed=2)).tolist()) == {1, 3}


def test_tokens_do_not_depend_on_the_neighbours() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 300, generator=generator)
    kinds = [GREEDY, Sampling(1.0), Sampling(0.7, top_k=20), Sampling(1.3, top_p=0.9)] * 2
    samplings = [Sampling(s.temperature, s.top_k, s.top_p, seed=i) for i, s in enumerate(kinds)]
    together = next_tokens(logits, samplings, range(8))
    backwards = next_tokens(logits.flip(0), samplings[::-1], range(7, -1, -1)).flip(0)
    alone = [int(next_tokens(logits[i : i + 1], [samplings[i]], [i])) for i in range(8)]
    assert together.tolist() == backwards.tolist() == alone


def test_the_draw_is_a_function_of_seed_and_index() -> None:
    seeds, indices = np.divmod(np.arange(20 * 200), 200)
    values = uniforms(seeds, indices).reshape(20, 200)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert len(np.unique(values)) == values.size
    assert stats.kstest(values.ravel(), "uniform").pvalue > 0.01
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.05
    # Seeds count modulo 2**64, and indices beyond 32 bits are others.
    table = columns([Sampling(seed=-1), Sampling(seed=2**64 - 1), Sampling(seed=2**32 - 1)], [5, 5, 5])
    same, again, other = uniforms(table[3], table[4])
    assert same == again != other
    assert uniforms(table[3, :1], table[4, :1] + 2**32) != same


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_words_its_authors_publish(counter: list[int], key: list[int], words: list[int]) -> None:
    """The known answers of Random123, philox4x32 with 10 rounds."""
    given = (np.array(values, dtype=np.uint64) for values in (counter, key))
    assert [int(word) for word in philox(*given)] == words


def test_a_draw_is_the_first_two_words() -> None:
    assert uniforms(np.array([0]), np.array([0])) == [(0x6627E8D5E169C58D >> 12) * 2.0**-52]
