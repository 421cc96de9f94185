"""One run: plan, pacing, engine, folder, verdict."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cbbench.experiment.bench import Bench, criteria_of, describe_workload, notes_of, rate_per_s
from cbbench.experiment.benches import server_for
from cbbench.experiment.environment import environment
from cbbench.experiment.interrupt import Interrupt
from cbbench.experiment.live_view import LiveView
from cbbench.settings.run import RunSettings
from engines.base import PartialRun, RunRecord, Signal
from engines.ledger import StepArray
from engines.request_table import RequestRow
from engines.telemetry import Gpu, Telemetry, first_visible, open_gpus
from reports.files import json_bytes
from reports.folder import RunWriter, read_record
from reports.instances import records_by_instance
from reports.metrics import request_times
from reports.percentiles import STORED, Percentiles, percentiles
from reports.render.run import run_view
from reports.render.timeline import timeline
from reports.schema import EngineInfo, RunFile
from reports.sla import exit_code
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan
from workloads.session_pacing import pacing_of

TIMELINE_SLOTS = 4  # up to this many, the timeline is shown unasked
LONG_SIMULATION = 20_000  # requests from which a simulated run on the scheduler takes some ten seconds


class RunObserver:
    """The run's Observer: passes what happens on to the files and to the live view, and asks the engine to stop.

    The GPU's own account is put into the signals here, so that no engine need know of it.
    """

    def __init__(self, writer: RunWriter, live: LiveView, interrupt: Interrupt, telemetry: Telemetry) -> None:
        self._writer = writer
        self._live = live
        self._interrupt = interrupt
        self._telemetry = telemetry
        self._with_gpu: list[Signal] = []

    @property
    def stopping(self) -> bool:
        return self._interrupt.requested

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        self._writer.request_ended(row, events)

    def steps_recorded(self, steps: StepArray) -> None:
        self._writer.steps_recorded(steps)

    def sampled(self, signal: Signal) -> None:
        if self._telemetry.watching:
            signal = msgspec.structs.replace(signal, gpu=self._telemetry.latest())
            self._with_gpu.append(signal)
        self._writer.sampled(signal)
        self._live.show(signal)

    def completed(self, record: RunRecord) -> RunRecord:
        """The engine's record, with the GPU's account in its signals too."""
        return replace(record, signals=self._with_gpu) if self._telemetry.watching else record


def run(settings: RunSettings, asked: Sequence[float] | None = None) -> int:
    """`cbbench run`: the exit code. `asked`: percentiles to show in place of the usual ones."""
    folder = (
        Path(settings.output.folder)
        if settings.output.folder
        else default_folder(f"{settings.scheduler.mode}-{settings.workload.spec}")
    )
    if folder.exists() and any(folder.iterdir()):  # said now, not after the model has loaded
        raise CbbenchError("output", f"{folder} is not empty; choose a new folder")
    if settings.server.launch is not None and "{value}" in settings.server.launch:
        raise CbbenchError("launch", "{value} is for `cbbench sweep`, which has values to put there")
    with server_for(settings, {}, folder.with_name(f"{folder.name}.server.log")) as served:
        result = measure(Bench(served), served, folder, title=f"{settings.scheduler.mode} · {settings.workload.spec}")
    few_slots = settings.scheduler.max_num_seqs <= TIMELINE_SLOTS
    with_timeline = few_slots if settings.output.timeline is None else settings.output.timeline
    show(result, folder, json=settings.output.json, with_timeline=with_timeline, asked=asked)
    print(f"results in {folder}", file=sys.stderr)
    return code_of(result)


def measure(bench: Bench, settings: RunSettings, folder: Path, title: str, round_number: int | None = None) -> RunFile:
    """Run `settings` into `folder`. Ctrl-C ends it early; the result is then marked as interrupted. round_number: from
    1, of a run that goes on until its SLAs are decided."""
    plan = bench.plan(settings)
    pacing = pacing_of(
        plan,
        rate_per_s=rate_per_s(settings, plan),
        concurrency=settings.load.concurrency,
        duration_s=settings.load.duration,
        drain_s=settings.load.drain,
    )
    engine, info = bench.engine(settings, plan)
    gpu = gpu_to_watch(settings, info)
    header = RunFile(
        engine=info,
        workload=describe_workload(settings, plan),
        event_unit="us" if info.kind == "openai" else "step",
        environment=environment(gpu),
        criteria=criteria_of(settings),
        notes=notes_of(settings, plan),
        round=round_number,
    )
    bench.tell([*header.notes, *notes_on_speed(info, plan)])  # before the run, which may be long
    with (
        Interrupt() as interrupt,
        RunWriter(folder, header) as writer,
        LiveView(title, len(plan)) as live,
        Telemetry(gpu) as telemetry,
    ):
        observer = RunObserver(writer, live, interrupt, telemetry)
        try:
            record = engine.run(plan, pacing, observer)
        except PartialRun as partial:  # the server died, say: what there is stays, and the error is told
            writer.finish(observer.completed(partial.record), engine.client)
            raise
        except CbbenchError:
            writer.withdraw()
            raise
        result = writer.finish(observer.completed(record), engine.client)
    bench.tell(result.notes)
    return result


def notes_on_speed(info: EngineInfo, plan: RequestPlan) -> list[str]:
    """A note where a simulated run takes long because the compiled core does not cover it."""
    _, on_scheduler, reason = str(info.config.get("core", "")).partition("scheduler: ")
    if not on_scheduler or len(plan) < LONG_SIMULATION:
        return []
    return [f"{len(plan):,} requests run on the scheduler, not on the faster compiled core: {reason}"]


def gpu_to_watch(settings: RunSettings, info: EngineInfo) -> Gpu | None:
    """By default the one that our own engine runs on; with `gpu_telemetry` also that of a server on this machine."""
    ours = info.kind == "reference" and info.device == "cuda"
    gpu = (
        first_visible(open_gpus())
        if settings.output.gpu_telemetry or (settings.output.gpu_telemetry is None and ours)
        else None
    )
    if settings.output.gpu_telemetry and gpu is None:
        raise CbbenchError("gpu_telemetry", "no NVIDIA GPU can be asked here; `cbbench doctor` says what is missing")
    return gpu


def show(
    result: RunFile, folder: Path, *, json: bool, with_timeline: bool, asked: Sequence[float] | None = None
) -> None:
    """The result on stdout: run.json itself, or the view of it. With percentiles that were asked for, which run.json
    on stdout has under a key of its own."""
    chosen = None
    if asked is not None and result.summary is not None:
        known = all(one in STORED for one in asked)
        chosen = percentiles(result.summary, None if known else request_times(read_record(folder)), asked)
    if json:
        sys.stdout.write(_json(result, folder, chosen))
        return
    console = Console()
    console.print(run_view(result, chosen))
    if with_timeline:
        for name, record in records_by_instance(read_record(folder)).items():
            if name:
                console.print(f"\n{name} instance")
            console.print(timeline(record, result, width=console.width))


def _json(result: RunFile, folder: Path, chosen: Percentiles | None) -> str:
    """run.json as it stands, or the result itself where it could not be written."""
    text = (folder / "run.json").read_text(encoding="utf-8").rstrip() + "\n"
    if msgspec.json.decode(text).get("summary") is None:
        text = json_bytes(result).decode()
    if chosen is None:
        return text
    named = {name: dict(zip(chosen.names, values, strict=True)) for name, values in chosen.values.items()}
    whole = msgspec.json.decode(text) | {"percentiles": named}
    return json_bytes(whole).decode()


def code_of(result: RunFile) -> int:
    return exit_code(
        interrupted=result.interrupted,
        validity=result.validity.verdict if result.validity else "ok",
        sla=[one.verdict for one in result.sla],
    )


def default_folder(name: str) -> Path:
    """runs/TIME-NAME, with whatever a folder's name should not hold taken out."""
    word = re.sub(r"[^\w.-]+", "-", name).strip("-")[:60]
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{word}"
