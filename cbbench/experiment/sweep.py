"""A sweep: the same work at several values of one setting. It resumes: finished points are known by their settings."""

from __future__ import annotations

import shutil
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from cbbench.config import RunConfig, UsageError, build_config
from cbbench.experiment.bench import Bench, criteria_of
from cbbench.experiment.run import default_folder, measure
from engines.base import EngineError
from reports.curves import point_of, read_sweep, recommend, write_sweep
from reports.folder import rebuild
from reports.gate import exit_code
from reports.render.sweep import sweep_view
from reports.schema import Point, SweepFile, Value

PARAMS: dict[str, type[int] | type[float] | type[str]] = {
    "max-num-seqs": int,
    "max-num-batched-tokens": int,
    "kv-blocks": int,
    "concurrency": int,
    "rate": float,
    "mode": str,
}


@dataclass(frozen=True)
class Target:
    """One point to measure."""

    value: Value
    folder: str  # relative to the sweep's
    config: RunConfig
    config_sha256: str


def sweep(param: str, values_text: str, given: Mapping[str, Any]) -> int:
    """`cbbench sweep`: the exit code."""
    asked = parse_values(param, values_text)
    base = target_of(param, asked[0], given).config
    folder = Path(base.output) if base.output else default_folder(f"sweep-{param}")
    before = points_before(folder, param)
    # The order asked for is kept; only points from before that are not asked for again need a place among the others.
    values = asked if set(before) <= set(asked) else sorted({*asked, *before})
    targets = [target_of(param, value, given) for value in values]
    bench = Bench(base)
    plan_sha256 = bench.plan(base).sha256
    done = {value: judged_anew(folder, point, targets, plan_sha256) for value, point in before.items()}
    state = SweepFile(
        param=param, values=tuple(one.value for one in targets), sla=base.sla, workload_sha256=plan_sha256
    )
    state, interrupted = run_targets(bench, targets, folder, state, done)
    show(state, folder, json=base.json)
    print(f"results in {folder}", file=sys.stderr)
    return code_of(state, interrupted)


def parse_values(param: str, values: str) -> list[Value]:
    if param not in PARAMS:
        raise UsageError(f"cannot sweep {param!r}; choose one of {', '.join(PARAMS)}")
    kind = PARAMS[param]
    try:
        parsed: list[Value] = [kind(word.strip()) for word in values.split(",")]
    except ValueError:
        raise UsageError(f"--values: {param} takes {'whole ' * (kind is int)}numbers, got {values!r}") from None
    if len(set(parsed)) != len(parsed):
        raise UsageError(f"--values: each value once, got {values!r}")
    return parsed


def target_of(param: str, value: Value, given: Mapping[str, Any]) -> Target:
    config = build_config({**given, param.replace("-", "_"): value})
    # Other text at each point, so that no cache carries over; the plan, and so its hash, stays the same.
    varied = msgspec.structs.replace(config, prompt_seed=config.prompt_seed + zlib.crc32(str(value).encode()))
    return Target(value, f"{param}-{value}", varied, config.config_hash())


def points_before(folder: Path, param: str) -> dict[Value, Point]:
    """The points an earlier call finished in this folder, by value; those without numbers are tried again."""
    if not folder.exists() or not any(folder.iterdir()):
        return {}
    if not (folder / "sweep.json").exists():
        raise UsageError(f"--output: {folder} is not empty and holds no sweep")
    before = read_sweep(folder)
    if before.param != param:
        raise UsageError(f"--output: {folder} holds a sweep of {before.param}, not of {param}")
    return {point.value: point for point in before.points if point.error is None}


def judged_anew(folder: Path, point: Point, targets: Sequence[Target], plan_sha256: str) -> Point:
    """A finished point under the SLAs of this call. UsageError if it was measured with other settings."""
    target = next(one for one in targets if one.value == point.value)
    result = rebuild(folder / point.folder, criteria_of(target.config))
    if point.config_sha256 != target.config_sha256 or result.workload.sha256 != plan_sha256:
        raise UsageError(
            f"--output: {folder} has a point {point.value} that was measured with other settings; "
            "choose another folder, or repeat the settings to resume"
        )
    return point_of(point.value, point.folder, result, point.config_sha256)


def run_targets(
    bench: Bench, targets: Sequence[Target], folder: Path, state: SweepFile, done: dict[Value, Point]
) -> tuple[SweepFile, bool]:
    """Measure what is not there yet, sweep.json after every point. True when Ctrl-C ended it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = save(folder, state, done)
    for number, target in enumerate(targets, start=1):
        title = f"{number}/{len(targets)} {state.param} {target.value}"
        print(title + (": already there" if target.value in done else ""), file=sys.stderr)
        if target.value in done:
            continue
        point = measure_target(bench, target, folder, title)
        if point is None:
            return state, True
        done[target.value] = point
        state = save(folder, state, done)
    return state, False


def measure_target(bench: Bench, target: Target, folder: Path, title: str) -> Point | None:
    """The point, or None if Ctrl-C broke it off: then it is measured again when the sweep resumes."""
    place = folder / target.folder
    if place.exists():  # left by a sweep that was broken off
        shutil.rmtree(place)
    try:
        result = measure(bench, target.config, place, title)
    except (EngineError, UsageError) as error:  # this value cannot run; others may
        print(f"{title}: {error}", file=sys.stderr)
        return Point(value=target.value, folder=target.folder, config_sha256=target.config_sha256, error=str(error))
    return None if result.interrupted else point_of(target.value, target.folder, result, target.config_sha256)


def save(folder: Path, state: SweepFile, done: Mapping[Value, Point]) -> SweepFile:
    points = tuple(done[value] for value in state.values if value in done)
    recommendation = recommend(state.param, points, state.sla) if points else None
    state = msgspec.structs.replace(state, points=points, recommendation=recommendation)
    write_sweep(folder, state)
    return state


def show(state: SweepFile, folder: Path, *, json: bool) -> None:
    if json:
        sys.stdout.write((folder / "sweep.json").read_text(encoding="utf-8").rstrip() + "\n")
        return
    console = Console()
    console.print(sweep_view(state, width=console.width))


def code_of(state: SweepFile, interrupted: bool) -> int:
    """3 when no point meets the SLA; 2 when no value could run at all."""
    ran = [point for point in state.points if point.error is None]
    invalid = bool(ran) and all(point.validity and point.validity.verdict == "invalid" for point in ran)
    missed = bool(state.sla) and (state.recommendation is None or state.recommendation.value is None)
    return exit_code(
        interrupted=interrupted,
        usage_error=not ran,
        validity="invalid" if invalid else "ok",
        sla=["fail"] if missed else [],
    )
