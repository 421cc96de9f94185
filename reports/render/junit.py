"""A gate as JUnit XML: a suite per scenario, a case per metric. Inconclusive is skipped: neither passed nor failed."""

from __future__ import annotations

from itertools import groupby
from xml.etree import ElementTree

from reports.checks import Check, GateResult
from reports.render.gate import said


def junit(result: GateResult) -> bytes:
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
            ElementTree.SubElement(case, "failure", message=said(one), type=one.kind)
        elif one.verdict == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=f"inconclusive: {said(one)}")
        else:
            ElementTree.SubElement(case, "system-out").text = f"{one.verdict}: {said(one)}"
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
