from __future__ import annotations

import hashlib

import numpy as np
import pytest

from workloads.plan import RequestPlan
from workloads.prompts import Prompts

TOKEN_IDS = np.arange(1000, 1300, dtype=np.int32)


def prompts_of(lengths: list[int], seed: int = 0, token_ids: np.ndarray = TOKEN_IDS) -> Prompts:
    return Prompts(RequestPlan.of(lengths, [1] * len(lengths)), token_ids, seed)


@pytest.mark.parametrize("length", [1, 2, 3, 100, 4097])
def test_length_type_and_range(length: int) -> None:
    ids = prompts_of([length]).ids(0)
    assert ids.shape == (length,)
    assert ids.dtype == np.int32
    assert set(ids.tolist()) <= set(TOKEN_IDS.tolist())


def test_every_id_is_used_about_equally() -> None:
    ids = prompts_of([300_000]).ids(0)
    counts = np.bincount(ids - 1000, minlength=300)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_a_prompt_depends_on_seed_and_index_alone() -> None:
    one, longer = prompts_of([50, 50]), prompts_of([70, 51, 9])
    assert np.array_equal(one.ids(1), longer.ids(1)[:50])
    assert np.array_equal(one.ids(1), one.ids(1))
    assert not np.array_equal(one.ids(0), one.ids(1))
    assert not np.array_equal(one.ids(0), prompts_of([50], seed=1).ids(0))


def test_the_same_prompt_on_any_machine() -> None:
    ids = prompts_of([1001], seed=7).ids(0).astype("<i4")
    assert (
        hashlib.sha256(ids.tobytes()).hexdigest() == "f87772b4e6feaafe9a2fc2cfd16149e73495b381bb8bfeafed47469dafd27ba7"
    )


def test_turns_of_a_session_begin_with_the_turns_before() -> None:
    plan = RequestPlan.of([5, 9, 8, 20], [1] * 4, session=np.array([0, 1, 0, 0]))
    first, other, second, third = (Prompts(plan, TOKEN_IDS).ids(i) for i in range(4))
    assert np.array_equal(second[:5], first)
    assert np.array_equal(third[:8], second)
    assert not np.array_equal(other[:5], first)
    assert not np.array_equal(Prompts(plan, TOKEN_IDS, 1).ids(0), first)


def test_a_prefix_is_shared_and_what_follows_is_not() -> None:
    prefix, session = np.array([0, 0, 1, -1, 0, 0]), np.array([-1, -1, -1, -1, 7, 7])
    plan = RequestPlan.of([30, 30, 30, 30, 25, 3], [1] * 6, prefix=prefix, session=session, prefix_tokens=(10, 20))
    one, two, other, none, turn, short = (Prompts(plan, TOKEN_IDS).ids(i) for i in range(6))
    assert [len(ids) for ids in (one, two, other, none, turn, short)] == [30, 30, 30, 30, 25, 3]
    assert np.array_equal(one[:10], two[:10])
    assert np.array_equal(one[:10], turn[:10])
    assert np.array_equal(one[:3], short)
    assert not np.array_equal(one[10:], two[10:])
    assert not np.array_equal(one[:10], other[:10])
    assert not np.array_equal(one[:10], none[:10])
    alone = RequestPlan.of([15], [1], session=np.array([7]))
    assert np.array_equal(turn[10:], Prompts(alone, TOKEN_IDS).ids(0)), "the session continues after the prefix"


def test_a_prefix_without_a_length_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix: 1 has no length"):
        RequestPlan.of([3], [1], prefix=np.array([1]), prefix_tokens=(10,))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="token ids to choose from, got 0"):
        prompts_of([1], token_ids=np.empty(0, dtype=np.int32))
    with pytest.raises(ValueError, match="prompt_seed"):
        prompts_of([1], seed=-1)
