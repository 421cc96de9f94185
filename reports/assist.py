"""The model-assisted verdict on a latency percentile: the run's own value, corrected for the bursts that it met or not.

    corrected = measured * simulated(many more requests) / simulated(the same requests)

A short run meets few bursts of the queue, or too many. A simulation of the same requests meets the same ones, so that
the ratio of a long simulation to it says how far the run's percentile is from that of the load: a control variate
(Glasserman, Monte Carlo Methods in Financial Engineering, 2004, 4.1). The step times are calibrated on the run itself.

What is uncertain is drawn: each draw simulates both with other step times (every term off by the model's stated error,
then scaled to the run's busy time) and the same requests with the run's own noise of single steps. The spread of the
drawn ratios, and that of the long simulation over its seeds, make the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
from scipy.special import stdtrit

from engines.scheduling.plan import IntArray
from engines.simulated import compiled_core as core
from engines.simulated.calibrate import MeasuredSteps
from engines.simulated.replay import Replay, at_busy_time, scaled, step_ratios
from engines.simulated.step_time import FittedStepTimes, FloatArray
from reports.counted_values import CountedValues
from reports.metrics import RequestTimes
from reports.schema import SlaResult, Verdict
from reports.sla import parse_sla
from reports.validity import validity
from workloads.plan import RequestPlan

MODEL_ASSISTED: Final = "model-assisted"
ASSISTED = ("ttft_ms", "ttft_sched_ms", "e2el_ms", "e2el_sched_ms", "tpot_ms")
TERM_ERROR = 0.03  # of each term of the model at least, whatever its fit says of itself
# Of the drawn error: the terms of a calibrated model are off together, which draws of single terms do not show. At 1.0
# 16 of 100 runs of benchmarks/verdicts_assist.py passed falsely (TTFT, load 0.85, 300 requests), against a truth that
# turned out to be about 13 % too high.
MARGIN = 1.4
NOISE_BLOCK = 50  # steps: noise of a machine lasts longer than a step
FAR_OFF = 0.15  # log of measured over simulated with the same requests; beyond that and its noise the model is wrong
PlanOf = Callable[[int, int], RequestPlan]  # (requests, seed)


class Size(NamedTuple):
    """How much is simulated. Near saturation the P99 of 15,000 requests still varies by a third from seed to seed."""

    long_runs: int = 16
    long_requests: int = 15_000
    draws: int = 10
    drawn_requests: int = 8_000


FULL = Size()


class Draw(NamedTuple):
    same: RequestTimes  # with the noise of steps
    long: RequestTimes
    same_quiet: RequestTimes


@dataclass(frozen=True, eq=False)
class Simulations:
    """Everything simulated for one run, with its calibrated step times and, in the draws, with others."""

    same: RequestTimes
    long: Sequence[RequestTimes]  # of several seeds
    draws: Sequence[Draw]

    @property
    def overloaded(self) -> bool:
        found = [validity(one, max_failure_rate=1.0, open_loop=True).verdict for one in self.long]
        return 2 * found.count("overloaded") > len(found)


def simulate(
    replay: Replay,
    model: FittedStepTimes,
    measured: MeasuredSteps,
    plan: RequestPlan,
    plan_of: PlanOf,
    error: float = TERM_ERROR,
    size: Size = FULL,
) -> Simulations:
    """error: of each term of the model, relative. The same run gives the same simulations: the generator's seed is
    that of its plan."""
    random = np.random.default_rng(plan.seed)
    model = at_busy_time(model, measured)
    ratios = step_ratios(model, measured)
    drawn_plan = plan_of(size.drawn_requests, plan.seed + 1)

    def times(one: FittedStepTimes, of: RequestPlan, noise: FloatArray | None = None) -> RequestTimes:
        return times_of(replay.run(one, of, noise)[0])

    draws = []
    for _ in range(size.draws):
        other = scaled(model, lambda: math.exp(random.normal(0.0, error)))
        other = at_busy_time(other, measured)
        noise = _in_blocks(ratios, random)
        draws.append(Draw(times(other, plan, noise), times(other, drawn_plan), times(other, plan)))
    seeds = range(plan.seed + 1, plan.seed + 1 + size.long_runs)
    long = [times(model, plan_of(size.long_requests, seed)) for seed in seeds]
    return Simulations(times(model, plan), long, draws)


def _in_blocks(ratios: FloatArray, random: np.random.Generator) -> FloatArray:
    """The ratios in a drawn order of blocks, with a mean of 1."""
    starts = random.integers(0, len(ratios), max(1, len(ratios) // NOISE_BLOCK) + 1)
    drawn = ratios[(starts[:, None] + np.arange(NOISE_BLOCK)).ravel() % len(ratios)]
    of_mean_one: FloatArray = drawn / drawn.mean()
    return of_mean_one


def model_error(model: FittedStepTimes) -> float:
    """What the fit says of the time of held-out parts of the run, or TERM_ERROR where that is more."""
    return max(TERM_ERROR, *(abs(one.total) for name, one in model.origin.hold_out.items() if name != "gap"), 0.0)


class Correction(NamedTuple):
    """ms. Of one percentile; `error` is the standard error of the log of `value`."""

    value: float
    error: float
    same: float
    long: float
    agrees: bool  # the simulation of the same requests with what was measured


def correction(value: float, latency: str, p: float, found: Simulations) -> Correction | None:
    """The corrected p-quantile of a latency that was measured as `value` ms. None where the simulation has none."""

    def log_of(*several: RequestTimes) -> float:
        column = np.concatenate([one.latency(latency) for one in several])
        column = column[~np.isnan(column)]
        return math.log(max(1e-9, float(np.quantile(column, p)))) if column.size else math.nan

    same, long = log_of(found.same), log_of(*found.long)
    drawn = np.array([log_of(one.long) - log_of(one.same) for one in found.draws])
    noise = np.array([log_of(one.same) - log_of(one.same_quiet) for one in found.draws])
    without_one = np.array([log_of(*found.long[:at], *found.long[at + 1 :]) for at in range(len(found.long))])
    if not np.isfinite([same, long, *drawn, *without_one]).all():
        return None
    jackknife = float(without_one.std()) * math.sqrt(len(without_one) - 1)
    error = MARGIN * math.hypot(float(drawn.std(ddof=1)), jackknife)
    off = abs(math.log(value) - same - float(noise.mean()))
    spread = float(np.std([log_of(one.same) for one in found.draws], ddof=1))
    return Correction(value * math.exp(long - same), error, math.exp(same), math.exp(long), off <= FAR_OFF + 3 * spread)


def assisted(result: SlaResult, found: Simulations) -> SlaResult:
    """The result of an SLA on a latency percentile of a whole run (`is_assisted`), judged by its corrected value."""
    p = parse_sla(result.expr).quantile
    latency = result.metric.partition("_")[2]
    assert p is not None
    assert latency in ASSISTED
    label = msgspec.structs.replace(result, method=MODEL_ASSISTED, needed=None, n_eff=None, verdict="inconclusive")
    if found.overloaded:
        why = "simulated for longer, the queue grows without end at this load; measure at a lower rate"
        return msgspec.structs.replace(label, value=None, reason=why)
    if result.value is None or result.value <= 0 or (fixed := correction(result.value, latency, p, found)) is None:
        return msgspec.structs.replace(label, value=None, reason="no value to correct")
    quantile = result.metric.partition("_")[0].upper()
    told = f"{quantile} {_ms(result.value)} measured"
    if not fixed.agrees:
        why = f"{told}, but {_ms(fixed.same)} simulated with the same requests: the step times do not describe this run"
        return msgspec.structs.replace(label, value=None, reason=why)
    margin = float(stdtrit(len(found.draws) - 1, result.confidence)) * fixed.error
    low, high = fixed.value * math.exp(-margin), fixed.value * math.exp(margin)
    verdict: Verdict = "pass" if high <= result.bound else "fail" if low > result.bound else "inconclusive"
    requests = sum(map(len, found.long))
    reason = (
        f"{told}; simulated {_ms(fixed.same)} with the same requests and {_ms(fixed.long)} with {requests:,}; so "
        f"{_ms(fixed.value)}, {_ms(low)} to {_ms(high)} at {result.confidence:.0%} each way"
    )
    return msgspec.structs.replace(label, value=fixed.value, verdict=verdict, reason=reason)


def is_assisted(result: SlaResult) -> bool:
    """Whether a simulation can correct what it bounds: a percentile of TTFT, TPOT or E2EL of all requests."""
    stat, _, latency = result.metric.partition("_")
    return result.scope is None and latency in ASSISTED and stat[0] == "p"


def _ms(value: float) -> str:
    return f"{value:.4g} ms"


def times_of(columns: IntArray) -> RequestTimes:
    """Latencies of a replayed run, without the gaps between tokens."""
    n = len(columns)
    scheduled, sent, first, last = (columns[:, at] for at in (core.R_SCHEDULED, core.R_SENT, core.R_FIRST, core.R_LAST))
    tokens = columns[:, core.R_DONE]
    several = (tokens > 1) & (last > first)
    no, yes = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    ttft_ms = (first - sent) / 1e6
    return RequestTimes(
        row=np.arange(n), completed=yes, failed=no, rejected=no, cancelled=no, was_sent=yes, single_token=~several,
        prompt_tokens=columns[:, core.R_PROMPT], output_tokens=tokens, scheduled_ns=scheduled, first_ns=first,
        last_ns=last, end_ns=last, ttft_ms=ttft_ms,
        tpot_ms=np.where(several, (last - first) / 1e6 / np.maximum(tokens - 1, 1), np.nan),
        e2el_ms=(last - sent) / 1e6, ttft_sched_ms=(first - scheduled) / 1e6, e2el_sched_ms=(last - scheduled) / 1e6,
        ttfot_ms=ttft_ms, gaps_ms=CountedValues(np.empty(0), np.empty(0, np.int64)), gaps_in_time_ms=np.empty(0),
    )  # fmt: skip
