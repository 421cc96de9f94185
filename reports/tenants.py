"""A sweep by tenant: what each of them gets at each setting, as rows for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reports.curves import CurvePoint
from reports.sweep_schema import TenantPoint, Value


class TenantRow(NamedTuple):
    values: tuple[Value, ...]  # of the setting
    tenants: tuple[TenantPoint, ...]  # one for each name, empty where it had no request


def tenants_of(curve: Sequence[CurvePoint]) -> tuple[list[str], list[TenantRow]]:
    """(names of all tenants, a row for each setting that gave numbers); nothing where no run has two tenants."""
    names = list(dict.fromkeys(name for one in curve for name in one.point.by_tenant))
    if not names:
        return [], []
    nobody = TenantPoint()
    return names, [
        TenantRow(one.values, tuple(one.point.by_tenant.get(name, nobody) for name in names))
        for one in curve
        if one.runs
    ]
