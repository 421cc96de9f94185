"""Tenants: one plan whose requests belong to several users of the same server.

    a:weight=3,preset=azure-conv;b:weight=1,preset=azure-code,priority=1

    weight=W          share of the requests, beside the other weights; 1 unless given
    preset=SPEC       the tenant's own workload, else that of the run; `workload=SPEC` says the same. A SPEC with ; or ,
                      in it goes in brackets: workload=(prompt=uniform(16,512);output=fixed(64))
    priority=P        0 is the most urgent; unless given, what the workload's file says, else 0
    sessions=N        N conversations at a time. A request is the next turn of one of them: what its workload draws as a
                      prompt is what the turn adds to the turn before and its answer. A conversation that would pass
                      the context is over, and another one begins in its place
    prefix=N          its prompts begin with the same N tokens, a system prompt; shorter ones with as many as they have
    burst=AFTER:N     N more requests of it at once, with the AFTER-th request of the others; weight=0 leaves only these

Who sends a request, and how long each tenant's requests are, come from streams of their own: another tenant, or another
weight, changes how many requests a tenant has but not their lengths.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from workloads.arrivals import unit_arrivals
from workloads.conversations import take_turns
from workloads.errors import WorkloadError
from workloads.lengths import split_outside_brackets
from workloads.pairs import stream
from workloads.plan import IntColumn, RequestPlan
from workloads.spec import Misfit, check_numbers, open_workload

EXAMPLE = "a:weight=3,preset=azure-conv;b:weight=1,preset=azure-code,priority=1"
_TENANT_STREAM = 3  # who sends a request; of the run's seed
_DRAW_BITS = 32
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Burst:
    """`requests` at once, with the `after`-th of the requests that are drawn by weight."""

    after: int
    requests: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """None: the workload is that of the run, the priority what the workload says."""

    name: str
    weight: Fraction = Fraction(1)
    workload: str | None = None
    priority: int | None = None
    sessions: int = 0  # 0: none
    burst: Burst | None = None
    prefix_tokens: int = 0  # 0: none


def build_tenant_plan(
    tenants: str,
    *,
    workload: str,
    num_requests: int,
    seed: int,
    arrival: str,
    max_model_len: int | None,
    misfit: Misfit = "error",
) -> RequestPlan:
    """The plan of `num_requests` requests, bursts included; see spec.build_plan for the other arguments.

    workload  the SPEC of tenants that name none
    Raises WorkloadError, in one line.
    """
    parsed = parse_tenants(tenants)
    check_numbers(num_requests, seed, max_model_len)
    if arrival == "trace":
        raise WorkloadError(
            "--arrival trace: tenants share one arrival law, and no trace is that of all; "
            "choose constant, poisson or gamma:CV"
        )
    arrivals, who = _sequence(parsed, num_requests, seed, arrival)
    columns = {name: np.empty(num_requests, dtype=np.int64) for name in ("prompt_tokens", "output_tokens", "priority")}
    session, prefix = np.full((2, num_requests), -1, dtype=np.int64)
    prefixes: list[int] = []
    notes: dict[str, str] = {}
    drawn, sessions, all_sessions = 0.0, 0, sum(tenant.sessions for tenant in parsed)
    for index, tenant in enumerate(parsed):
        at = np.flatnonzero(who == index)
        if len(at):
            own = _own_plan(tenant, tenant.workload or workload, len(at), seed, max_model_len, misfit)
            for name, column in columns.items():
                column[at] = getattr(own, name)
            if tenant.priority is not None:
                columns["priority"][at] = tenant.priority
            if tenant.sessions:
                turns = take_turns(own, tenant.sessions, _own_seed(tenant, seed), max_model_len)
                columns["prompt_tokens"][at] = turns.prompt_tokens
                session[at] = sessions + turns.seat + turns.earlier * all_sessions
            notes |= {f"{tenant.name}: {key}": value for key, value in own.notes.items()}
            drawn += len(at) / (1 - own.outside_context)
        sessions += tenant.sessions
        if tenant.prefix_tokens:
            prefix[at] = len(prefixes)
            prefixes.append(tenant.prefix_tokens)
    others = any(tenant.workload is None for tenant in parsed)
    return RequestPlan.of(
        **columns,
        arrivals_ugap=arrivals,
        tenant=who,
        session=session,
        prefix=prefix,
        prefix_tokens=tuple(prefixes),
        tenants=tuple(tenant.name for tenant in parsed),
        spec=f"{workload} for {tenants}" if others else tenants,
        seed=seed,
        outside_context=1 - num_requests / drawn,
        notes=notes,
    )


def _sequence(tenants: tuple[Tenant, ...], count: int, seed: int, arrival: str) -> tuple[IntColumn, IntColumn]:
    """(arrivals_ugap, tenant) of every request: those drawn by weight, with the bursts put in between."""
    bursts = [(index, tenant.burst) for index, tenant in enumerate(tenants) if tenant.burst is not None]
    by_weight = count - sum(burst.requests for _, burst in bursts)
    for index, burst in bursts:
        if burst.after > by_weight:
            _refuse(
                tenants[index].name,
                f"burst={burst.after}:{burst.requests} begins with request {burst.after} of those drawn by weight, but "
                f"--num-requests {count} leaves {max(by_weight, 0)} of them beside the bursts",
            )
    who = _draw(tenants, by_weight, seed)
    arrivals = unit_arrivals(arrival, by_weight, seed)
    columns = np.array([(index, burst.after, burst.requests) for index, burst in bursts], dtype=np.int64).reshape(-1, 3)
    whose, after = np.repeat(columns[:, :2], columns[:, 2], axis=0).T
    return np.insert(arrivals, after, arrivals[after - 1]), np.insert(who, after, whose)


def _draw(tenants: tuple[Tenant, ...], count: int, seed: int) -> IntColumn:
    """A tenant for each of `count` requests, by weight: the inverse CDF, in whole numbers, of raw draws."""
    total = sum((tenant.weight for tenant in tenants), Fraction(0))
    ends, share = [], Fraction(0)
    for tenant in tenants:
        share += tenant.weight / total
        ends.append(int(share * 2**_DRAW_BITS))
    raw = stream(seed, _TENANT_STREAM).random_raw(count) >> np.uint64(64 - _DRAW_BITS)
    return np.searchsorted(np.array(ends, dtype=np.int64), raw.astype(np.int64), side="right").astype(np.int64)


def _own_plan(
    tenant: Tenant, spec: str, count: int, seed: int, max_model_len: int | None, misfit: Misfit
) -> RequestPlan:
    """The tenant's requests as if it were alone; only their lengths and priorities are used."""
    try:
        own = open_workload(spec)
        if own.script is not None:
            raise WorkloadError(
                f"{spec} has prompts, and --tenants mixes lengths; give it as --workload, with a tenant in each line"
            )
        return own.plan(
            num_requests=count,
            seed=_own_seed(tenant, seed),
            arrival="constant",
            max_model_len=max_model_len,
            misfit=misfit,
        )
    except WorkloadError as error:
        _refuse(tenant.name, str(error))


def _own_seed(tenant: Tenant, seed: int) -> int:
    # By name and not by position, so that the order of the tenants, or one more of them, changes nobody's lengths.
    return int.from_bytes(hashlib.sha256(f"{seed} {tenant.name}".encode()).digest()[:8], "little")


# Reading the text


def parse_tenants(text: str) -> tuple[Tenant, ...]:
    """The tenants that `text` describes. Raises WorkloadError."""
    if text.count("(") != text.count(")"):
        raise WorkloadError(f"--tenants: the brackets in '{text}' do not match")
    tenants = tuple(_parse_tenant(part) for part in split_outside_brackets(text, ";"))
    names = [tenant.name for tenant in tenants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        _refuse(twice, "is there twice; want one part for each tenant")
    if not any(tenant.weight for tenant in tenants):
        raise WorkloadError("--tenants: every weight is 0; at least one must be above 0")
    return tenants


def _parse_tenant(part: str) -> Tenant:
    name, _, settings = part.partition(":")
    name = name.strip()
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise WorkloadError(
            f"--tenants: cannot read '{part.strip()}'; want NAME:key=value,..., as in {EXAMPLE}, "
            "and brackets around laws, as in a:workload=(prompt=fixed(64);output=fixed(16))"
        )
    fields: dict[str, Any] = {}
    for setting in split_outside_brackets(settings, ",") if settings.strip() else []:
        key, _, value = setting.partition("=")
        key, value = key.strip(), value.strip()
        if key not in _KEYS:
            hint = "; laws go in brackets: workload=(prompt=LAW;output=LAW)" if key in ("prompt", "output") else ""
            _refuse(name, f"unknown key '{key}', want one of {', '.join(_KEYS)}{hint}")
        field, read, wanted = _KEYS[key]
        if field in fields:
            _refuse(name, f"its {field} is there twice")
        try:
            fields[field] = read(value)
        except (ValueError, OverflowError):
            _refuse(name, f"{key} must be {wanted}, got '{value}'")
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


def _burst(text: str) -> Burst:
    after, _, requests = text.partition(":")
    return Burst(_whole(after, 1), _whole(requests, 1))


_SPEC_WORDS = "a preset, a file or (prompt=LAW;output=LAW)"
_KEYS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "weight": ("weight", _weight, "a number from 0 to 1e9"),
    "preset": ("workload", _spec, _SPEC_WORDS),
    "workload": ("workload", _spec, _SPEC_WORDS),
    "priority": ("priority", lambda text: _whole(text, 0), "a whole number, 0 being the most urgent"),
    "sessions": ("sessions", lambda text: _whole(text, 1), "a whole number from 1"),
    "prefix": ("prefix_tokens", lambda text: _whole(text, 1), "a number of tokens from 1"),
    "burst": ("burst", _burst, "AFTER:N, two whole numbers from 1, as in 20:100"),
}


def _refuse(name: str, problem: str) -> NoReturn:
    raise WorkloadError(f"--tenants: tenant {name}: {problem}")
