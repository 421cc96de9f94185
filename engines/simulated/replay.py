"""Many simulated runs of one setting, for statistics over them: what each request took, without a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from engines.ledger import StepArray
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import IntArray
from engines.simulated.calibrate import MeasuredSteps
from engines.simulated.compiled_run import BLOCK_STEPS, CompiledCore, why_not
from engines.simulated.step_time import FittedStepTimes, FloatArray
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

KNEES = ("knee_rows", "knee_tokens")  # terms that are no times


@dataclass(frozen=True, eq=False)
class Replay:
    """Runs of an engine under one load, by whatever plan and step-time model."""

    config: SchedulerConfig
    front_end_ns: int
    pacing: Callable[[RequestPlan], Pacing]  # a fresh one for each run

    def why_not(self, model: FittedStepTimes, plan: RequestPlan) -> str | None:
        """Why the compiled core does not cover these runs."""
        return why_not(self.config, model, plan, None, least_requests=1)

    def run(
        self, model: FittedStepTimes, plan: RequestPlan, ratios: FloatArray | None = None
    ) -> tuple[IntArray, StepArray]:
        """(the columns of all requests as in compiled_core.py, the ledger). ratios: factors of the time of each step,
        repeated as needed."""
        tables = model.tables(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        block_steps = BLOCK_STEPS if ratios is None else 1
        core = CompiledCore(self.config, tables, plan, self.pacing(plan), self.front_end_ns, block_steps)
        return core.run_through(ratios)


def predicted_ns(model: FittedStepTimes, measured: MeasuredSteps) -> FloatArray:
    """The model's time of each measured step: float64[steps]."""
    rows, tokens = measured.rows, measured.tokens
    tables = model.tables(int(rows.max()), int(tokens.max()))
    decode = tables.decode_base[rows] + tables.decode_kv * measured.kv
    mixed = tables.mixed_base[tokens] + tables.rows[rows] + tables.mixed_kv * measured.kv
    mixed += tables.pair * measured.prefill_pairs + tables.prefill_kv * measured.prefill_kv
    ns: FloatArray = np.maximum(1.0, np.where(measured.decode_only, decode, mixed))
    return ns


def scaled(model: FittedStepTimes, factor: Callable[[], float]) -> FittedStepTimes:
    """The model with each of its times multiplied by what `factor` returns."""
    groups = {}
    for name in ("decode", "mixed", "gap"):
        terms = getattr(model, name)
        times = {key: ns * factor() for key, ns in msgspec.structs.asdict(terms).items() if key not in KNEES}
        groups[name] = msgspec.structs.replace(terms, **times)
    return msgspec.structs.replace(model, **groups)


def at_busy_time(model: FittedStepTimes, measured: MeasuredSteps) -> FittedStepTimes:
    """The model scaled so that it predicts the summed time of the measured steps."""
    ratio = float(measured.duration_ns.sum()) / float(predicted_ns(model, measured).sum())
    return scaled(model, lambda: ratio)


def step_ratios(model: FittedStepTimes, measured: MeasuredSteps) -> FloatArray:
    """Measured over predicted time of each step with the gap before it, where that is known: float64[steps]."""
    known = measured.gap_ns >= 0
    gaps = model.tables(int(measured.rows.max()), 1).gaps[measured.rows]
    predicted = predicted_ns(model, measured) + np.where(known, gaps, 0)
    ratios: FloatArray = (measured.duration_ns + np.where(known, measured.gap_ns, 0)) / predicted
    return ratios
