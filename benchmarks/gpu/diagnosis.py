"""The report on where time goes: the parts of a step that lose most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
        if name.startswith("pdl "):
            yield f"step {name[4:]} with --attention triton-pdl: {one['us']:,.0f} µs, {one['gain']:+.1%} as fast"
        if name.startswith("mixed ") and "launch_ms" in one:
            yield ""
            waits = ": it waits for the host" if one["launch_bound"] else ""
            graph = ""
            if "graph_ms" in one:
                graph = f"; from a graph {one['graph_launch_ms']:.2f} ms to launch, {one['graph_ms']:.2f} of the device"
            yield (
                f"step {name}, launched one by one: {one['launch_ms']:.2f} ms to launch, {one['device_ms']:.2f} ms of "
                f"the device{waits}{graph}"
            )
