"""A workload in few words; the whole SPEC stands in the configuration."""

from __future__ import annotations

import re

from workloads.length_distributions import split_outside_brackets

LONGEST = 60
MOST_NAMES = 4
TENANT = re.compile(r"\s*([\w.-]+):[a-z_]+=")
LAW = re.compile(r"\s*(prompt|output)=(.*)", re.DOTALL)


def workload_title(spec: str) -> str:
    """azure-conv · trace.jsonl · prompt lognormal(…); output 128 · azure-conv for tenants a, b"""
    parts = split_outside_brackets(spec.removesuffix(";"), ";")
    laws = [found for part in parts if (found := LAW.fullmatch(part)) is not None]
    if len(laws) == len(parts):
        return "; ".join(f"{one[1]} {_cut(one[2], LONGEST // 2)}" for one in laws)
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
