"""A tuning search in the terminal: the settings tried, each step with its reason, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from reports.render.formatting import number, share
from reports.render.table import Table
from reports.tuning.trials import Trial
from reports.tuning.tune_file import Stage, TuneFile

CLOSEST = "the fewest bounds missed, then the smallest worst miss, then the most goodput"
VERDICT = {
    "proven": ("Best: ", "bold green"),
    "unproven": ("Best, unproven: ", "bold yellow"),
    "missed": (f"Closest ({CLOSEST}), but the SLA is missed: ", "bold red"),
    "untold": ("Not judged, as a bound was not measured: ", "bold yellow"),
}
PURPOSE = {
    "explore": "Explored",
    "prove": "Repeated with more requests, to prove it",
    "prove-again": "Repeated with still more requests, to prove it",
    "confirm": "Confirmed",
}


def tune_view(result: TuneFile) -> RenderableType:
    parts: list[RenderableType] = []
    for stage in result.stages:
        parts += [_stage(stage), Text()]
    return Group(*parts, _outcome(result))


def _stage(stage: Stage) -> RenderableType:
    where = stage.prediction or f"measured on the {stage.engine} engine"
    head = f"{PURPOSE[stage.purpose]}, {stage.num_requests:,} requests a run, {where}"
    parts: list[RenderableType] = [Text(head, "bold"), _trials(stage)]
    before = ""
    for count, decision in enumerate(stage.decisions, start=1):
        parts.append(Padding(Text.assemble((f"{count}. ", "bold"), decision.words), (0, 0, 0, 2)))
        if (evidence := f"from {decision.origin.label()}: {decision.signals}") != before:
            parts.append(Padding(Text(evidence, "dim"), (0, 0, 0, 5)))
        before = evidence
    parts.append(Padding(Text(stage.ended), (0, 0, 0, 2)))
    if stage.headroom is not None:
        parts += [Padding(Text(one), (0, 0, 0, 2)) for one in stage.headroom.words]
    return Group(*parts)


def _trials(stage: Stage) -> Table:
    """A row for each setting tried; P99 E2EL only where an SLA bounds it."""
    table = Table(spare=[-2, -3], box=None, pad_edge=False, header_style="bold")
    with_e2el = any("e2el" in one.metric for trial in stage.trials for one in trial.point.sla)
    latencies = ("P99 TTFT", "P99 TPOT", *(["P99 E2EL"] if with_e2el else []))
    for name in ("slots", "tokens", "other", "goodput/s", *latencies, "busy", "KV peak"):
        table.add_column(name, justify="left" if name == "other" else "right", no_wrap=name != "other")
    table.add_column("SLA")
    for trial in stage.trials:
        table.add_row(*_row(trial, with_e2el), style="bold" if trial == stage.best else "")
    return table


def _row(trial: Trial, with_e2el: bool) -> Sequence[str]:
    point, setting = trial.point, trial.setting
    return (
        str(setting.max_num_seqs),
        str(setting.max_num_batched_tokens),
        ", ".join(setting.others()),
        number(trial.goodput_per_s),
        number(point.p99_ttft_ms),
        number(point.p99_tpot_ms),
        *([number(point.p99_e2el_ms)] if with_e2el else []),
        share(point.signals.device_busy),
        share(point.signals.kv_usage_peak),
        point.error or ("met" if trial.verdict == "proven" else trial.verdict),
    )


def _outcome(result: TuneFile) -> RenderableType:
    best = result.best
    state = "" if result.confirmed else ", predicted, not measured: confirm it with a run"
    rate = f"{number(best.goodput_per_s)} requests/s" + (" within the SLA" if best.unmeasured is None else "")
    head = Text.assemble(VERDICT[best.verdict], (best.setting.label(), "bold"), f", {rate}{state}.")
    if best.needed is not None and best.meets:
        head.append(f" A proof needs at least {best.needed:,} requests.")
    advice = [*([result.note] if result.note else []), *result.stages[-1].advice]
    parts: list[RenderableType] = [head, *(Text(f"- {one}") for one in advice), Text()]
    parts += [Text("cbbench.toml", "bold"), Padding(Text(result.toml.rstrip()), (0, 0, 0, 2)), Text()]
    for name, flags, lacks in (
        ("vLLM", result.vllm, result.vllm_lacks),
        ("SGLang", result.sglang, result.sglang_lacks),
    ):
        without = f"   (no equivalent of {', '.join(lacks)})" if lacks else ""
        parts.append(Text.assemble((f"{name:7}", "bold"), flags, (without, "dim")))
    return Group(*parts)
