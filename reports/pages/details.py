"""What every report shares: tables of latencies and SLAs, settings, machine, definitions, and short titles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reports.document import Block, Section, Table, Text, Tone
from reports.metrics import LATENCIES, definitions
from reports.percentiles import Percentiles
from reports.render.formatting import MISSING, number
from reports.render.run import connections_line
from reports.schema import RunFile, SlaResult
from reports.summary_schema import Distribution, Summary
from workloads.length_distributions import split_outside_brackets

TONES: dict[str, Tone] = {
    "pass": "good", "ok": "good", "fail": "bad", "invalid": "bad", "inconclusive": "unsure",
    "overloaded": "unsure", "client_limited": "unsure",
}  # fmt: skip
NAMES = {"law_label": "step-time model"}  # shown for a setting whose name in run.json is an old word
STEP_TIME_MODEL = "law"  # its name in run.json; its numbers are too many for a table of settings


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def latency_name(name: str) -> str:
    """ "TTFT" of ttft_ms, "TTFT, from schedule" of ttft_sched_ms."""
    word = name.removesuffix("_ms")
    return word.removesuffix("_sched").upper() + (", from schedule" if word.endswith("_sched") else "")


def latency_table(summary: Summary, chosen: Percentiles, open_loop: bool, label: str = "") -> Table:
    rows = []
    with_p99 = 99 in chosen.asked  # the interval is of the P99
    for name in LATENCIES:
        if name.endswith("_sched_ms") and not open_loop:
            continue
        one: Distribution = getattr(summary.latency, name)
        interval = "too few" if one.p99_ci is None else f"{number(one.p99_ci[0])} – {number(one.p99_ci[1])}"
        numbers = map(number, (one.mean, *chosen.values[name]))
        between = [interval] if with_p99 else []
        rows.append((latency_name(name), *numbers, *between, number(one.max), f"{one.count:,}"))
    names = [name.upper() for name in chosen.names]
    between = ["P99, 95 % interval"] if with_p99 else []
    columns = (f"{label or 'latency'}, ms", "mean", *names, *between, "max", "count")
    return Table(columns, rows)


def sla_table(results: Sequence[SlaResult]) -> Table:
    rows = [
        (one.expr, one.verdict, number(one.value) if one.value is not None or one.n == 0 else "infinite", one.reason)
        for one in results
    ]
    return Table(("SLA", "verdict", "measured", "why"), rows, texts=frozenset({1, 3}))


def configuration(runs: Sequence[tuple[str, RunFile]]) -> Section:
    """Settings side by side, those that differ first."""
    settings = [_settings(run) for _, run in runs]
    names = list(dict.fromkeys(name for one in settings for name in one))
    rows = [(name, *(one.get(name, MISSING) for one in settings)) for name in names]
    rows.sort(key=lambda row: len(set(row[1:])) == 1)
    texts = frozenset(range(1, len(runs) + 1))
    table = Table(("setting", *(label or "value" for label, _ in runs)), rows, texts=texts)
    return Section("Configuration", [table], folded=True)


def _settings(run: RunFile) -> dict[str, str]:
    engine, workload, pacing = run.engine, run.workload, run.workload.pacing
    named: dict[str, Any] = {
        "engine": engine.name, "mode": engine.mode, "model": engine.model, "device": engine.device,
        "workload": workload.spec, "requests": workload.num_requests, "seed": workload.seed,
        "workload hash": workload.sha256[:12],
        "prompts' hash": workload.prompts and workload.prompts.sha256[:12],
        "rate, requests/s": pacing.rate_schedule or pacing.rate_per_s, "arrival": pacing.arrival,
        "concurrency": pacing.concurrency, "duration, s": pacing.duration_s,
    }  # fmt: skip
    for kind in ("prompt_tokens", "output_tokens"):
        found = workload.realised.get(kind) or {}
        if found:
            word = kind.replace("_", " ")
            named[word] = " · ".join(f"{name} {number(value)}" for name, value in found.items())
    shown = {name: value for name, value in engine.settings.items() if name not in (STEP_TIME_MODEL, "mode")}
    named |= {NAMES.get(name, name.replace("_", "-")): value for name, value in shown.items()}
    return {name: _shown(value) for name, value in named.items() if value not in (None, "", [], {})}


def _shown(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    return str(value)


def environment(runs: Sequence[tuple[str, RunFile]]) -> Section:
    names = list(dict.fromkeys(name for _, run in runs for name in run.environment))
    rows = [
        (name.replace("_", " "), *(_shown(run.environment.get(name, MISSING)) for _, run in runs)) for name in names
    ]
    if any(connections := [connections_line(run.client) for _, run in runs]):
        rows.append(("connections", *(line or MISSING for line in connections)))
    texts = frozenset(range(1, len(runs) + 1))
    return Section(
        "Environment", [Table(("name", *(label or "value" for label, _ in runs)), rows, texts=texts)], folded=True
    )


def definition_section(run: RunFile | None = None) -> Section:
    """The definitions stored with the run, as another version may define a name differently."""
    rows = list((run.definitions if run and run.definitions else definitions()).items())
    return Section("Definitions", [Table(("number", "what it means"), rows, texts=frozenset({1}))], folded=True)


def warnings_of(run: RunFile, label: str = "") -> list[Block]:
    """The prediction, the reasons of the validity verdict and the notes: what qualifies every number of the run."""
    texts = [run.engine.prediction] if run.engine.prediction else []
    if run.validity is not None:
        texts += list(run.validity.reasons)
    texts += [f"note: {one}" for one in run.notes]
    return [Text(f"{label}: {one}" if label else capital(one), "unsure") for one in texts]


LONGEST = 60
MOST_NAMES = 4
TENANT = re.compile(r"\s*([\w.-]+):[a-z_]+=")
DISTRIBUTION = re.compile(r"\s*(prompt|output)=(.*)", re.DOTALL)


def workload_title(spec: str) -> str:
    """azure-conv · trace.jsonl · prompt lognormal(…); output 128 · azure-conv for tenants a, b"""
    parts = split_outside_brackets(spec.removesuffix(";"), ";")
    lengths = [found for part in parts if (found := DISTRIBUTION.fullmatch(part)) is not None]
    if len(lengths) == len(parts):
        return "; ".join(f"{one[1]} {_cut(one[2], LONGEST // 2)}" for one in lengths)
    base, shared, rest = spec.rpartition(" for ")
    tenants = [found[1] for part in split_outside_brackets(rest, ";") if (found := TENANT.match(part)) is not None]
    if tenants:
        many = len(tenants) > MOST_NAMES
        named = f"{len(tenants)} tenants" if many else f"tenants {', '.join(tenants)}"
        return f"{workload_title(base)} for {named}" if shared else named
    return _cut(re.split(r"[/\\]", spec)[-1] if len(parts) == 1 else spec, LONGEST)


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
