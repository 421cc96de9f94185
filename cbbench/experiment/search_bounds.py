"""The range of an adaptive sweep, if none was given; for a rate it is found by probing the peak throughput first."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cbbench.experiment.adaptive import Number
from cbbench.experiment.benches import Benches, work_of_run
from cbbench.experiment.kv_demand import blocks_for_every_slot, blocks_of_requests
from cbbench.experiment.run import measure
from cbbench.experiment.sweep_params import as_number
from cbbench.settings.run import RunSettings
from reports.folder import discard, read_run
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan

FEW = 16  # tokens of a step: fewer hide everything behind the cost of a step
MANY = 65_536
BELOW, ABOVE = 8, 4  # a rate starts at an eighth of what a burst was served at, and ends at four times that

PEAK_FOLDER = "burst"  # of the run that probes the peak, inside the sweep's

Bounds = tuple[Number, Number]


def parse_between(text: str, *, whole: bool | None) -> Bounds:
    """LOW,HIGH with 0 < LOW < HIGH. whole None: if both are."""
    try:
        low, high = (float(word) for word in text.split(","))
    except ValueError:
        raise CbbenchError("between", f"want LOW,HIGH as in 4,256, got {text!r}") from None
    if not 0 < low < high < float("inf"):
        raise CbbenchError("between", f"want 0 < LOW < HIGH, got {text!r}")
    if whole or (whole is None and low.is_integer() and high.is_integer()):
        if not (low.is_integer() and high.is_integer()):
            raise CbbenchError("between", f"want whole numbers, got {text!r}")
        return int(low), int(high)
    return as_number(low), as_number(high)


def bounds_of_plan(param: str, settings: RunSettings, plan: RequestPlan, context_tokens: int) -> Bounds:
    """What can make a difference to these requests. CbbenchError for a setting that has no such bounds."""
    known: Mapping[str, Callable[[], Bounds]] = {
        "max-num-seqs": lambda: (1, _slots(settings)),
        "concurrency": lambda: (1, settings.workload.num_requests),
        "max-num-batched-tokens": lambda: _budget(settings, plan),
        "kv-blocks": lambda: _blocks(settings, plan, context_tokens),
    }
    if param not in known:
        raise CbbenchError(
            "adaptive", f"no bounds are known for {param}; say `between` LOW,HIGH (known: {', '.join(known)}, rate)"
        )
    low, high = known[param]()
    if low >= high:
        raise CbbenchError("adaptive", f"{param} can only be {high} here; give more requests, or `between` LOW,HIGH")
    return low, high


def bounds_of_rate(capacity_per_s: float) -> Bounds:
    """Powers of two around what a burst was served at, in requests/s."""
    low = 2.0 ** math.floor(math.log2(capacity_per_s / BELOW))
    return as_number(low), as_number(2.0 ** math.ceil(math.log2(capacity_per_s * ABOVE)))


def _slots(settings: RunSettings) -> int:
    """More slots than requests in flight stay empty, and every slot takes a token of the budget."""
    return min(
        settings.workload.num_requests,
        settings.load.concurrency or MANY,
        settings.scheduler.max_num_batched_tokens or MANY,
    )


def _budget(settings: RunSettings, plan: RequestPlan) -> Bounds:
    """A token for every slot, up to the prompts of all slots in one step."""
    prompts = sorted(plan.prompt_tokens.tolist())[-settings.scheduler.max_num_seqs :]
    low = max(settings.scheduler.max_num_seqs, FEW)
    return low, max(low + 1, min(sum(prompts) + settings.scheduler.max_num_seqs, MANY))


def _blocks(settings: RunSettings, plan: RequestPlan, context_tokens: int) -> Bounds:
    """The largest request's, up to where no mix of requests runs short."""
    return int(blocks_of_requests(plan, settings.scheduler.block_size).max()), blocks_for_every_slot(
        plan, settings, context_tokens
    )


def peak_throughput(base: RunSettings, benches: Benches, folder: Path) -> float | None:
    """Requests/s, from an earlier call if there is one; None after Ctrl-C. CbbenchError if no request completed."""
    settings = base.replaced(rate=None, arrival=None, sla=())
    place = folder / PEAK_FOLDER
    try:
        run = read_run(place)
        usable = run.summary is not None and not run.interrupted and benches.same_work(base, work_of_run(run))
    except CbbenchError:
        usable = False
    if not usable:
        if place.exists():
            discard(place)
        print("all requests at once, to see about how many a second are served", file=sys.stderr)
        with benches.at(settings, {}, folder / f"{PEAK_FOLDER}.server.log") as (bench, served):
            run = measure(bench, served, place, title=PEAK_FOLDER)
        if run.interrupted:
            return None
    capacity = run.summary.throughput.request_per_s if run.summary is not None else None
    if not capacity:
        raise CbbenchError("adaptive", "no request of a burst completed, so there is no rate to begin with")
    return capacity
