"""cbbench sweep: the same work at several values of one or two settings, given as a grid or found on the way."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from cbbench.experiment.adaptive import AdaptiveSearch, Round, next_round
from cbbench.experiment.benches import Benches, BenchPerPoint, OneBench
from cbbench.experiment.campaign import Campaign
from cbbench.experiment.run import default_folder
from cbbench.experiment.search_bounds import Bounds, bounds_of_plan, bounds_of_rate, parse_between, peak_throughput
from cbbench.experiment.sweep_params import check, field_of, is_servers_own, parse_grid, parse_params, work_params
from cbbench.experiment.sweep_runs import Setting, Sweep
from cbbench.settings.build import build_settings
from cbbench.settings.run import RunSettings
from reports.curves import latency_of_knee, merge
from reports.recommend import open_points
from reports.render.sweep import sweep_view
from reports.schema import Verdict
from reports.sla import exit_code
from reports.sweep_schema import SweepFile
from workloads.errors import CbbenchError, ExitCode


@dataclass(frozen=True)
class SweepRequest:
    """The options of a sweep beside the settings of a run."""

    param: str
    values: tuple[str, ...] = ()
    adaptive: bool = False
    between: str | None = None
    repeat: int = 1
    every_rate: bool = False


def sweep(asked: SweepRequest, given: Mapping[str, Any], flags: Mapping[str, Any]) -> int:
    """The exit code. `given`: every setting that was chosen; `flags`: those on the command line."""
    launch = given.get("launch")
    params = parse_params(asked.param, launch)
    for param in params:
        if flags.get(field_of(param)) is not None and not is_servers_own(param, params, launch):
            raise CbbenchError(field_of(param), "the sweep varies it; give its values by `values` alone")
    if asked.adaptive == bool(asked.values):
        raise CbbenchError(None, "want either `values` V,V,... (once for each parameter) or `adaptive`")
    if asked.between is not None and not asked.adaptive:
        raise CbbenchError("between", "bounds what `adaptive` tries; with `values` it has no meaning")
    swept = Sweep(params, given, asked.repeat)
    return _adaptive(swept, asked) if asked.adaptive else _grid(swept, asked)


def _grid(swept: Sweep, asked: SweepRequest) -> int:
    settings = parse_grid(swept.params, asked.values, swept.given.get("launch"))
    base = _base(swept, settings)
    campaign = _campaign(swept, base, asked)
    with campaign.begun(settings):
        whole = campaign.measure(campaign.state.settings)
        if whole and campaign.state.skipped:
            campaign.finish("Higher rates were skipped: arrivals outran completions at a lower one.")
    return _end(campaign, base, whole)


def _adaptive(swept: Sweep, asked: SweepRequest) -> int:
    """Rounds until there is nothing more to look for."""
    (param, *more), launch = swept.params, swept.given.get("launch")
    if more:
        raise CbbenchError("adaptive", "takes one parameter; give two their `values`")
    kind = None if is_servers_own(param, swept.params, launch) else RunSettings.all()[field_of(param)].value_type
    if kind not in (None, int, float):
        raise CbbenchError("adaptive", f"{param} takes no numbers; give its `values`")
    between = (
        None if asked.between is None else parse_between(asked.between, whole=None if kind is None else kind is int)
    )
    for bound in between if between is not None and kind is not None else ():
        check(param, bound, "between")
    base = _base(swept, [(between[0],)] if between else [])
    campaign = _campaign(swept, base, asked)
    bounds = between or (None if param == "rate" else _bounds(param, base, campaign))
    with campaign.begun([], adaptive=True):
        if bounds is None:
            capacity = peak_throughput(base, campaign.benches, campaign.folder)
            if capacity is None:  # Ctrl-C
                return _end(campaign, base, False)
            bounds = bounds_of_rate(capacity)
        search = AdaptiveSearch(
            *bounds,
            whole=isinstance(bounds[1], int) and kind is not float,
            climbs=param == "rate" and kind is float,
            latency=latency_of_knee(swept.params),
            judged=bool(base.slo.sla),
        )
        whole, step = campaign.measure(campaign.settings_done), Round((), "")
        while whole and (step := next_round(search, merge(campaign.state.points))).values:
            print(f"{step.why}: {param} {', '.join(map(str, step.values))}", file=sys.stderr)
            whole = campaign.measure([(value,) for value in step.values])
        if whole:
            campaign.finish(step.why)
    return _end(campaign, base, whole)


def _base(swept: Sweep, settings: Sequence[Setting]) -> RunSettings:
    """Of any setting that can run; without settings, of what is given. CbbenchError if none can."""
    if not settings:
        return build_settings(swept.given)
    targets = [swept.target(one) for one in settings]
    config = next((one.config for one in targets if one.config is not None), None)
    if config is None:
        assert targets[0].error is not None
        raise targets[0].error
    return config


def _campaign(swept: Sweep, base: RunSettings, asked: SweepRequest) -> Campaign:
    folder = Path(base.output.folder) if base.output.folder else default_folder(f"sweep-{'-'.join(swept.params)}")
    benches: Benches = OneBench(base) if base.server.launch is None else BenchPerPoint()
    return Campaign(swept, base, benches, folder, every_rate=asked.every_rate or asked.adaptive)


def _bounds(param: str, base: RunSettings, campaign: Campaign) -> Bounds:
    if isinstance(campaign.benches, OneBench):
        bench = campaign.benches.bench
        return bounds_of_plan(param, base, bench.plan(base), bench.factory.context_tokens(base))
    raise CbbenchError("adaptive", f"beside `launch`, say `between` LOW,HIGH for {param}")


def _end(campaign: Campaign, base: RunSettings, whole: bool) -> int:
    show(campaign.state, campaign.folder, json=base.output.json)
    print(f"results in {campaign.folder}", file=sys.stderr)
    return code_of(campaign.state, interrupted=not whole)


def show(state: SweepFile, folder: Path, *, json: bool) -> None:
    if json:
        sys.stdout.write((folder / "sweep.json").read_text(encoding="utf-8").rstrip() + "\n")
        return
    console = Console()
    console.print(sweep_view(state, width=console.width))


def code_of(state: SweepFile, interrupted: bool) -> int:
    """3 if no setting meets the SLA (if values are different workloads: if one fails it), 5 if none is shown to meet
    it, but not all have failed; if none could run at all, 6 if that was for want of a server, else 2."""
    ran = [point for point in state.points if point.error is None]
    invalid = bool(ran) and all(point.validity and point.validity.verdict == "invalid" for point in ran)
    no_server = any(point.exit_code == ExitCode.SERVER for point in state.points)
    if set(state.params) & work_params():
        missed = any(one.verdict == "fail" for point in ran for one in point.sla)
        undecided = any(not one.met for point in ran for one in point.sla)
    else:
        none_meets = bool(state.sla) and (state.recommendation is None or state.recommendation.values is None)
        undecided = none_meets and bool(open_points(ran))
        missed = none_meets and not undecided
    verdicts: list[Verdict] = [*(["fail"] if missed else []), *(["inconclusive"] if undecided else [])]  # type: ignore[list-item]
    return exit_code(
        interrupted=interrupted,
        usage_error=not ran and not no_server,
        server_died=not ran and no_server,
        validity="invalid" if invalid else "ok",
        sla=verdicts,
    )
