"""The report on where time goes and what would reduce it: the parts of a step that lose most, and faster variants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.choice import SHIPPED

WORST = 3  # parts of a step that the table shows

Rows = dict[str, dict[str, Any]]


def steps(rows: Rows) -> dict[str, tuple[dict[str, Any], Rows]]:
    """cell -> (its step, its parts), of stage `operators`, the cells that were finished"""
    found = {}
    for name, step in rows.items():
        cell, _, last = name.partition(" ")
        if last == "step":
            parts = {row.partition(" ")[2]: one for row, one in rows.items() if row.startswith(f"{cell} ")}
            del parts["step"]
            found[cell] = step, parts
    return found


def operators_headline(rows: Rows) -> str:
    """The cell that is furthest from its floor."""
    if not (cells := steps(rows)):
        return "no step was taken apart"
    cell, (step, parts) = max(cells.items(), key=lambda item: item[1][0]["over_floor"] or 0.0)
    worst = parts[step["worst"]]
    if step["floor_us"] is None:
        return f"{cell}: {step['worst']} takes most, {worst['share']:.0%} of the step"
    over_us = step["graph_us"] - step["floor_us"]
    return f"{cell}: {step['worst']} loses most, {worst['lost_us']:,.0f} of {over_us:,.0f} µs over the floor"


def operators_table(rows: Rows) -> Iterator[str]:
    for cell, (step, parts) in steps(rows).items():
        over = "" if step["over_floor"] is None else f", {step['over_floor']:.2f} times the floor"
        host = "" if step["copies_us"] is None else f", copies {step['copies_us']:,.0f}, gap {step['gap_us']:,.0f}"
        yield ""
        yield (
            f"step {cell}: graph {step['graph_us']:,.0f} µs{over}; "
            f"parts {step['sum_us']:,.0f}, between them {step['between_us']:,.0f}{host}"
        )
        by_loss = sorted(parts.items(), key=lambda item: -(item[1]["lost_us"] or item[1]["share"]))
        for name, one in by_loss[:WORST]:
            floor = "" if one["over_floor"] is None else f", {one['over_floor']:.2f} times its floor"
            lost = "" if one["lost_us"] is None else f"; loses {one['lost_us']:,.0f} µs a step"
            yield f"  {name:10} {one['count']:3d} x {one['us']:8.1f} µs{floor}{lost}"
    for name, one in rows.items():
        if name.startswith("mixed ") and "launch_ms" in one:
            yield ""
            yield (
                f"step {name}, launched one by one: {one['launch_ms']:.2f} ms to launch, {one['device_ms']:.2f} ms of "
                f"the device{': it waits for the host' if one['launch_bound'] else ''}"
            )


def products_headline(rows: Rows) -> str:
    """The product that is furthest from its floor."""
    known = {name: one for name, one in rows.items() if one.get("over_floor")}
    if not known:
        return f"{len(rows)} products"
    name, worst = max(known.items(), key=lambda item: item[1]["over_floor"])
    return f"{name}: {worst['over_floor']:.2f} times its floor; {_better(rows)}"


def tuning_headline(rows: Rows) -> str:
    overall = rows.get("decode attention")
    if overall is None or not overall["cells"]:
        return _better(rows)
    if overall["best"] == SHIPPED:
        return f"decode attention: the shipped setting; {_better(rows)}"
    return f"decode attention: {overall['gain']:.1%} faster with {overall['best']}"


def _better(rows: Rows) -> str:
    gains = [one["gain"] for one in rows.values() if "us" in one]
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)} would be faster another way"


def ways_table(rows: Rows) -> Iterator[str]:
    """The gain of each variant, largest first; those that were wrong or did not run, and how many were not measured."""
    gains = {name: one for name, one in rows.items() if one.get("gain") and "us" in one}
    for name, one in sorted(gains.items(), key=lambda item: -item[1]["gain"]):
        change = f"{one['us']:.1f} to {one['best_us']:.1f} µs"
        yield f"faster        {name}, {one['best']}: {change}, {one['gain']:.1%} (noise {one['noise']:.1%})"
    for name, one in rows.items():
        for way, error in one.get("wrong", {}).items():
            yield f"wrong way     {name}, {way}: {'no number' if error is None else f'off by {error:.2g}'}"
        for way, problem in one.get("failed", {}).items():
            yield f"failed way    {name}, {way}: {problem}"
        if one.get("not_tried"):
            yield f"not tried     {name}: {one['not_tried']} ways, its time was over"
