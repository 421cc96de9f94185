"""What a row is fed: the token that its slot sampled last, or the host's token where the slot has none."""

from __future__ import annotations

import numpy as np
import pytest

from engines.reference import sampling
from engines.reference.batch import Batch, SlotTokens, flatten
from engines.scheduling.request import GREEDY, Request, Sampling
from tests.engines.reference.stepping import Row, Tables, request, step_plan

BLOCK_SIZE = 4
TABLES = Tables({0: [1, 2, 3], 1: [4, 5, 6]}).array()
FIRST, SECOND = [11, 12, 13, 14, 15], [21, 22, 23]
HOT = Sampling(temperature=0.5, top_k=3, top_p=0.9, seed=2**63 + 5)


def decoding(index: int, prompt: list[int], outputs: list[int], how: Sampling = GREEDY) -> Request:
    """A request with outputs that have reached the host."""
    one = request(index, prompt, 20, how)
    assert one.tokens is not None
    one.tokens[len(prompt) : len(prompt) + len(outputs)] = outputs
    one.output_tokens = len(outputs)
    return one


def step(slot_tokens: SlotTokens, *rows: Row) -> Batch:
    return flatten(step_plan(rows, TABLES), BLOCK_SIZE, slot_tokens)


def test_a_decode_is_fed_the_token_of_its_slot_by_name() -> None:
    slot_tokens = SlotTokens(2)
    one, other = request(0, FIRST, 20), request(1, SECOND, 20)
    prompts = step(slot_tokens, Row(one, 1, 0, 5), Row(other, 0, 0, 3))
    assert sorted(prompts.ids) == sorted(FIRST + SECOND)
    for at in range(3):
        batch = step(slot_tokens, Row(one, 1, 5 + at, 1), Row(other, 0, 3 + at, 1))
        fed = dict(zip(batch.positions.tolist(), batch.ids.tolist(), strict=True))
        assert fed == {5 + at: -2, 3 + at: -1}


def test_where_the_host_can_read_the_token_it_is_fed_itself() -> None:
    tokens = np.array([70, 71], dtype=np.int64)
    slot_tokens = SlotTokens(2, tokens)
    one = request(0, FIRST, 20)
    step(slot_tokens, Row(one, 1, 0, 5))
    tokens[1] = 99
    assert step(slot_tokens, Row(one, 1, 5, 1)).ids.tolist() == [99]


def test_who_comes_into_a_slot_at_its_last_ones_position_is_fed_its_own_token() -> None:
    """As after a swap, which may bring a request back to another slot."""
    slot_tokens = SlotTokens(2)
    step(slot_tokens, Row(request(0, FIRST, 20), 0, 0, 5))
    assert step(slot_tokens, Row(decoding(1, SECOND, [31, 32, 33]), 0, 5, 1)).ids.tolist() == [33]


def test_a_token_that_the_host_has_not_seen_is_taken_from_the_slot() -> None:
    """As where a benchmark leaves out the prompts: no step here has sampled the first token."""
    assert step(SlotTokens(2), Row(request(0, FIRST, 20), 1, 5, 1)).ids.tolist() == [-2]


def test_what_is_computed_again_is_fed_from_the_host() -> None:
    slot_tokens = SlotTokens(2)
    one = request(0, FIRST, 20)
    step(slot_tokens, Row(one, 0, 0, 5))
    assert step(slot_tokens, Row(one, 0, 2, 1, samples=False)).ids.tolist() == [13]
    assert step(slot_tokens, Row(one, 0, 0, 3, samples=False)).ids.tolist() == [11, 12, 13]


def test_a_row_of_padding_alone_feeds_no_token_of_its_slot() -> None:
    slot_tokens = SlotTokens(2)
    one, other = request(0, FIRST, 20), request(1, SECOND, 20)
    step(slot_tokens, Row(one, 0, 0, 5), Row(other, 1, 0, 3))
    batch = step(slot_tokens, Row(other, 1, 3, 1), Row(one, 0, 5, 0, padding=2, samples=False))
    assert batch.ids.tolist() == [-2, 0, 0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_sampling_columns_are_those_of_the_request_in_the_slot(order: tuple[int, int]) -> None:
    slot_tokens = SlotTokens(2)
    step(slot_tokens, Row(request(5, SECOND, 20), 0, 0, 3), Row(request(6, SECOND, 20), 1, 0, 3))
    one, other = decoding(0, FIRST, [31, 32], HOT), decoding(1, SECOND, [], Sampling(seed=8))
    for outputs in (2, 3):
        rows = [Row(one, 0, 4 + outputs, 1), Row(other, 1, outputs, 1)]
        batch = step(slot_tokens, *(rows[i] for i in order))
        expected = sampling.columns([HOT, Sampling(seed=8)], [outputs, outputs - 2])
        assert batch.sampling.flags.c_contiguous, "the kernel reads a column's rows side by side"
        assert batch.sampling.tolist() == expected[:, order].tolist()
