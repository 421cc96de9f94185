"""`cbbench compare` of two settings (A/B) or one (A/A): measured in turns on one machine, with the same plans.

pair      1     2     3     4
order    A B   B A   A B   B A        so that a drift of the machine is no difference between A and B
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbbench.experiment.bench import Bench
from cbbench.experiment.judge_runs import Outputs, refuse_unwritable, write
from cbbench.experiment.run import default_folder, measure
from cbbench.settings.build import build_settings
from cbbench.settings.facts import FromText
from cbbench.settings.run import RunSettings
from cbbench.settings.sources import gather
from reports.budgets import DEFAULTS, parse_budgets
from reports.checks import Check, CheckVerdict, summarize_checks
from reports.folder import read_record
from reports.regression import budgets_of, measure_metric, regression_checks
from reports.scenarios import ComparedRuns, Scenario, setting_differences
from reports.stored_runs import StoredRun
from workloads.errors import CbbenchError, ExitCode

WARM_UP_REQUESTS = 8
TOO_UNSTEADY = "one setting may differ from itself by more than the limit, so a change that small cannot be shown here"


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
        raise CbbenchError("output", f"{folder} is not empty; choose a new folder")
    refuse_unwritable(outputs)
    pairs = _measured_pairs(configs, series.pairs, folder)
    if len(pairs) < series.pairs:
        print(f"interrupted after {len(pairs)} of {series.pairs} pairs; the runs are in {folder}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    scenario = Scenario("A and A" if series.same else "A and B", tuple(pairs))
    first = configs[0]
    if series.same:
        checks = machine_checks(scenario, series, first.slo.confidence)
    else:
        checks = regression_checks([scenario], budgets, first.slo.confidence, first.slo.max_failure_rate)
    notes = [f"B differs from A: {found}"] if (found := _differences(configs, pairs[0])) else []
    if scenario.differences:
        notes.append(f"A and B did different work: {scenario.differences}")
    result = summarize_checks(checks, notes)
    write(result, [pair.candidate for pair in pairs], outputs)
    print(f"runs in {folder}; `cbbench gate` judges {folder}/b against the baseline {folder}/a again", file=sys.stderr)
    return result.exit_code


def machine_checks(scenario: Scenario, series: Series, confidence: float) -> list[Check]:
    """Do two runs of one setting agree to within the budgets? Only then can it show a change as small as they are.
    Each end of an interval holds at the confidence, without correction, as all metrics must agree."""
    checks = []
    for budget in budgets_of(scenario, parse_budgets(series.budget or DEFAULTS)):
        measured = measure_metric(scenario, budget)
        interval = measured.spread.interval(2 * (1 - confidence)) if measured.spread is not None else None
        fit = interval is not None and max(map(abs, interval)) <= budget.harm_limit
        verdict: CheckVerdict = "pass" if fit else "inconclusive"
        reason = "A/A stable" if fit else (measured.remark if measured.spread is None else TOO_UNSTEADY)
        checks.append(measured.check(scenario.name, "machine", verdict, budget.symmetric, reason, interval))
    return checks


def _config(settings: Mapping[str, Any]) -> RunSettings:
    for name, one in RunSettings.all().items():
        if name in settings and not one.facts.compared:
            raise CbbenchError(name, "does not belong into a CONFIG of cbbench compare")
    return build_settings(gather("run", settings))


def _differences(configs: Sequence[RunSettings], pair: ComparedRuns) -> str:
    """Settings that differ between A and B; of those left to the engine, the values in its run.json."""
    before, after = ({name: _shown(value) for name, value in one.flat().items()} for one in configs)
    secret = {name for name, one in RunSettings.all().items() if one.facts.secret}
    chosen = [name for name in before if before[name] != after[name] and name not in secret]
    sides = ((before, pair.baseline.run.engine.config), (after, pair.candidate.run.engine.config))
    taken = [{name: _taken(settings[name], engine.get(name)) for name in chosen} for settings, engine in sides]
    # Of headers the names alone: their values may be secret.
    headers = sorted({one.name for one in {*configs[0].server.header} ^ {*configs[1].server.header}})
    return "; ".join([*setting_differences(*taken), *(f"header {name}" for name in headers)])


def _shown(value: Any) -> Any:
    """A value as it was given."""
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    return value.text if isinstance(value, FromText) else value


def _taken(asked: Any, by_engine: Any) -> Any:
    return next((value for value in (asked, by_engine) if value is not None), "default")


def _measured_pairs(configs: list[RunSettings], count: int, folder: Path) -> list[ComparedRuns]:
    """As many pairs as were measured before an interrupt."""
    benches = _benches(*configs)
    for bench, config, name in zip(benches, configs, "ab", strict=True):
        if (
            config.engine.kind == "reference" and config.server.url is None
        ):  # the others have nothing to warm, or do it themselves
            short = config.replaced(num_requests=min(WARM_UP_REQUESTS, config.workload.num_requests), duration=None)
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


def _benches(before: RunSettings, after: RunSettings) -> tuple[Bench, Bench]:
    """A model is loaded once where both use the same."""
    ours = Bench(before)
    same = all(before.get(name) == after.get(name) for name, one in before.all().items() if one.facts.loaded_once)
    return ours, ours if same and before.server.url is None else Bench(after)


def _seeded(config: RunSettings, pair: int, run: int) -> RunSettings:
    """Both sides of a pair do the same work. A simulated pair would be the last one over again without another plan; a
    real server must not find the prompts of the run before in its cache."""
    if config.engine.kind == "simulated":
        return config.replaced(seed=config.workload.seed + pair)
    return config.replaced(prompt_seed=config.workload.prompt_seed + (run if config.server.url else pair))
