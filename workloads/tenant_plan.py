"""The plan of several tenants, and the sessions that their requests are turns of.

    prompt of a turn = prompt of the turn before + its answer + what this turn adds

A turn is sent at its planned time, whether or not the turn before has been answered, and the answer in its prompt is
generated text of the planned length, not the server's output. So a prefix cache can hold the prompt of an earlier turn,
but not its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from workloads.arrivals import unit_arrivals
from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.plan import Note, RequestPlan
from workloads.sampling import SESSIONS, TENANTS, bit_stream
from workloads.spec import Misfit, check_numbers, open_workload
from workloads.tenant_arrivals import merged_arrivals, own_seed
from workloads.tenants import Tenant, parse_tenants, refuse_tenant

_DRAW_BITS = 32


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
    Raises CbbenchError.
    """
    parsed = parse_tenants(tenants)
    check_numbers(num_requests, seed, max_model_len)
    if arrival == "trace":
        raise CbbenchError(
            "arrival",
            "trace: `tenants` share one arrival process, and none of their traces is that of all; "
            "choose constant, poisson, gamma:CV, mmpp or onoff",
        )
    arrivals, tenant_of = _sequence(parsed, num_requests, seed, arrival)
    columns = {name: np.empty(num_requests, dtype=np.int64) for name in ("prompt_tokens", "output_tokens", "priority")}
    session, prefix = np.full((2, num_requests), -1, dtype=np.int64)
    prefixes: list[int] = []
    notes: list[Note] = []
    drawn, sessions, all_sessions = 0.0, 0, sum(tenant.sessions for tenant in parsed)
    for index, tenant in enumerate(parsed):
        at = np.flatnonzero(tenant_of == index)
        if len(at):
            own = _own_plan(tenant, tenant.workload or workload, len(at), seed, max_model_len, misfit)
            for name, column in columns.items():
                column[at] = getattr(own, name)
            if tenant.priority is not None:
                columns["priority"][at] = tenant.priority
            if tenant.sessions:
                turns = take_turns(own, tenant.sessions, own_seed(tenant, seed), max_model_len)
                columns["prompt_tokens"][at] = turns.prompt_tokens
                session[at] = sessions + turns.lane + turns.ended * all_sessions
            # The arrival times of a tenant's own file are never used.
            notes += [replace(note, tenant=tenant.name) for note in own.notes if note.kind != "arrivals"]
            drawn += len(at) / (1 - own.outside_context)
        sessions += tenant.sessions
        if tenant.prefix_tokens:
            prefix[at] = len(prefixes)
            prefixes.append(tenant.prefix_tokens)
    uses_workload = any(tenant.workload is None for tenant in parsed)
    return RequestPlan.of(
        **columns,
        arrivals_ugap=arrivals,
        tenant=tenant_of,
        session=session,
        prefix=prefix,
        prefix_tokens=tuple(prefixes),
        tenants=tuple(tenant.name for tenant in parsed),
        spec=f"{workload} for {tenants}" if uses_workload else tenants,
        seed=seed,
        outside_context=1 - num_requests / drawn,
        notes=tuple(notes),
    )


def _sequence(tenants: tuple[Tenant, ...], count: int, seed: int, arrival: str) -> tuple[IntColumn, IntColumn]:
    """(arrivals_ugap, tenant) of every request: those drawn by weight, with the bursts inserted."""
    bursts = [(index, tenant.burst) for index, tenant in enumerate(tenants) if tenant.burst is not None]
    by_weight = count - sum(burst.requests for _, burst in bursts)
    for index, burst in bursts:
        if burst.after > by_weight:
            refuse_tenant(
                tenants[index].name,
                f"burst={burst.after}:{burst.requests} starts with request {burst.after} of those drawn by weight, but "
                f"`num_requests` {count} leaves {max(by_weight, 0)} of them beside the bursts",
            )
    if any(tenant.arrival is not None for tenant in tenants):
        arrivals, tenant_of = merged_arrivals(tenants, by_weight, seed, arrival)
    else:
        tenant_of = _draw_tenants(tenants, by_weight, seed)
        arrivals = unit_arrivals(arrival, by_weight, seed)
    columns = np.array([(index, burst.after, burst.requests) for index, burst in bursts], dtype=np.int64).reshape(-1, 3)
    burst_tenant, after = np.repeat(columns[:, :2], columns[:, 2], axis=0).T
    return np.insert(arrivals, after, arrivals[after - 1]), np.insert(tenant_of, after, burst_tenant)


def _draw_tenants(tenants: tuple[Tenant, ...], count: int, seed: int) -> IntColumn:
    """A tenant for each of `count` requests, by weight: the inverse CDF, in whole numbers, of raw draws."""
    total = sum((tenant.weight for tenant in tenants), Fraction(0))
    ends, share = [], Fraction(0)
    for tenant in tenants:
        share += tenant.weight / total
        ends.append(int(share * 2**_DRAW_BITS))
    raw = bit_stream(seed, TENANTS).random_raw(count) >> np.uint64(64 - _DRAW_BITS)
    return np.searchsorted(np.array(ends, dtype=np.int64), raw.astype(np.int64), side="right").astype(np.int64)


def _own_plan(
    tenant: Tenant, spec: str, count: int, seed: int, max_model_len: int | None, misfit: Misfit
) -> RequestPlan:
    """The tenant's requests as if it were alone; only their lengths and priorities are used."""
    try:
        own = open_workload(spec)
        if own.prefixes is not None:
            refuse_tenant(tenant.name, f"{spec}: a tenant has a prefix of its own; want prefix=N as its key")
        if own.prompts is not None:
            refuse_tenant(
                tenant.name,
                f"{spec} has prompts, and tenants have lengths only; give it as `workload`, with a tenant in each line",
            )
        return own.plan(
            num_requests=count,
            seed=own_seed(tenant, seed),
            arrival="constant",
            max_model_len=max_model_len,
            misfit=misfit,
        )
    except CbbenchError as error:
        if error.field == "tenants":
            raise
        refuse_tenant(tenant.name, error.message)


@dataclass(frozen=True)
class Turns:
    """Columns, one value per request.

    lane   which of the concurrent sessions it is a turn of
    ended  sessions that ended in this lane before
    """

    lane: IntColumn
    ended: IntColumn
    prompt_tokens: IntColumn


def take_turns(drawn: RequestPlan, lanes: int, seed: int, max_model_len: int | None) -> Turns:
    """Each request is the next turn in one of `lanes` sessions, with equal chances; its drawn prompt is what it adds.

    A session whose next turn would exceed max_model_len tokens, answer included, ends; the turn starts a new one.
    """
    lane_of = _draw_lanes(len(drawn), lanes, seed)
    ended_before, prompts = np.zeros((2, len(drawn)), dtype=np.int64)
    tokens, ended = [0] * lanes, [0] * lanes  # of the session so far, answers included; sessions that have ended
    for i, (lane, added, answer) in enumerate(
        zip(lane_of.tolist(), drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)
    ):
        if tokens[lane] and max_model_len is not None and tokens[lane] + added + answer > max_model_len:
            tokens[lane], ended[lane] = 0, ended[lane] + 1
        ended_before[i], prompts[i] = ended[lane], tokens[lane] + added
        tokens[lane] += added + answer
    return Turns(lane_of, ended_before, prompts)


def _draw_lanes(count: int, lanes: int, seed: int) -> IntColumn:
    high = bit_stream(seed, SESSIONS).random_raw(count) >> np.uint64(32)
    return ((high * np.uint64(lanes)) >> np.uint64(32)).astype(np.int64)
