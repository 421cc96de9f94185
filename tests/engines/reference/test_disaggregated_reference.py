"""Two instances of the reference engine: the tokens are those of one, whatever moved and whatever gave way."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from engines.base import Observer, RunRecord, Signal, SilentObserver
from engines.reference.disaggregated import DisaggregatedReferenceEngine
from engines.reference.engine import ReferenceEngine
from engines.reference.model.weights import LoadedModel, load_model
from engines.request_table import RequestRow
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from engines.scheduling.request import Request, Sampling
from tests.ledger_identities import check_identities
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

PLAN = RequestPlan.of([(13 * i) % 60 + 1 for i in range(24)], [(7 * i) % 30 + 1 for i in range(24)])
HOT = Sampling(temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("tiny", dtype="fp32", device="cpu")


def _config(**changes: object) -> SchedulerConfig:
    defaults: dict[str, object] = {
        "kv_blocks": 200, "block_size": 4, "max_model_len": 128, "max_num_seqs": 6, "max_num_batched_tokens": 32,
    }  # fmt: skip
    return SchedulerConfig(**(defaults | changes))  # type: ignore[arg-type]


def _tokens(
    engine: ReferenceEngine | DisaggregatedReferenceEngine, plan: RequestPlan = PLAN
) -> tuple[RunRecord, dict[int, list[int]]]:
    """The record, and every request's output."""
    requests: list[Request] = []
    makes = engine if isinstance(engine, ReferenceEngine) else engine._decode
    make = makes.request

    def keep(incoming: object) -> Request:
        requests.append(make(incoming))  # type: ignore[arg-type]
        return requests[-1]

    makes.request = keep  # type: ignore[method-assign, assignment]
    record = engine.run(plan, Pacing(plan.arrivals_ugap, concurrency=10), SilentObserver())
    makes.request = make  # type: ignore[method-assign]
    outputs = {}
    for one in requests:
        assert one.tokens is not None
        outputs[one.index] = one.tokens[one.prompt_tokens : one.prompt_tokens + one.output_tokens].tolist()
    return record, outputs


@pytest.mark.parametrize("sampling", [Sampling(), HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("decode_blocks", [200, 26], ids=["room", "pressure"])
def test_tokens_are_those_of_one_engine(model: LoadedModel, sampling: Sampling, decode_blocks: int) -> None:
    """26 blocks of 4 tokens hold one long request: others are preempted and computed again where they decode."""
    _, expected = _tokens(ReferenceEngine(model, _config(), sampling=sampling))
    pair = DisaggregatedReferenceEngine(
        model, DisaggregatedConfig(_config(), _config(kv_blocks=decode_blocks)), sampling=sampling
    )
    record, found = _tokens(pair)
    assert found == expected
    prefill, decode = (record.steps[record.steps["instance"] == one] for one in (0, 1))
    check_identities(prefill, 6, 200)
    check_identities(decode, 6, decode_blocks)
    for name in ("preempted", "recomputed_tokens"):
        assert decode[name].any() == (decode_blocks == 26), name
    assert not prefill["decode_rows"].any()
    assert decode["transfers"].sum() == np.count_nonzero(PLAN.output_tokens > 1)


def test_copies_that_are_missing_would_be_seen(model: LoadedModel) -> None:
    """The oracle has teeth: with a link that copies nothing, tokens are others."""
    _, expected = _tokens(ReferenceEngine(model, _config()))
    pair = DisaggregatedReferenceEngine(model, DisaggregatedConfig(_config(), _config()))
    pair._prefill.pool, kept = pair._decode.pool, pair._prefill.pool  # copies from the wrong pool
    _, found = _tokens(pair)
    pair._prefill.pool = kept
    assert found != expected


def test_two_prompts_that_begin_alike_share_blocks_until_both_have_gone(model: LoadedModel) -> None:
    plan = RequestPlan.of([40] * 8, [6] * 8, session=np.zeros(8, dtype=np.int64))
    _, expected = _tokens(ReferenceEngine(model, _config()), plan)
    caching = _config(prefix_caching=True, kv_blocks=40)
    record, found = _tokens(DisaggregatedReferenceEngine(model, DisaggregatedConfig(caching, caching)), plan)
    assert found == expected
    assert record.steps["prefix_hit_tokens"].sum() > 0


def test_it_runs_again_and_leaves_no_thread(model: LoadedModel) -> None:
    pair = DisaggregatedReferenceEngine(model, DisaggregatedConfig(_config(), _config()))
    before = threading.active_count()
    first, second = (_tokens(pair) for _ in range(2))
    assert first[1] == second[1]
    assert threading.active_count() == before
    assert int(second[0].steps["now_ns"][0]) < 1_000_000_000  # the clock starts with the run


def test_steps_of_the_two_overlap_in_time(model: LoadedModel) -> None:
    record, _ = _tokens(DisaggregatedReferenceEngine(model, DisaggregatedConfig(_config(), _config())))
    prefill, decode = (record.steps[record.steps["instance"] == one] for one in (0, 1))
    both = (prefill["start_ns"][:, None] < decode["end_ns"]) & (decode["start_ns"] < prefill["end_ns"][:, None])
    assert both.any()
    for steps in (prefill, decode):
        assert (steps["start_ns"][1:] >= steps["end_ns"][:-1]).all()


class StopsAfter(SilentObserver):
    def __init__(self, requests: int) -> None:
        self._left = requests

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self._left <= 0

    def request_ended(self, row: RequestRow, events: object) -> None:
        self._left -= 1

    def sampled(self, signal: Signal) -> None: ...


def test_a_run_that_is_broken_off_ends_with_everything_accounted_for(model: LoadedModel) -> None:
    pair = DisaggregatedReferenceEngine(model, DisaggregatedConfig(_config(), _config(kv_blocks=40)))
    observer: Observer = StopsAfter(5)
    record = pair.run(PLAN, Pacing(PLAN.arrivals_ugap), observer)
    assert record.interrupted
    assert sorted(row.i for row in record.rows) == list(range(24))
    assert {row.status for row in record.rows} == {"completed", "cancelled"}


def test_describe_says_what_each_has(model: LoadedModel) -> None:
    described = DisaggregatedReferenceEngine(
        model, DisaggregatedConfig(_config(kv_blocks=50, max_num_seqs=3), _config())
    ).describe()
    assert described["disaggregate"] is True
    assert (described["prefill_kv_blocks"], described["kv_blocks"]) == (50, 200)
    assert (described["prefill_max_num_seqs"], described["threads"]) == (3, 1)


@pytest.mark.parametrize(
    ("prefill", "decode", "says"),
    [
        (
            10**12,
            200,
            r"^prefill_kv_blocks: 1000000000000 blocks take .* GiB of KV, .* GiB are free beside the decode instance's",
        ),
        (200, 10**12, r"^kv_blocks: 1000000000000 blocks take .* GiB of KV, .* GiB are free"),
    ],
)
def test_a_pool_that_does_not_fit_is_refused_by_its_name(
    model: LoadedModel, prefill: int, decode: int, says: str
) -> None:
    with pytest.raises(CbbenchError, match=says):
        DisaggregatedReferenceEngine(model, DisaggregatedConfig(_config(kv_blocks=prefill), _config(kv_blocks=decode)))
