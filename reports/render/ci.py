"""The checks of a gate for CI: JUnit XML, annotations of GitHub, and the JSON of github-action-benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.etree import ElementTree

from reports.checks import Check, CheckSummary
from reports.render.checks import ORDER, check_sentence
from reports.stored_runs import StoredRun


def junit(result: CheckSummary) -> bytes:
    root = ElementTree.Element("testsuites", name="cbbench gate")
    by_scenario = sorted(result.checks, key=lambda one: one.scenario)
    for scenario, checks in groupby(by_scenario, key=lambda one: one.scenario):
        root.append(_suite(scenario, list(checks)))
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _suite(scenario: str, checks: list[Check]) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite",
        name=scenario,
        tests=str(len(checks)),
        failures=str(sum(one.verdict == "fail" for one in checks)),
        skipped=str(sum(one.verdict == "inconclusive" for one in checks)),
        errors="0",
    )
    for one in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=f"{one.kind}.{scenario}", name=name_of(one))
        _properties(case, one)
        if one.verdict == "fail":
            ElementTree.SubElement(case, "failure", message=check_sentence(one), type=one.kind)
        elif one.verdict == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=f"inconclusive: {check_sentence(one)}")
        else:
            ElementTree.SubElement(case, "system-out").text = f"{one.verdict}: {check_sentence(one)}"
    return suite


def name_of(one: Check) -> str:
    return f"{one.metric} {one.limit}"


def _properties(case: ElementTree.Element, one: Check) -> None:
    low, high = one.interval or (None, None)
    known = {"value": one.value, "baseline": one.baseline, "change": one.change, "low": low, "high": high}
    given = {name: value for name, value in known.items() if value is not None}
    if given:
        properties = ElementTree.SubElement(case, "properties")
        for name, value in given.items():
            ElementTree.SubElement(properties, "property", name=name, value=f"{value:.6g}")


COMMANDS = {"fail": "error", "inconclusive": "error", "warn": "warning"}


def workflow_commands(result: CheckSummary) -> Iterator[str]:
    """A line for each check that did not pass, failed ones first. Inconclusive is an error too, as the job fails."""
    for one in sorted(result.checks, key=lambda one: ORDER.index(one.verdict)):
        if one.verdict in COMMANDS:
            title = f"{one.metric} {one.limit}: {one.verdict}"
            message = f"{one.scenario}: {check_sentence(one)}"
            yield f"::{COMMANDS[one.verdict]} title={_escaped_property(title)}::{_escaped_data(message)}"


def _escaped_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped_data(text).replace(":", "%3A").replace(",", "%2C")


def benchmark_json(runs: Sequence[StoredRun]) -> list[dict[str, str | float]]:
    """customSmallerIsBetter: names with values. Throughput is given as its inverse, so that smaller is better. Metrics
    that the validity of a run makes meaningless are left out."""
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


def _trusted(one: StoredRun) -> tuple[str, ...]:
    """The latencies that describe the server; not those of an invalid or interrupted run."""
    validity = one.run.validity.verdict if one.run.validity else "ok"
    if validity == "overloaded":  # waiting times grow with the length of the run
        return ("tpot", "itl")
    return ("ttft", "tpot", "itl", "e2el") if validity == "ok" and not one.run.interrupted else ()
