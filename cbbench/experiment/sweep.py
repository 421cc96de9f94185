"""A sweep: the same work at several values of one setting. It resumes: finished points are known by their settings."""

from __future__ import annotations

import re
import shutil
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from cbbench.config import RunConfig, UsageError, build_config
from cbbench.experiment.bench import criteria_of
from cbbench.experiment.run import default_folder, measure
from cbbench.experiment.servers import Benches, BenchPerPoint, OneBench
from engines.base import EngineError
from reports.curves import point_of, read_sweep, short_label, write_sweep
from reports.folder import rebuild
from reports.gate import exit_code
from reports.recommend import recommend
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
NO_SERVER = 6  # exit code


@dataclass(frozen=True)
class Target:
    """One point to measure."""

    value: Value
    folder: str  # relative to the sweep's
    config: RunConfig
    config_sha256: str


def sweep(param: str, values_text: str, given: Mapping[str, Any]) -> int:
    """`cbbench sweep`: the exit code."""
    own = is_servers_own(given)
    asked = parse_words(param, values_text) if own else parse_values(param, values_text)
    base = target_of(param, asked[0], given).config
    folder = Path(base.output) if base.output else default_folder(f"sweep-{param}")
    earlier = sweep_before(folder, param)
    # Points without numbers are tried again.
    before = {point.values[0]: point for point in earlier.points if point.error is None} if earlier else {}
    # The order asked for is kept; only points from before that are not asked for again need a place among the others.
    values = asked if set(before) <= set(asked) else sorted({*asked, *before})
    targets = [target_of(param, value, given) for value in values]
    known_sha256 = earlier.workload_sha256 if earlier and before else None
    benches: Benches = OneBench(base) if base.launch is None else BenchPerPoint(known_sha256)
    done = {value: judged_anew(folder, point, targets, benches.plan_sha256) for value, point in before.items()}
    state = SweepFile(params=(param,), settings=tuple((one.value,) for one in targets), sla=base.sla)
    state, interrupted = run_targets(benches, targets, folder, state, done)
    show(state, folder, json=base.json)
    print(f"results in {folder}", file=sys.stderr)
    return code_of(state, interrupted)


def is_servers_own(given: Mapping[str, Any]) -> bool:
    """Whether the values go to a launched server's command line, rather than into a setting of ours."""
    return "{value}" in (given.get("launch") or "")


def parse_values(param: str, values: str) -> list[Value]:
    if param not in PARAMS:
        raise UsageError(f"cannot sweep {param!r}; choose one of {', '.join(PARAMS)}, or put {{value}} into --launch")
    kind = PARAMS[param]
    try:
        return each_once([kind(word.strip()) for word in values.split(",")], values)
    except ValueError:
        raise UsageError(f"--values: {param} takes {'whole ' * (kind is int)}numbers, got {values!r}") from None


def parse_words(param: str, values: str) -> list[Value]:
    """Whatever a server's knob may take: whole numbers, numbers or words."""
    if not re.fullmatch(r"\w[\w.-]*", param):
        raise UsageError(f"cannot sweep {param!r}: want a word, such as the name of the server's flag")
    words = [word.strip() for word in values.split(",")]
    if "" in words:
        raise UsageError(f"--values: want V,V,... without gaps, got {values!r}")
    for kind in (int, float):
        with suppress(ValueError):
            return each_once([kind(word) for word in words], values)
    return each_once(list(words), values)


def each_once(parsed: list[Value], values: str) -> list[Value]:
    if len(set(parsed)) != len(parsed):
        raise UsageError(f"--values: each value once, got {values!r}")
    return parsed


def target_of(param: str, value: Value, given: Mapping[str, Any]) -> Target:
    config = build_config(given if is_servers_own(given) else {**given, param.replace("-", "_"): value})
    # Other text at each point, so that no cache carries over; the plan, and so its hash, stays the same.
    varied = msgspec.structs.replace(config, prompt_seed=config.prompt_seed + zlib.crc32(str(value).encode()))
    return Target(value, folder_of(param, value), varied, config.config_hash())


def folder_of(param: str, value: Value) -> str:
    """What a folder's name should not hold is taken out, and no two values share one."""
    word = re.sub(r"[^\w.-]+", "-", str(value))[:60]
    return f"{param}-{word}" if word == str(value) else f"{param}-{word}-{zlib.crc32(str(value).encode()):08x}"


def sweep_before(folder: Path, param: str) -> SweepFile | None:
    """What an earlier call left in this folder."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / "sweep.json").exists():
        raise UsageError(f"--output: {folder} is not empty and holds no sweep")
    before = read_sweep(folder)
    if before.params != (param,):
        raise UsageError(f"--output: {folder} holds a sweep of {', '.join(before.params)}, not of {param}")
    return before


def judged_anew(folder: Path, point: Point, targets: Sequence[Target], plan_sha256: str | None) -> Point:
    """A finished point under the SLAs of this call. UsageError if it was measured with other settings."""
    target = next(one for one in targets if one.value == point.values[0])
    result = rebuild(folder / point.folder, criteria_of(target.config))
    if point.config_sha256 != target.config_sha256 or result.workload.sha256 != plan_sha256:
        raise UsageError(
            f"--output: {folder} has a point {short_label(point.values)} that was measured with other settings; "
            "choose another folder, or repeat the settings to resume"
        )
    return point_of(point.values, point.folder, result, point.config_sha256)


def run_targets(
    benches: Benches, targets: Sequence[Target], folder: Path, state: SweepFile, done: dict[Value, Point]
) -> tuple[SweepFile, bool]:
    """Measure what is not there yet, sweep.json after every point. True when Ctrl-C ended it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = save(folder, state, done, benches.plan_sha256)
    for number, target in enumerate(targets, start=1):
        title = f"{number}/{len(targets)} {state.params[0]} {target.value}"
        print(title + (": already there" if target.value in done else ""), file=sys.stderr)
        if target.value in done:
            continue
        point = measure_target(benches, target, folder, title)
        if point is None:
            return state, True
        done[target.value] = point
        state = save(folder, state, done, benches.plan_sha256)
    return state, False


def measure_target(benches: Benches, target: Target, folder: Path, title: str) -> Point | None:
    """The point, or None if Ctrl-C broke it off: then it is measured again when the sweep resumes."""
    place = folder / target.folder
    if place.exists():  # left by a sweep that was broken off
        shutil.rmtree(place)
    try:
        with benches.at(target.config, str(target.value), folder / f"{target.folder}.server.log") as (bench, config):
            result = measure(bench, config, place, title)
    except (EngineError, UsageError) as error:  # this value cannot run; others may
        print(f"{title}: {error}", file=sys.stderr)
        return Point(
            values=(target.value,),
            folder=target.folder,
            config_sha256=target.config_sha256,
            error=str(error),
            exit_code=error.exit_code if isinstance(error, EngineError) else 2,
        )
    return None if result.interrupted else point_of((target.value,), target.folder, result, target.config_sha256)


def save(folder: Path, state: SweepFile, done: Mapping[Value, Point], plan_sha256: str | None) -> SweepFile:
    points = tuple(done[value] for (value,) in state.settings if value in done)
    recommendation = recommend(state.params, points, state.sla) if points else None
    state = msgspec.structs.replace(state, points=points, recommendation=recommendation, workload_sha256=plan_sha256)
    write_sweep(folder, state)
    return state


def show(state: SweepFile, folder: Path, *, json: bool) -> None:
    if json:
        sys.stdout.write((folder / "sweep.json").read_text(encoding="utf-8").rstrip() + "\n")
        return
    console = Console()
    console.print(sweep_view(state, width=console.width))


def code_of(state: SweepFile, interrupted: bool) -> int:
    """3 when no point meets the SLA; when no value could run at all, 6 if that was for want of a server, else 2."""
    ran = [point for point in state.points if point.error is None]
    invalid = bool(ran) and all(point.validity and point.validity.verdict == "invalid" for point in ran)
    no_server = any(point.exit_code == NO_SERVER for point in state.points)
    missed = bool(state.sla) and (state.recommendation is None or state.recommendation.values is None)
    return exit_code(
        interrupted=interrupted,
        usage_error=not ran and not no_server,
        server_died=not ran and no_server,
        validity="invalid" if invalid else "ok",
        sla=["fail"] if missed else [],
    )
