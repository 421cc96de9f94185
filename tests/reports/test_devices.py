"""Two instances beside one: whether the devices are the same is said wherever the two are compared."""

from __future__ import annotations

import pytest

from reports.devices import SHARED_DEVICE, TWO_DEVICES, note_of_runs, note_of_sweep
from reports.schema import EngineInfo
from tests.reports.test_curves import point


def engine(kind: str, *, two: bool) -> EngineInfo:
    return EngineInfo(kind, config={"disaggregate": True} if two else {})


@pytest.mark.parametrize(
    ("kinds", "note"),
    [
        ([("reference", True), ("reference", False)], SHARED_DEVICE),
        ([("reference", True), ("reference", True)], None),
        ([("reference", False), ("reference", False)], None),
        ([("simulated", True), ("simulated", False)], None),  # its hardware says 2 x
        ([("reference", True), ("simulated", False)], None),
    ],
)
def test_runs(kinds: list[tuple[str, bool]], note: str | None) -> None:
    assert note_of_runs([engine(kind, two=two) for kind, two in kinds]) == note


@pytest.mark.parametrize(("prediction", "note"), [(None, SHARED_DEVICE), ("predicted", TWO_DEVICES)])
def test_a_sweep(prediction: str | None, note: str) -> None:
    both = [point(value, 100, prediction=prediction) for value in (True, False)]
    assert note_of_sweep(["disaggregate"], both) == note
    assert note_of_sweep(["disaggregate"], both[:1]) is None
    assert note_of_sweep(["max-num-seqs"], both) is None
