"""Tenants: several users of one server, as they are written. tenant_plan.py makes a plan of them.

    a:weight=3,preset=azure-conv;b:weight=1,preset=azure-code,priority=1

    weight=W          share of the requests, relative to the other weights; default 1
    preset=SPEC       the tenant's own workload; default: that of the run. `workload=SPEC` is the same. A SPEC that
                      contains ; or , stands in brackets: workload=(prompt=uniform(16,512);output=fixed(64))
    priority=P        0 is the most urgent; default: that of the workload's file, else 0
    sessions=N        N concurrent sessions. A request is the next turn of one of them: the prompt that its workload
                      draws is what the turn adds to the prompt and answer of the turn before. A session whose next turn
                      would exceed the context ends, and a new one starts in its place
    prefix=N          its prompts begin with the same N tokens, a system prompt; shorter prompts with as many of them as
                      they have tokens
    arrival=DIST      an arrival process of its own, as `arrival` takes it: constant, poisson, gamma:CV, mmpp:... or
                      onoff:...; its mean rate is its weight's share of the whole. Default: all tenants that name none
                      share the run's
    burst=AFTER:N     N more requests at once, with the AFTER-th request of the others; with weight=0 only these

The tenant of a request and the lengths of each tenant's requests are drawn from separate streams: a new tenant or
another weight changes the number of a tenant's requests, not their lengths.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from workloads.errors import CbbenchError
from workloads.length_distributions import split_outside_brackets

EXAMPLE = "a:weight=3,preset=azure-conv;b:weight=1,preset=azure-code,priority=1"
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Burst:
    """`requests` at once, with the `after`-th of the requests drawn by weight."""

    after: int
    requests: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """workload None: that of the run. priority None: that of the workload."""

    name: str
    weight: Fraction = Fraction(1)
    workload: str | None = None
    priority: int | None = None
    sessions: int = 0  # 0: none
    burst: Burst | None = None
    prefix_tokens: int = 0  # 0: none
    arrival: str | None = None  # None: shares the run's


def parse_tenants(text: str) -> tuple[Tenant, ...]:
    """The tenants that `text` describes. Raises CbbenchError."""
    if text.count("(") != text.count(")"):
        raise CbbenchError("tenants", f"the brackets in '{text}' do not match")
    tenants = tuple(_parse_tenant(part) for part in split_outside_brackets(text, ";"))
    names = [tenant.name for tenant in tenants]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        refuse_tenant(repeated, "duplicate; want one part for each tenant")
    if not any(tenant.weight for tenant in tenants):
        raise CbbenchError("tenants", "every weight is 0; at least one must be above 0")
    return tenants


def _parse_tenant(part: str) -> Tenant:
    name, _, settings = part.partition(":")
    name = name.strip()
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise CbbenchError(
            "tenants",
            f"cannot read '{part.strip()}'; want NAME:key=value,..., as in {EXAMPLE}, and brackets around "
            "distributions, as in a:workload=(prompt=fixed(64);output=fixed(16))",
        )
    fields: dict[str, Any] = {}
    for setting in split_outside_brackets(settings, ",") if settings.strip() else []:
        key, _, value = setting.partition("=")
        key, value = key.strip(), value.strip()
        if key not in _KEYS:
            in_brackets = "; distributions stand in brackets: workload=(prompt=DIST;output=DIST)"
            hint = in_brackets if key in ("prompt", "output") else ""
            refuse_tenant(name, f"unknown key '{key}', want one of {', '.join(_KEYS)}{hint}")
        field, read, wanted = _KEYS[key]
        if field in fields:
            refuse_tenant(name, f"{field} is given twice")
        try:
            fields[field] = read(value)
        except (ValueError, OverflowError):
            refuse_tenant(name, f"{key} must be {wanted}, got '{value}'")
    return Tenant(name, **fields)


def _weight(text: str) -> Fraction:
    value = float(text)
    if not 0 <= value <= 1e9:
        raise ValueError
    return Fraction(value)  # exact, so that sums of weights are the same on every Python


def _whole(text: str, least: int) -> int:
    value = int(text)
    if not least <= value <= _MOST:
        raise ValueError
    return value


def _spec(text: str) -> str:
    inner = text[1:-1].strip() if text.startswith("(") and text.endswith(")") else text
    if not inner:
        raise ValueError
    return inner


def _arrival(text: str) -> str:
    if not text or text == "trace":
        raise ValueError
    return text


def _burst(text: str) -> Burst:
    after, _, requests = text.partition(":")
    return Burst(_whole(after, 1), _whole(requests, 1))


_SPEC_WORDS = "a preset, a file or (prompt=DIST;output=DIST)"
_KEYS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "weight": ("weight", _weight, "a number from 0 to 1e9"),
    "preset": ("workload", _spec, _SPEC_WORDS),
    "workload": ("workload", _spec, _SPEC_WORDS),
    "priority": ("priority", lambda text: _whole(text, 0), "a whole number, 0 being the most urgent"),
    "sessions": ("sessions", lambda text: _whole(text, 1), "a whole number from 1"),
    "prefix": ("prefix_tokens", lambda text: _whole(text, 1), "a number of tokens from 1"),
    "arrival": ("arrival", _arrival, "a process such as poisson, gamma:3 or onoff:0.3:200"),
    "burst": ("burst", _burst, "AFTER:N, two whole numbers from 1, as in 20:100"),
}


def refuse_tenant(name: str, problem: str) -> NoReturn:
    raise CbbenchError("tenants", f"tenant {name}: {problem}") from None
