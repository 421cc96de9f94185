"""The plan of several tenants, and the sessions that their requests are turns of.

    prompt of a turn = prompt of the turn before + its answer + what this turn adds

A turn goes out when the plan says so, whether or not the turn before has been answered; and what stands for the answer
in its prompt is text of the planned length, not what the server said. So a prefix cache can hold the prompt of an
earlier turn, not its answer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from workloads.arrivals import unit_arrivals
from workloads.columns import IntColumn
from workloads.errors import WorkloadError
from workloads.plan import RequestPlan
from workloads.sampling import stream
from workloads.spec import Misfit, check_numbers, open_workload
from workloads.tenants import Tenant, parse_tenants, refuse

_TENANT_STREAM = 3  # who sends a request; of the run's seed
_SEAT_STREAM = 4  # of the tenant's own seed
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
            refuse(
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
        refuse(tenant.name, str(error))


def _own_seed(tenant: Tenant, seed: int) -> int:
    # By name and not by position, so that the order of the tenants, or one more of them, changes nobody's lengths.
    return int.from_bytes(hashlib.sha256(f"{seed} {tenant.name}".encode()).digest()[:8], "little")


@dataclass(frozen=True)
class Turns:
    """Columns, a row per request."""

    seat: IntColumn  # which of the conversations that go on at a time
    earlier: IntColumn  # how many conversations were over before in the same seat
    prompt_tokens: IntColumn


def take_turns(drawn: RequestPlan, seats: int, seed: int, max_model_len: int | None) -> Turns:
    """Each request is the next turn in one of `seats`, drawn with equal chances; its drawn prompt is what it adds.

    A conversation whose next turn would pass max_model_len tokens, answer included, is over; the turn begins another.
    """
    seat = _draw_seats(len(drawn), seats, seed)
    earlier, prompts = np.zeros((2, len(drawn)), dtype=np.int64)
    said, over = [0] * seats, [0] * seats  # tokens so far, answers included; conversations that have ended
    for i, (at, adds, answer) in enumerate(
        zip(seat.tolist(), drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)
    ):
        if said[at] and max_model_len is not None and said[at] + adds + answer > max_model_len:
            said[at], over[at] = 0, over[at] + 1
        earlier[i], prompts[i] = over[at], said[at] + adds
        said[at] += adds + answer
    return Turns(seat, earlier, prompts)


def _draw_seats(count: int, seats: int, seed: int) -> IntColumn:
    high = stream(seed, _SEAT_STREAM).random_raw(count) >> np.uint64(32)
    return ((high * np.uint64(seats)) >> np.uint64(32)).astype(np.int64)
