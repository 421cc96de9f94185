"""What must be said where runs with two instances stand beside runs with one: on which devices they were."""

from __future__ import annotations

from collections.abc import Sequence

from reports.schema import EngineInfo
from reports.sweep_schema import Point

TWO_DEVICES = (
    "true is predicted on two devices, one for prefill and one for decode, and false on one. For an equal comparison "
    "give false half of the load, as two replicas get half of the requests each (docs/disaggregation.md)."
)
SHARED_DEVICE = (
    "Prefill and decode instances on one device share its cores and its memory bandwidth, and plan no step while one "
    "runs; two devices would not. Beside one instance they are at a disadvantage (docs/disaggregation.md)."
)


def unequal_devices(params: Sequence[str], points: Sequence[Point]) -> bool:
    """Whether some points of a sweep of `disaggregate` have two devices and others one, as simulated ones have."""
    return _both(params, [one for one in points if one.prediction])


def note_of_sweep(params: Sequence[str], points: Sequence[Point]) -> str | None:
    if unequal_devices(params, points):
        return TWO_DEVICES
    return SHARED_DEVICE if _both(params, [one for one in points if not one.prediction]) else None


def note_of_runs(engines: Sequence[EngineInfo]) -> str | None:
    ours = {bool(one.config.get("disaggregate")) for one in engines if one.kind == "reference"}
    return SHARED_DEVICE if ours == {True, False} else None


def _both(params: Sequence[str], points: Sequence[Point]) -> bool:
    if "disaggregate" not in params:
        return False
    at = params.index("disaggregate")
    return {one.values[at] for one in points if one.error is None} == {True, False}
