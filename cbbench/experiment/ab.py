"""`cbbench compare --ab` and `--aa`: two settings measured in turns on one machine, with the same plans.

pair      1     2     3     4
order    A B   B A   A B   B A        so that a drift of the machine is no difference between A and B
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cbbench.config import RunConfig, UsageError, flag
from cbbench.experiment.bench import Bench
from cbbench.experiment.judge_runs import Outputs, refuse_unwritable, write
from cbbench.experiment.run import default_folder, measure
from cbbench.settings import gather
from cbbench.validation import build_config
from reports.budgets import DEFAULTS, parse_budgets
from reports.checks import Check, CheckVerdict, summarize_checks
from reports.folder import read_record
from reports.regression import budgets_of, measure_metric, regression_checks
from reports.scenarios import ComparedRuns, Scenario, setting_differences
from reports.stored_runs import StoredRun

LOADED_ONCE = ("engine", "url", "model", "weights", "device", "dtype", "law", "hardware")
OURS = ("output", "json", "timeline", "sla")  # flags of a run that mean nothing in a CONFIG
WARM_UP_REQUESTS = 8
TOO_UNSTEADY = "run again, the same setting may differ by more than the limit: a change that small cannot be shown here"


@dataclass(frozen=True)
class Series:
    before: Mapping[str, Any]  # settings of A
    after: Mapping[str, Any]  # of B
    pairs: int
    budget: tuple[str, ...] = ()
    same: bool = False  # A against A: the machine is judged


def measure_series(series: Series, output: Path | None, outputs: Outputs) -> int:
    """The exit code."""
    budgets = parse_budgets(series.budget or DEFAULTS)
    configs = [_config(settings) for settings in (series.before, series.after)]
    folder = output or default_folder("aa" if series.same else "ab")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"--output: {folder} is not empty; choose a new folder")
    refuse_unwritable(outputs)
    pairs = _measured_pairs(configs, series.pairs, folder)
    if len(pairs) < series.pairs:
        print(f"interrupted after {len(pairs)} of {series.pairs} pairs; the runs are in {folder}", file=sys.stderr)
        return 130
    scenario = Scenario("A and A" if series.same else "A and B", tuple(pairs))
    first = configs[0]
    if series.same:
        checks = machine_checks(scenario, series, first.confidence)
    else:
        checks = regression_checks([scenario], budgets, first.confidence, first.max_failure_rate)
    notes = [f"B differs from A: {found}"] if (found := _differences(configs, pairs[0])) else []
    if scenario.differences:
        notes.append(f"A and B did different work: {scenario.differences}")
    result = summarize_checks(checks, notes)
    write(result, [pair.candidate for pair in pairs], outputs)
    print(f"runs in {folder}: cbbench gate {folder}/b --baseline {folder}/a judges them again", file=sys.stderr)
    return result.exit_code


def machine_checks(scenario: Scenario, series: Series, confidence: float) -> list[Check]:
    """Does the machine repeat itself to within the budgets? Only then can it show a change as small as they are."""
    checks = []
    for budget in budgets_of(scenario, parse_budgets(series.budget or DEFAULTS)):
        measured = measure_metric(scenario, budget)
        interval = measured.spread.interval(1 - confidence) if measured.spread is not None else None
        fit = interval is not None and max(map(abs, interval)) <= budget.harm_limit
        verdict: CheckVerdict = "pass" if fit else "inconclusive"
        reason = "A repeats itself" if fit else (measured.remark if measured.spread is None else TOO_UNSTEADY)
        checks.append(measured.check(scenario.name, "machine", verdict, budget.symmetric, reason, interval))
    return checks


def _config(settings: Mapping[str, Any]) -> RunConfig:
    for name in OURS:
        if name in settings:
            raise UsageError(f"{flag(name)} does not belong into a CONFIG of cbbench compare")
    return build_config(gather("run", settings))


def _differences(configs: Sequence[RunConfig], pair: ComparedRuns) -> str:
    """The settings asked for that are not the same; what was left to the engine as it says that it took it."""
    before, after = map(msgspec.structs.asdict, configs)
    asked = [name for name in before if before[name] != after[name] and name != "header"]
    sides = ((before, pair.baseline.run.engine.config), (after, pair.candidate.run.engine.config))
    taken = [{name: _taken(settings[name], engine.get(name)) for name in asked} for settings, engine in sides]
    # Of headers the names alone: their values may be secret.
    headers = sorted({text.partition(":")[0] for text in set(before["header"]) ^ set(after["header"])})
    return "; ".join([*setting_differences(*taken), *(f"header {name}" for name in headers)])


def _taken(asked: Any, by_engine: Any) -> Any:
    return next((value for value in (asked, by_engine) if value is not None), "default")


def _measured_pairs(configs: list[RunConfig], count: int, folder: Path) -> list[ComparedRuns]:
    """As many pairs as were measured before somebody interrupted."""
    benches = _benches(*configs)
    for bench, config, name in zip(benches, configs, "ab", strict=True):
        if config.engine == "reference" and config.url is None:  # the others have nothing to warm, or do it themselves
            short = msgspec.structs.replace(
                config, num_requests=min(WARM_UP_REQUESTS, config.num_requests), duration=None
            )
            measure(bench, short, folder / "warm-up" / name, title=f"warm-up of {name.upper()}")
    pairs: list[ComparedRuns] = []
    for number in range(count):
        runs: dict[str, StoredRun] = {}
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            name = "ab"[side]
            config = _seeded(configs[side], number, number * 2 + side)
            where = folder / name / f"{number + 1:02d}"
            run = measure(benches[side], config, where, title=f"pair {number + 1} of {count} · {name.upper()}")
            if run.interrupted:
                return pairs
            runs[name] = StoredRun(str(where), run, read_record(where))
        pairs.append(ComparedRuns(runs["a"], runs["b"]))
    return pairs


def _benches(before: RunConfig, after: RunConfig) -> tuple[Bench, Bench]:
    """A model is loaded once where both use the same."""
    ours = Bench(before)
    same = all(getattr(before, name) == getattr(after, name) for name in LOADED_ONCE)
    return ours, ours if same and before.url is None else Bench(after)


def _seeded(config: RunConfig, pair: int, run: int) -> RunConfig:
    """Both sides of a pair do the same work. A simulated pair would be the last one over again without another plan; a
    real server must not find the prompts of the run before in its cache."""
    if config.engine == "simulated":
        return msgspec.structs.replace(config, seed=config.seed + pair)
    return msgspec.structs.replace(config, prompt_seed=config.prompt_seed + (run if config.url else pair))
