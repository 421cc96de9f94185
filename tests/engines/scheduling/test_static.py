"""Static batching: when it admits, what shape it launches, when it frees. The classic example, against continuous."""

from __future__ import annotations

import numpy as np
import pytest

from engines.ledger import Blocked
from tests.engines.scheduling.driving import Driven, req

STATIC = ["padded", "compact-held", "compact-freed"]


def _bus(mode: str, static: str = "padded") -> Driven:
    """Three slots; 10, 50 and 200 output tokens are admitted, more wait. Prompts of one token."""
    d = Driven.of(mode=mode, static=static, max_num_seqs=3)
    return d.submit(*(req(i, 1, o) for i, o in enumerate((10, 50, 200, 60, 60, 60)))).drain()


@pytest.mark.parametrize("static", STATIC)
def test_static_wastes_340_of_600_slot_steps_and_admits_the_fourth_at_step_201(static: str) -> None:
    d = _bus("static", static)
    first = d.steps[:200]
    assert (first["dead_slots"] + first["idle_slots"]).sum() == (200 - 10) + (200 - 50)
    assert first["active_slots"].sum() + 340 == 600
    assert next(r for r in d.finished if r.index == 3).stints[0].admitted == 201
    # only the padded rectangle launches what is finished; the compact shapes leave the slot idle
    assert first["dead_slots"].sum() == (340 if static == "padded" else 0)


def test_continuous_admits_the_fourth_at_step_11() -> None:
    d = _bus("continuous")
    assert next(r for r in d.finished if r.index == 3).stints[0].admitted == 11
    while_a_request_waits = d.steps[d.steps["waiting"] > 0]
    assert (while_a_request_waits["dead_slots"] + while_a_request_waits["idle_slots"]).sum() == 0


@pytest.mark.parametrize("static", STATIC)
def test_nothing_is_admitted_mid_batch(static: str) -> None:
    d = Driven.of(mode="static", static=static, max_num_seqs=4)
    d.submit(*(req(i, 1, o) for i, o in enumerate((1, 1, 1, 50, 2, 2, 2, 2)))).drain()
    assert d.steps["admitted"].nonzero()[0].tolist() == [0, 50]  # the second batch starts at step 51
    assert set(d.steps["blocked"][1:50].tolist()) == {Blocked.BATCH}


def test_padded_prefill_is_a_rectangle_in_column_chunks() -> None:
    """Prompts of 10, 3 and 7, budget 12: 4 columns a step, left-padded, all get their first token in the third step."""
    d = Driven.of(mode="static", max_num_seqs=3, max_num_batched_tokens=12)
    d.submit(req(0, 10, 2), req(1, 3, 2), req(2, 7, 2)).drain()
    prefill = d.plans[:3]
    assert [(p.counts + p.padding).tolist() for p in prefill] == [[4, 4, 4], [4, 4, 4], [2, 2, 2]]
    assert [p.counts.tolist() for p in prefill] == [[4, 0, 1], [4, 1, 4], [2, 2, 2]]
    assert [p.samples.tolist() for p in prefill] == [[False] * 3, [False] * 3, [True] * 3]
    assert d.steps["prompt_padding_tokens"].sum() == (10 - 3) + (10 - 7)


def test_padded_launches_dead_rows_until_the_longest_ends() -> None:
    d = Driven.of(mode="static", max_num_seqs=3).submit(req(0, 1, 1), req(1, 1, 3), req(2, 1, 5)).drain()
    assert d.steps["dead_row_tokens"].tolist() == [0, 1, 1, 2, 2]  # sum of (max - own) = 4 + 2
    assert d.steps["launched_tokens"].tolist() == [3] * 5


@pytest.mark.parametrize(("static", "used"), [("padded", 3), ("compact-held", 3), ("compact-freed", 2)])
def test_when_blocks_are_freed(static: str, used: int) -> None:
    d = Driven.of(mode="static", static=static, max_num_seqs=3).submit(*(req(i, 1, o) for i, o in enumerate((1, 3, 3))))
    d.drain()
    assert d.steps["kv_used_blocks"].tolist() == [3, used, used]


def test_equal_lengths_take_equal_steps_in_every_mode() -> None:
    counts = {
        len(Driven.of(max_num_seqs=4, **options).submit(*(req(i, 1, 6) for i in range(12))).drain().plans)
        for options in ({}, *({"mode": "static", "static": s} for s in STATIC))
    }
    assert counts == {18}


def test_static_batch_is_bounded_by_reserved_kv() -> None:
    """Full reserve: 4 + 9 - 1 = 12 positions are 3 blocks, so 7 blocks take two requests, not three."""
    d = Driven.of(mode="static", kv_blocks=7, max_num_seqs=3).submit(*(req(i, 4, 9) for i in range(4))).drain()
    assert d.steps["admitted"][d.steps["admitted"] > 0].tolist() == [2, 2]


def test_an_aborted_member_is_a_dead_row_of_the_padded_batch() -> None:
    d = Driven.of(mode="static", max_num_seqs=2).submit(req(0, 1, 9), req(1, 1, 4))
    d.step()
    d.abort(1)
    d.drain()
    assert d.steps["dead_row_tokens"].tolist() == [0] + [1] * 8


def test_stop_in_a_padded_batch_frees_when_all_have_stopped() -> None:
    d = Driven.of(mode="static", max_num_seqs=2, eos_ids=frozenset({7}))
    d.tokens = lambda plan: np.full(int(plan.samples.sum()), 7 if plan.step == 3 else 1, np.int32)
    d.submit(*(req(i, 1, 9, ignore_eos=False) for i in range(3))).drain()
    assert d.steps["admitted"].nonzero()[0].tolist() == [0, 3]
