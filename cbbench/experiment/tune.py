"""cbbench tune: try, read the signals, move; first on the simulator if there are step times, then on the engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from cbbench.experiment.bench import Bench
from cbbench.experiment.run import default_folder, measure
from cbbench.settings.build import build_settings
from cbbench.settings.facts import EngineKind
from cbbench.settings.run import RunSettings
from cbbench.settings.values import parse_buckets
from reports.curves import point_of
from reports.files import write_whole
from reports.recommend import open_points
from reports.render.tune import tune_view
from reports.schema import Verdict
from reports.sla import exit_code
from reports.sweep_schema import Point
from reports.tuning.moves import Bounds, with_more_slots
from reports.tuning.search import Decision, advice, bucket_edge_tokens, decide, long_prompt_tokens
from reports.tuning.trials import GAIN, Setting, Trial, outcome_of, wants_slots
from reports.tuning.tune_file import TUNE, Headroom, Purpose, Stage, TuneFile, outcome, write_tune
from workloads.errors import CbbenchError, ExitCode
from workloads.rates import RateSchedule

TOKENS_GROWTH = 8  # the budget of a step may grow to so many times where it began
PROOF_RUNS = 8
HEADROOM = 1.15  # times the rate
HEADROOM_SETTINGS = 4
# By purpose; there is no flag for the runs of a proof.
MORE_RUNS = {"explore": "; most_runs allows more", "confirm": "; confirm_runs allows more"}


def tune(given: Mapping[str, Any], *, most_runs: int, confirm_runs: int, proof_requests: int) -> int:
    """The exit code. With a step-time model beside the reference engine, `given` is explored on the simulator first."""
    explored, real = configs(given)
    folder = Path(real.output.folder) if real.output.folder else default_folder("tune")
    if folder.exists() and any(folder.iterdir()):
        raise CbbenchError("output", f"{folder} is not empty; choose a new folder")
    search = TuneSearch("explore", explored, folder)
    stages = [search.run(start_of(explored), most_runs)]
    if not search.interrupted:
        for proof, stage in proofs(explored, stages[0].best, folder, proof_requests):
            search = proof
            stages.append(stage)
    if real is not explored and not search.interrupted:
        search = TuneSearch("confirm", real, folder)
        stages.append(search.run(stages[-1].best.setting, confirm_runs, until_met=True))
    # Beside the real engine, what only the simulator reads is none of its settings.
    chosen = {name: value for name, value in given.items() if real is explored or runs_on(name, "reference")}
    note = all_at_once(real, search.requests)
    result = outcome(tuple(stages), given=chosen, sha256=search.plan_sha256, note=note)
    write_tune(folder, result)
    write_whole(folder / "cbbench.toml", result.toml.encode())
    show(result, folder, json=real.output.json)
    print(f"results in {folder}", file=sys.stderr)
    return code_of(result.best, interrupted=search.interrupted)


def code_of(best: Trial, *, interrupted: bool) -> int:
    """3 where no setting meets the bounds, 5 where no miss of the best is proven. Met by point estimate is enough for
    0."""
    validity = best.point.validity.verdict if best.point.validity is not None else "ok"
    is_open = best.unmeasured is not None or bool(open_points([best.point]))
    failed = any(one.verdict == "fail" for one in best.point.sla)
    verdict: Verdict = "pass" if best.meets else "inconclusive" if is_open and not failed else "fail"
    return exit_code(interrupted=interrupted, validity=validity, sla=[verdict])


def configs(given: Mapping[str, Any]) -> tuple[RunSettings, RunSettings]:
    """(where to explore, where to confirm): the very same where there is only one engine."""
    if given.get("url") or given.get("launch"):
        raise CbbenchError(
            "url" if given.get("url") else "launch",
            "tune changes cbbench's own engine, got a server; `cbbench sweep` takes concurrency with `url`, and "
            "max-num-seqs with `launch`",
        )
    if given.get("mode", "continuous") != "continuous":
        raise CbbenchError("mode", "tune is for continuous batching, got static; `cbbench sweep` takes either")
    if given.get("disaggregate"):
        raise CbbenchError("disaggregate", "tune moves the settings of one instance; `cbbench sweep` takes two")
    if not given.get("sla"):
        raise CbbenchError("sla", "tune needs bounds to search under, as in 'p99_ttft_ms<=500'")
    step_times = [name for name in ("step_time_model", "hardware") if given.get(name) is not None]
    if not step_times or given.get("engine") == "simulated":
        settings = build_settings(given)
        return settings, settings
    real = {name: value for name, value in given.items() if runs_on(name, "reference")}
    simulated = {name: value for name, value in given.items() if runs_on(name, "simulated")}
    if "step_time_model" in step_times:
        simulated.pop("gpu_memory_utilization", None)  # a fitted model has no memory size
    return build_settings({**simulated, "engine": "simulated"}), build_settings(real)


def runs_on(name: str, kind: EngineKind) -> bool:
    """Whether it is a setting of that kind of engine. True for an unknown name, which is refused later."""
    known = RunSettings.all().get(name)
    return known is None or kind in known.facts.engines


def start_of(settings: RunSettings) -> Setting:
    """Where the search begins; the first run tells the tokens of a step if they were not given."""
    tokens = settings.scheduler.max_num_batched_tokens or 0
    return Setting(
        settings.scheduler.max_num_seqs,
        tokens,
        settings.scheduler.admission,
        None if settings.scheduler.prompt_buckets is None else settings.scheduler.prompt_buckets.text,
        settings.scheduler.max_prompt_chunk,
    )


def load_setting(settings: RunSettings) -> str | None:
    """The setting that bounds the load; None: all requests arrive at once, or at the times of a trace."""
    return (
        "rate" if settings.load.rate is not None else "concurrency" if settings.load.concurrency is not None else None
    )


def all_at_once(settings: RunSettings, requests: int) -> str | None:
    """What such a load cannot show; None where it is another."""
    if load_setting(settings) is not None or settings.load.arrival == "trace":
        return None
    return (
        f"All {requests} requests arrive at once, so the wait for a first token is that of a queue of {requests}, "
        "and grows with it: a rate or a concurrency gives a load."
    )


def enough_requests(settings: RunSettings, best: Trial, most: int) -> int | None:
    """How many the simulator needs to prove the bounds; None where there is nothing to prove, or more requests would
    be another load (all at once, or at the last rate of several). As a guess falls short when its requests turn out to
    depend more, half as many again.
    """
    steady = settings.load.rate is not None or settings.load.concurrency is not None or settings.load.arrival == "trace"
    steady = steady and not isinstance(settings.load.rate, RateSchedule)
    if settings.engine.kind != "simulated" or not steady or best.needed is None or best.unmeasured is not None:
        return None
    enough = min(best.needed * 3 // 2, most)
    return enough if enough > settings.workload.num_requests else None


def proofs(settings: RunSettings, best: Trial, folder: Path, most: int) -> Iterator[tuple[TuneSearch, Stage]]:
    """With as many requests as a proof seems to take; once more where it turns out to take more, if `most` will do."""
    purposes: tuple[Purpose, ...] = ("prove", "prove-again")
    for purpose in purposes:
        enough = enough_requests(settings, best, most)
        if enough is None or (purpose == "prove-again" and not (best.meets and best.needed and best.needed <= most)):
            return
        settings = settings.replaced(num_requests=enough, duration=None)
        search = TuneSearch(purpose, settings, folder)
        stage = search.run(best.setting, PROOF_RUNS, until_met=True)
        yield search, stage
        if search.interrupted:
            return
        best = stage.best


class TuneSearch:
    """One engine, loaded once, and the runs tried on it."""

    def __init__(self, purpose: Purpose, settings: RunSettings, folder: Path) -> None:
        self.interrupted = False
        self._purpose = purpose
        self.settings = settings
        self._folder = folder / purpose
        self._bench = Bench(settings, many_runs=True)
        self._prediction: str | None = None
        plan = self._bench.plan(settings)
        self.plan_sha256 = plan.sha256
        self.requests = len(plan)
        self._prompts = plan.prompt_tokens.tolist()
        self._most_slots = min(len(plan), settings.load.concurrency or len(plan))

    def run(self, start: Setting, most_runs: int, *, until_met: bool = False) -> Stage:
        """Move after move, until none is left or the runs are spent. until_met: the bounds being met is enough."""
        trials = [self._first(start)]
        bounds = self._bounds(trials[0].setting)
        decisions: list[Decision] = []
        ended, cut_short = "", False
        while not ended:
            if self.interrupted:
                ended, cut_short = "Interrupted.", True
            elif until_met and trials[-1].meets:
                ended = "The bounds are met here too."
            elif len(trials) >= most_runs:
                cut_short = True
                ended = f"Runs allowed: {most_runs}, and they are spent{MORE_RUNS.get(self._purpose, '')}."
            else:
                decision = decide(trials, bounds)
                if decision.to is None:
                    ended = decision.words
                    break
                decisions.append(decision)
                if (trial := self.attempt(decision.to, len(trials) + 1)) is not None:
                    trials.append(trial)
        best, headroom = outcome_of(trials), None
        if self.has_headroom_runs and best.meets and not self.interrupted:
            best, headroom = self._with_headroom(best, trials, bounds)
        # advice is on what no setting can do, and some were not tried
        told = () if cut_short else tuple(advice(best, bounds, load_setting(self.settings)))
        return Stage(
            purpose=self._purpose,
            num_requests=self.settings.workload.num_requests,
            engine=self.settings.engine.kind,
            prediction=self._prediction,
            trials=tuple(trials),
            decisions=tuple(decisions),
            best=best,
            advice=told,
            ended=ended,
            headroom=headroom,
        )

    @property
    def has_headroom_runs(self) -> bool:
        """On the simulator, at a rate that can be raised."""
        return self.settings.engine.kind == "simulated" and isinstance(self.settings.load.rate, int | float)

    def _with_headroom(self, best: Trial, trials: list[Trial], bounds: Bounds) -> tuple[Trial, Headroom]:
        """The setting that meets the SLA at a higher load too, with as many more slots as that takes where they cost
        nothing at the load that was asked for: a burst may be a higher load. Else `best`."""
        at_more = [self._at(HEADROOM, best.setting, len(trials) + 1)]
        chosen = best
        while wants_slots(at_more[-1]) and not self.interrupted and len(at_more) < HEADROOM_SETTINGS:
            to = with_more_slots(chosen.setting, bounds)
            if to is None:
                break
            tried = next((one for one in trials if one.setting == to), None) or self.attempt(to, len(trials) + 1)
            if tried is None or not tried.meets or tried.goodput_per_s < best.goodput_per_s / GAIN:
                break
            if tried not in trials:
                trials.append(tried)
            chosen = tried
            at_more.append(self._at(HEADROOM, to, len(trials) + 1))
        return (chosen if at_more[-1].held else best), Headroom(HEADROOM, tuple(at_more))

    def _at(self, factor: float, setting: Setting, number: int) -> Trial:
        """A run of the same plan at `factor` times the rate."""
        rate = self.settings.load.rate
        assert isinstance(rate, int | float)
        print(f"{self._purpose}: at {factor:g} times the rate, {setting.label()}", file=sys.stderr)
        trial = self.attempt(setting, number, rate=factor * rate)
        return Trial(setting, Point(values=(), folder="", error="interrupted")) if trial is None else trial

    def _first(self, start: Setting) -> Trial:
        trial = self.attempt(start, 1)
        if trial is None:
            raise CbbenchError(None, "interrupted before the first run had ended", ExitCode.INTERRUPTED)
        if trial.point.error is not None:
            raise CbbenchError(None, trial.point.error)
        return trial

    def attempt(self, setting: Setting, number: int, *, rate: float | None = None) -> Trial | None:
        """One run. A setting that cannot run is a trial with an error. None: Ctrl-C broke it off. rate: instead of the
        one given."""
        name = f"{number:02}-rows-{setting.max_num_seqs}-tokens-{setting.max_num_batched_tokens}"
        name += f"-rate-{rate:g}" if rate is not None else ""
        settings = self.settings.replaced(
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=setting.max_num_batched_tokens or None,
            admission=setting.admission,
            prompt_buckets=None if setting.prompt_buckets is None else parse_buckets(setting.prompt_buckets),
            max_prompt_chunk=setting.max_prompt_chunk,
            order=setting.order or self.settings.scheduler.order,
            ageing=self.settings.scheduler.ageing if setting.order is None else setting.ageing,
        )
        if rate is None:
            print(f"{self._purpose} {number}: {setting.label()}", file=sys.stderr)
        else:
            settings = settings.replaced(rate=rate)
        try:
            result = measure(self._bench, settings, self._folder / name, f"tune {number}")
        except CbbenchError as error:
            return Trial(setting, Point(values=(), folder=name, error=str(error)))
        if result.interrupted:
            self.interrupted = True
            return None
        self._prediction = result.engine.prediction
        tokens = int(result.engine.config["max_num_batched_tokens"])
        known = msgspec.structs.replace(setting, max_num_batched_tokens=tokens)
        return Trial(known, point_of((known.max_num_seqs, tokens), f"{self._folder.name}/{name}", result))

    def _bounds(self, start: Setting) -> Bounds:
        most = max(TOKENS_GROWTH * start.max_num_batched_tokens, self._most_slots)
        return Bounds(
            self._most_slots,
            most,
            bucket_edge_tokens(self._prompts),
            long_prompt_tokens(self._prompts),
            in_chunks=self.settings.scheduler.chunked_prefill is not False,
            first_come=self.settings.scheduler.order == "fcfs",
            cheap_runs=self.settings.engine.kind == "simulated",
            open_loop=self.settings.load.rate is not None or self.settings.load.arrival == "trace",
        )


def show(result: TuneFile, folder: Path, *, json: bool) -> None:
    if json:
        sys.stdout.write((folder / TUNE).read_text(encoding="utf-8").rstrip() + "\n")
        return
    Console().print(tune_view(result))
