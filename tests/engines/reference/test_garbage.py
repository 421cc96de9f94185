"""While the engine runs, Python's garbage collector does not stop it to look at what was loaded before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from engines.base import SilentObserver
from engines.reference.engine import ReferenceEngine
from engines.reference.model.weights import load_model
from engines.scheduling.config import SchedulerConfig
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


@pytest.fixture(scope="module")
def engine() -> ReferenceEngine:
    model = load_model("tiny", dtype="fp32", device="cpu")
    return ReferenceEngine(model, SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=4))


@pytest.fixture
def full() -> Iterator[list[int]]:
    """Gets an entry at each full collection. One is due as soon as collections are enabled again."""
    seen: list[int] = []

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(len(seen))

    thresholds = gc.get_threshold()
    gc.disable()
    # Python waits with a full collection until a quarter of all objects is new.
    new = [[i] for i in range(len(gc.get_objects()) // 2)]
    gc.collect(1)
    gc.callbacks.append(look)
    gc.set_threshold(20, 1, 1)
    yield seen
    gc.enable()
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(look)
    del new


class Watching(SilentObserver):
    """At every turn of the loop: how many full collections there were, and how many objects are left out of them."""

    def __init__(self, full: list[int], fails_at: int = 0) -> None:
        self._full, self._fails_at = full, fails_at
        self.seen: list[tuple[int, int]] = []

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        gc.enable()
        self.seen.append((len(self._full), gc.get_freeze_count()))
        if len(self.seen) == self._fails_at:
            raise RuntimeError("told to")
        return False


pytestmark = pytest.mark.usefixtures("real_collections")
PLAN = RequestPlan.of([5, 30, 1, 60, 17, 9], [4, 1, 9, 12, 3, 20])


def test_a_full_collection_comes_before_a_run_and_none_in_it(engine: ReferenceEngine, full: list[int]) -> None:
    observer = Watching(full)
    engine.run(PLAN, Pacing(PLAN.arrivals_ugap), observer)
    counts, frozen = zip(*observer.seen, strict=True)
    assert len(counts) > 20
    assert set(counts) == {1}
    assert min(frozen) > 10_000
    assert gc.get_freeze_count() == 0


def test_collection_is_as_before_after_a_run_that_failed(engine: ReferenceEngine) -> None:
    with pytest.raises(RuntimeError, match="told to"):
        engine.run(PLAN, Pacing(PLAN.arrivals_ugap), Watching([], fails_at=3))
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()
