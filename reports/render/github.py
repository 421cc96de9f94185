"""A gate for GitHub: annotations, as workflow commands, and the JSON of github-action-benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.checks import GateResult
from reports.render.gate import ORDER, said
from reports.stored import Stored

COMMANDS = {"fail": "error", "inconclusive": "error", "warn": "warning"}


def workflow_commands(result: GateResult) -> Iterator[str]:
    """A line per check that did not pass, those that failed first. Inconclusive is an error too: the job does not pass
    either."""
    for one in sorted(result.checks, key=lambda one: ORDER.index(one.verdict)):
        if one.verdict in COMMANDS:
            title = f"{one.metric} {one.limit}: {one.verdict}"
            message = f"{one.scenario}: {said(one)}"
            yield f"::{COMMANDS[one.verdict]} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def benchmark_json(runs: Sequence[Stored]) -> list[dict[str, str | float]]:
    """customSmallerIsBetter: a list of names with values. So throughput is told by its inverse. What a run's validity
    forbids to compare is left out, as a trend of it would mean nothing."""
    entries: list[dict[str, str | float]] = []
    for one in runs:
        summary = one.run.summary
        assert summary is not None  # every stored run was judged
        values: list[tuple[str, str, float | None]] = [
            (f"{stat} {name}", "ms", getattr(getattr(summary.latency, f"{name}_ms"), stat))
            for name in _trusted(one)
            for stat in ("mean", "p50", "p99")
        ]
        rate = summary.throughput.output_token_per_s if _trusted(one) else None
        values.append(("time per 1,000 output tokens", "s", 1000 / rate if rate else None))
        entries += [
            {"name": f"{one.name}: {name}", "unit": unit, "value": value}
            for name, unit, value in values
            if value is not None
        ]
    return entries


def _trusted(one: Stored) -> tuple[str, ...]:
    """The latencies that say something of the server."""
    validity = one.run.validity.verdict if one.run.validity else "ok"
    if validity == "overloaded":  # waits say how long the run was
        return ("tpot", "itl")
    return ("ttft", "tpot", "itl", "e2el") if validity == "ok" and not one.run.interrupted else ()
