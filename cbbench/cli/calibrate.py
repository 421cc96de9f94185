"""cbbench calibrate: fit the simulator's step-time model to runs. NumPy and SciPy load inside the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbbench.cli.options import DEBUG, takes

if TYPE_CHECKING:
    from engines.simulated.step_time import FittedStepTimes
    from reports.schema import EngineInfo, RunFile


@takes(DEBUG)
def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs of one engine and machine; or files with the steps of one server, as .csv or .jsonl "
            "(tokens, rows, kv, prefill_kv, prefill_pairs, ms), or vLLM's log with --enable-logging-iteration-details.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: step_time_model.json in RUN, or beside a file."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="With files: the model that the server ran, as for cbbench run.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With files: the GPU it ran on, so that --hardware of a simulated run can move the step times to "
            "another. Default: unknown, and they cannot be moved.",
        ),
    ] = None,
    max_error: Annotated[
        float, typer.Option(min=0.0, help="Refuse a fit whose mean relative error on held-out steps is larger.")
    ] = 0.25,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    **given: Any,
) -> int:
    """Fit a step-time model to runs or to a server's steps, for --engine simulated --step-time-model RUN."""
    from engines.simulated.step_time import STEP_TIMES_FILE, save_step_times

    if any(run.is_file() for run in runs):
        step_times = _of_files(runs, model, hardware, max_error)
        beside = runs[0].parent
    else:
        step_times = _of_runs(runs, model or hardware, max_error)
        beside = runs[0]
    path = output or beside / STEP_TIMES_FILE
    save_step_times(step_times, path)
    sys.stdout.write(path.read_text(encoding="utf-8") if json else describe(step_times))
    print(f"step-time model in {path}", file=sys.stderr)
    return 0


def _of_runs(runs: Sequence[Path], named: str | None, max_error: float) -> FittedStepTimes:
    """named: what only files need to be told."""
    from engines.simulated.calibrate import calibrate, measured_steps, pooled
    from engines.simulated.step_time import Origin
    from reports.folder import read_record, read_run
    from workloads.errors import CbbenchError

    recorded = [read_run(folder) for folder in runs]
    if named:
        raise CbbenchError(None, f"{runs[0]} is a run, which has its model and device in run.json: leave {named!r} out")
    engines = [run.engine for run in recorded]
    _check_alike(runs, engines)
    config = engines[0].config
    return calibrate(
        pooled([measured_steps(read_record(folder).steps) for folder in runs]),
        Origin(
            source=", ".join(folder.name for folder in runs),
            model=engines[0].model,
            device=_hardware(recorded[0]) or engines[0].device,
            kv_blocks=config.get("kv_blocks"),
            block_size=config.get("block_size"),
            max_model_len=config.get("max_model_len"),
            kv_bytes_per_token=config.get("kv_bytes_per_token"),
        ),
        overlapped=engines[0].device == "cuda",
        row_buckets=tuple(config.get("graph_buckets", ())),
        max_mean_error=max_error,
    )


def _of_files(files: Sequence[Path], model: str | None, hardware: str | None, max_error: float) -> FittedStepTimes:
    from engines.simulated.calibrate import calibrate, pooled
    from engines.simulated.hardware import find_hardware
    from engines.simulated.shapes import find_shape
    from engines.simulated.step_files import KV_BYTES, VLLM_BLOCK_TOKENS, read_step_file
    from engines.simulated.step_time import Origin
    from workloads.errors import CbbenchError

    if folder := next((one for one in files if one.is_dir()), None):
        raise CbbenchError(None, f"{folder} is a folder, and others here are files: calibrate on one kind at a time")
    if model is None:
        raise CbbenchError("model", f"{files[0]} does not say which model the server ran; give its name or config.json")
    shape = find_shape(model)
    if hardware is not None:
        find_hardware(hardware)
    read = [read_step_file(path) for path in files]
    blocks = next((one.kv_blocks for one in read if one.kv_blocks is not None), None)
    return calibrate(
        pooled([one.steps for one in read]),
        Origin(
            source=", ".join(path.name for path in files),
            model=model,
            device=hardware,
            kv_blocks=blocks,
            block_size=None if blocks is None else VLLM_BLOCK_TOKENS,
            max_model_len=shape.max_position,
            kv_bytes_per_token=shape.kv_elements_per_token * KV_BYTES,
            warnings=tuple(dict.fromkeys(warning for one in read for warning in one.warnings)),
        ),
        max_mean_error=max_error,
    )


def _check_alike(runs: Sequence[Path], engines: Sequence[EngineInfo]) -> None:
    from workloads.errors import CbbenchError

    first = engines[0]
    for folder, engine in zip(runs, engines, strict=True):
        if engine.kind != "reference":
            raise CbbenchError(
                None,
                f"{folder}: a run of the {engine.kind} engine has no step times of its own to fit; "
                "record one of our own engine, `cbbench run --model MODEL`",
            )
        if engine.config.get("disaggregate"):
            raise CbbenchError(
                None,
                f"{folder}: two instances shared the machine, so the time of their steps is not that of one; run one",
            )
        if (engine.model, engine.device) != (first.model, first.device):
            raise CbbenchError(None, f"{folder}: another model or device than {runs[0]}, so its step times differ")


def _hardware(run: RunFile) -> str | None:
    """The GPU that the run was on, by the name that --hardware has for it."""
    from engines.simulated.hardware import hardware_named

    gpu = run.environment.get("gpu")
    return None if run.engine.device != "cuda" or not gpu else hardware_named(str(gpu.get("name", "")))


def describe(step_times: FittedStepTimes) -> str:
    """The model and its errors, as text."""
    decode, mixed, gap = step_times.decode, step_times.mixed, step_times.gap
    lines = [
        f"decode  {decode.step / 1e6:.3f} ms + {decode.row / 1e3:.1f} us per row + {decode.kv:.1f} ns per KV position",
        f"mixed   {mixed.step / 1e6:.3f} ms + {mixed.token / 1e3:.1f} us per token "
        f"(and {mixed.beyond_knee / 1e3:.1f} us beyond {mixed.knee_tokens}) + {mixed.row / 1e3:.1f} us per row",
        f"        + {mixed.kv:.1f} ns per KV position + {mixed.pair:.2f} ns per (query, key) pair "
        f"+ {mixed.prefill_kv:.1f} ns per position before a chunk",
        f"gap     {gap.step / 1e6:.3f} ms + {gap.row / 1e3:.1f} us per row",
        f"swap    {step_times.swap_block_ns / 1e3:.1f} us per KV block moved"
        if step_times.knows_swaps
        else "swap    not calibrated: no step moved KV blocks, so --on-kv-pressure swap is refused with this model",
        "errors on held-out steps:",
    ]
    for regime, error in step_times.origin.hold_out.items():
        errors = f"mean {error.mean:.1%}, P95 {error.p95:.1%}, summed time {error.total:+.1%}"
        lines.append(f"  {regime:6}  {errors}, {error.steps} steps")
    ranges = (f"{low} to {high} {name}" for name, (low, high) in step_times.origin.fitted_on.items())
    lines.append(f"fitted on {', '.join(ranges)} per step; other values are extrapolated")
    lines += [f"warning: {warning}" for warning in step_times.origin.warnings]
    return "\n".join(lines) + "\n"
