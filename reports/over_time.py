"""A run over time, in bins, as many as a chart can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.ledger import StepArray, computing_ns, kv_levels
from reports.in_flight import InFlight
from reports.instances import steps_by_instance
from reports.quantiles import FloatArray
from reports.schema import RunFile
from reports.slots import SlotState, num_slots, slot_counts, slot_spans

BINS = 160
STEPS_PER_BIN = 8  # at least, on average
REQUESTS_PER_BIN = 12  # at least, on average, where a bin shows a percentile
RATE_BINS = 60  # more show noise
REQUESTS_PER_RATE_BIN = 25  # at least, on average: Poisson arrivals are then within 20 % of their rate most of the time
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Course:
    """Values over time; one per bin, at its middle."""

    at_s: FloatArray
    values: dict[str, list[float | None]]


def signals_over_time(record: RunRecord) -> dict[str, Course]:
    """By instance, "" with one: device_busy, kv_usage (shares of 1), running, waiting, averages over the wall time of
    each bin. From the samples where there is no ledger, without signals that no sample has."""
    if not len(record.steps):
        return {"": _sampled(record)}
    in_flight = InFlight.of(record)
    parts = steps_by_instance(record.steps)
    return {
        name: _signals(steps, in_flight, None if len(parts) == 1 else at)
        for at, (name, steps) in enumerate(parts.items())
        if len(steps)
    }


def _signals(steps: StepArray, in_flight: InFlight, instance: int | None) -> Course:
    bins = int(np.clip(len(steps) // STEPS_PER_BIN, 1, BINS))
    edges = np.linspace(float(steps["start_ns"][0]), float(steps["end_ns"].max()), bins + 1)
    values: dict[str, list[float | None]] = {
        "device_busy": _busy(steps, edges).tolist(),
        "kv_usage": _kv_usage(steps, edges).tolist(),
        "running": in_flight.running.per_bin(edges, instance).tolist(),
        "waiting": in_flight.waiting.per_bin(edges, instance).tolist(),
    }
    return Course(_middles(edges) / 1e9, values)


def _busy(steps: StepArray, edges: FloatArray) -> FloatArray:
    """Share of each bin; the time of a step is spread evenly from its start to its end."""
    at = np.column_stack([steps["start_ns"], steps["end_ns"]]).reshape(-1).astype(np.float64)
    busy = computing_ns(steps).astype(np.float64)
    total = np.cumsum(busy)
    reached = np.column_stack([total - busy, total]).reshape(-1)
    # Steps of a pipeline may overlap; their order of ends is kept.
    return _per_bin(np.maximum.accumulate(at), reached, edges)


def _kv_usage(steps: StepArray, edges: FloatArray) -> FloatArray:
    at_ns, level = kv_levels(steps)
    reached = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at_ns))])
    return _per_bin(at_ns.astype(np.float64), reached, edges)


def _per_bin(at_ns: FloatArray, reached: FloatArray, edges: FloatArray) -> FloatArray:
    """Mean in each bin of what has reached these sums at these times."""
    return np.asarray(np.diff(np.interp(edges, at_ns, reached)) / np.maximum(np.diff(edges), 1.0))


def _middles(edges: FloatArray) -> FloatArray:
    return np.asarray((edges[1:] + edges[:-1]) / 2)


def _sampled(record: RunRecord) -> Course:
    samples = record.signals
    stride = max(1, -(-len(samples) // BINS))
    groups = [samples[at : at + stride] for at in range(0, len(samples), stride)]
    values: dict[str, list[float | None]] = {}
    for name in ("device_busy", "kv_usage", "running", "waiting"):
        column = [_mean([getattr(one, name) for one in group]) for group in groups]
        if any(one is not None for one in column):
            values[name] = column
    return Course(np.array([group[0].t / 1e9 for group in groups]), values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


def requests_over_time(record: RunRecord) -> Course:
    """due, completed: requests per second in each bin, by scheduled time and by end of completed requests."""
    due_ns, end_ns = record.column_ns("scheduled"), record.column_ns("end")
    if len(record) < 2 * REQUESTS_PER_RATE_BIN:
        return Course(np.empty(0), {})
    bins = min(len(record) // REQUESTS_PER_RATE_BIN, RATE_BINS)
    edges = np.linspace(float(due_ns.min()), float(end_ns.max()) + 1, bins + 1)
    wide_s = (edges[1] - edges[0]) / 1e9
    ended_well = end_ns[record.where("status", "completed")]
    counted = {"due": np.histogram(due_ns, edges)[0], "completed": np.histogram(ended_well, edges)[0]}
    return Course(_middles(edges) / 1e9, {name: (found / wide_s).tolist() for name, found in counted.items()})


def latency_over_time(at_ns: IntArray, values_ms: FloatArray) -> Course:
    """p50 and p99 of the requests in each bin of time; bins without one are left out."""
    known = ~np.isnan(values_ms)
    at, values = at_ns[known], values_ms[known]
    if not at.size:
        return Course(np.empty(0), {"p50": [], "p99": []})
    bins = int(np.clip(at.size // REQUESTS_PER_BIN, 1, BINS))
    edges = np.linspace(float(at.min()), float(at.max()) + 1, bins + 1)
    which = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, bins - 1)
    order = np.argsort(which, kind="stable")
    groups = np.split(values[order], np.searchsorted(which[order], np.arange(1, bins)))
    filled = [at for at, group in enumerate(groups) if group.size]
    pairs = [np.percentile(groups[at], (50, 99)).tolist() for at in filled]
    middles = _middles(edges)[filled] / 1e9
    return Course(middles, {"p50": [one[0] for one in pairs], "p99": [one[1] for one in pairs]})


def slots_over_time(record: RunRecord, run: RunFile) -> tuple[FloatArray, dict[SlotState, list[float]]]:
    """(the step at the left of each bin, mean number of slots in each state). Empty where slots are not known."""
    slots, steps = num_slots(record), len(record.steps)
    if not slots or not steps:
        return np.empty(0), {}
    edges = np.round(np.linspace(0, steps, min(steps, BINS) + 1)).astype(np.int64)
    counts = slot_counts(slot_spans(record, run), slots, edges).sum(axis=0) / np.diff(edges)[:, None]
    return edges[:-1].astype(np.float64), {
        state: counts[:, state].tolist() for state in SlotState if counts[:, state].any()
    }


def distribution_curve(values_ms: FloatArray, points: int = 160) -> tuple[list[float], list[float]]:
    """(latency in ms, share of requests up to it): all values where they are few, else as many quantiles, denser
    towards the tail."""
    ordered = np.sort(values_ms[~np.isnan(values_ms)])
    n = ordered.shape[0]
    if n <= points:
        return ordered.tolist(), ((np.arange(n) + 1) / n).tolist()
    bulk, tail = np.linspace(0, 0.95, points // 2), 1 - np.geomspace(0.05, 1 / n, points // 2)
    ranks = np.unique(np.concatenate([np.round(np.concatenate([bulk, tail]) * (n - 1)), [n - 1]]).astype(np.int64))
    return ordered[ranks].tolist(), ((ranks + 1) / n).tolist()
