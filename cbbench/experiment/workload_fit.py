"""`cbbench workload fit`: a preset file out of a workload file, how good it is, and its picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cbbench.experiment.workload_picture import length_chart, length_svg
from workloads.columns import IntColumn
from workloads.derivation import write_preset
from workloads.errors import CbbenchError
from workloads.fit import SAMPLE, LengthFit, SideFit, WorkloadFit, fit_workload
from workloads.length_pairs import draw_fitting
from workloads.spec import FITTED_SUFFIX, open_workload


def fit_file(
    spec: str, output: Path | None, lengths: LengthFit | None, picture: bool
) -> tuple[WorkloadFit, list[Path]]:
    """The fit, and the files written: the preset, and its picture. Raises CbbenchError before anything is written."""
    file = open_workload(spec).file
    if file is None:
        raise CbbenchError("workload", f"{spec} is not a file of requests, so there is nothing to fit")
    stem = Path(spec).name.split(".")[0] or "fitted"
    path = output if output is not None else Path(f"{stem}{FITTED_SUFFIX}")
    if not path.name.endswith(FITTED_SUFFIX):
        raise CbbenchError("output", f"{path}: the name of a preset file must end in {FITTED_SUFFIX}")
    if not path.parent.is_dir():
        raise CbbenchError("output", f"{path.parent}: no such folder")
    fit = fit_workload(file, path.name.removesuffix(FITTED_SUFFIX), lengths)
    drawn = _svg(fit, file.lengths.prompt_tokens, file.lengths.output_tokens) if picture else None
    write_preset(fit.preset, path)
    written = [path]
    if drawn is not None:
        written.append(path.with_name(f"{path.name.removesuffix(FITTED_SUFFIX)}.svg"))
        written[-1].write_text(drawn, encoding="utf-8")
    return fit, written


def _svg(fit: WorkloadFit, prompts: IntColumn, outputs: IntColumn) -> str:
    drawn = fit.preset.drawn
    sampled = draw_fitting(drawn, SAMPLE, 0, None, fit.preset.name)
    columns = {"prompt, file": prompts, "prompt, fit": sampled[0], "output, file": outputs, "output, fit": sampled[1]}
    return length_svg(length_chart(fit.preset.name, f"Lengths of {fit.preset.name}", columns, fit.preset.description))


def fit_numbers(fit: WorkloadFit, written: list[Path]) -> dict[str, Any]:
    """For JSON. errors: quantile of a sample over that of the file, minus 1."""

    def side(one: SideFit) -> dict[str, Any]:
        tried = [{"family": each.family, "aic": each.aic, "distribution": each.text} for each in one.families]
        return {"ks": one.ks, "errors": {f"p{100 * at:g}": error for at, error in one.errors.items()}, "tried": tried}

    return {
        "files": [str(path) for path in written],
        "lengths": fit.lengths,
        "estimated": fit.estimated,
        "prompt_tokens": side(fit.prompt),
        "output_tokens": side(fit.output),
        "arrivals": None if fit.arrivals is None else msgspec.to_builtins(fit.arrivals, str_keys=True),
    }


def fit_lines(fit: WorkloadFit, written: list[Path]) -> Iterator[str]:
    yield f"{fit.preset.description}; lengths by a {'joint grid' if fit.lengths == 'grid' else 'distribution each'}"
    if fit.estimated:
        yield "  the prompts are text, and their lengths here are estimates, a token for 4 bytes"
    for name, side in (("prompt", fit.prompt), ("output", fit.output)):
        errors = ", ".join(f"p{100 * at:g} {error:+.1%}" for at, error in side.errors.items())
        yield f"  {name}: Kolmogorov-Smirnov distance {side.ks:.3f} from the file; {errors}"
        if side.families:
            best, *others = side.families
            yield f"    {best.family}, the most likely of {', '.join(one.family for one in (best, *others))}"
            yield f"    {best.text}"
    if (arrivals := fit.arrivals) is not None:
        counted = ", ".join(f"{value:.3g} in {window:g} s" for window, value in arrivals.dispersion.items())
        dispersion = f"; variance over mean of arrivals: {counted}" if counted else ""
        yield f"  arrivals: {arrivals.rate_per_s:.4g} per second, CV of the gaps {arrivals.gap_cv:.2f}{dispersion}"
        nearest = " (burstier than `arrival` can be)" if arrivals.gap_cv > 10 else ""
        yield f"    to send as many, as bursty: `rate` {arrivals.rate_per_s:.4g}, `arrival` {arrivals.arrival}{nearest}"
        if arrivals.dispersion and max(arrivals.dispersion.values()) > 2 * max(1.0, arrivals.gap_cv**2):
            yield "    the rate changes over longer times than a gap, which no `arrival` gives: use stages of `rate`"
    yield f"written: {', '.join(map(str, written))}"
