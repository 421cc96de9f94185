"""Arrivals of tenants that have processes of their own: each tenant's, merged in the order of time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from workloads.arrivals import requests_to_fill, unit_arrivals
from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.sampling import whole
from workloads.tenants import Tenant, refuse_tenant


def merged_arrivals(tenants: Sequence[Tenant], count: int, seed: int, arrival: str) -> tuple[IntColumn, IntColumn]:
    """(arrivals_ugap, tenant) of `count` requests. A tenant's mean rate is its share of the weights.

    arrival: of the tenants that name none. Raises CbbenchError.
    """
    total = sum(tenant.weight for tenant in tenants)
    shares = {at: float(tenant.weight / total) for at, tenant in enumerate(tenants) if tenant.weight}
    factor = 1.0
    while True:
        columns = {at: _own(tenants[at], share, factor * count, seed, arrival) for at, share in shares.items()}
        until = min(int(column[-1]) for column in columns.values())  # up to here every tenant is complete
        times = np.concatenate([column[column <= until] for column in columns.values()])
        if len(times) >= count:
            break
        factor *= 2
    owners = np.concatenate([np.full(int((column <= until).sum()), at) for at, column in columns.items()])
    order = np.argsort(times, kind="stable")[:count]
    arrivals = times[order]
    return arrivals - arrivals[0], owners[order].astype(np.int64)


def _own(tenant: Tenant, share: float, gaps: float, seed: int, arrival: str) -> IntColumn:
    """Arrivals within about `gaps` mean gaps of the whole; the first is one gap of the tenant's after 0."""
    process = tenant.arrival or arrival
    try:
        own = unit_arrivals(process, 1 + requests_to_fill(max(gaps * share, 1.0), process), own_seed(tenant, seed))
    except CbbenchError as error:
        refuse_tenant(tenant.name, error.message)
    return whole(own[1:] / share)


def own_seed(tenant: Tenant, seed: int) -> int:
    # By name and not by position: the order and the number of the tenants change no tenant's requests.
    return int.from_bytes(hashlib.sha256(f"{seed} {tenant.name}".encode()).digest()[:8], "little")
