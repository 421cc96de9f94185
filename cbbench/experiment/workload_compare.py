"""`cbbench workload compare`: how two workloads differ, and what that does to the gain of continuous batching."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from cbbench.experiment.bench import Bench, criteria_of, describe_workload
from cbbench.experiment.workload_description import numbers_of
from cbbench.experiment.workload_view import number_table
from cbbench.settings.build import build_settings
from engines.base import SilentObserver
from reports.schema import RunFile
from reports.summary import completed_run
from workloads.derivation import ks_distance
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

SEED = 0
HARDWARE, MODEL = "h100", "llama-3.1-8b"


def comparison(specs: tuple[str, str], requests: int, slots: int) -> dict[str, Any]:
    """For JSON. gain: output tokens per second with continuous over static batching, all requests due at t = 0,
    simulated with `slots` slots, uncalibrated. Raises CbbenchError."""
    plans: list[RequestPlan] = []
    sides: list[dict[str, Any]] = []
    for spec in specs:
        per_s: dict[str, float] = {}
        for mode in ("static", "continuous"):
            plan, per_s[mode] = _simulated(spec, requests, slots, mode)
        own = numbers_of(plan.prompt_tokens, plan.output_tokens)
        gain = {"output_tokens_per_s": per_s, "gain": per_s["continuous"] / per_s["static"]}
        sides.append({"spec": spec, "outside_context": plan.outside_context} | own | gain)
        plans.append(plan)
    ks = {
        "prompt_tokens": ks_distance(plans[0].prompt_tokens, plans[1].prompt_tokens),
        "output_tokens": ks_distance(plans[0].output_tokens, plans[1].output_tokens),
    }
    engine = {"hardware": HARDWARE, "model": MODEL, "max_num_seqs": slots}
    return {"requests": requests, "engine": engine, "ks": ks, "workloads": sides}


def _simulated(spec: str, requests: int, slots: int, mode: str) -> tuple[RequestPlan, float]:
    """(requests, output tokens per second)"""
    settings = build_settings(
        {
            "engine": "simulated",
            "hardware": HARDWARE,
            "model": MODEL,
            "workload": spec,
            "num_requests": requests,
            "seed": SEED,
            "mode": mode,
            "max_num_seqs": slots,
        }
    )
    bench = Bench(settings)
    plan = bench.plan(settings)
    engine, info = bench.engine(settings, plan)
    record = engine.run(plan, Pacing(plan.arrivals_ugap), SilentObserver())
    header = RunFile(
        engine=info, workload=describe_workload(settings, plan), event_unit="step", criteria=criteria_of(settings)
    )
    summary = completed_run(record, header).summary
    assert summary is not None
    assert summary.throughput.output_token_per_s is not None
    return plan, summary.throughput.output_token_per_s


def comparison_view(compared: dict[str, Any]) -> Iterator[RenderableType]:
    first, second = compared["workloads"]
    yield f"A: {first['spec']}"
    yield f"B: {second['spec']}"
    table = number_table("", "prompt: A", "B", "output: A", "B")
    for key in first["prompt_tokens"]:
        cells = [one[side][key] for side in ("prompt_tokens", "output_tokens") for one in (first, second)]
        table.add_row(key, *(f"{value:,.0f}" for value in cells))
    yield table
    ks = compared["ks"]
    yield f"Kolmogorov-Smirnov distance: prompt {ks['prompt_tokens']:.3f}, output {ks['output_tokens']:.3f}"
    ranks = ["-" if (rank := one["correlation"]["spearman"]) is None else f"{rank:.2f}" for one in (first, second)]
    yield f"rank correlation of prompt and output: A {ranks[0]}, B {ranks[1]}"
    for name, one in (("A", first), ("B", second)):
        if one["outside_context"]:
            yield f"{name}: {one['outside_context']:.1%} of the pairs exceed the context of the model: drawn again"
    engine = compared["engine"]
    yield (
        f"gain of continuous over static batching: A {first['gain']:.2f}, B {second['gain']:.2f} (output tokens/s of "
        f"{compared['requests']:,} requests due at once, {engine['max_num_seqs']} slots, simulated: {engine['model']} "
        f"on {engine['hardware']}, uncalibrated)"
    )
    lengths = [one["max_over_mean"]["32"] for one in (first, second)]
    yield f"(longest of 32 outputs over the mean output: A {lengths[0]:.2f}, B {lengths[1]:.2f})"
    ratio = second["gain"] / first["gain"]
    yield f"B shows {ratio:.2f} times the gain of A"
