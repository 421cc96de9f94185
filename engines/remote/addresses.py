"""The addresses of one server: which of them answer, and which one the next connection and the next request go to."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

MOST_TRIED = 16  # at a time


class Address(NamedTuple):
    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]  # as the socket module has it

    @property
    def name(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(
    candidates: Sequence[Address], timeout_s: float, *, one: bool
) -> tuple[tuple[Address, ...], dict[str, str]]:
    """(those that accept a connection, why each of the others does not, by name). All of them, if none does: then the
    first request says why. A single candidate is not tried. one: want the first alone, and name no other."""
    candidates = tuple(dict.fromkeys(candidates))
    if len(candidates) == 1:
        return candidates, {}
    with ThreadPoolExecutor(min(len(candidates), MOST_TRIED)) as threads:
        problems = list(threads.map(lambda address: _problem(address, timeout_s), candidates))
    found = tuple(address for address, problem in zip(candidates, problems, strict=True) if problem is None)
    if one:
        return (found or candidates)[:1], {}
    named = zip(candidates, problems, strict=True)
    return found or candidates, {address.name: why for address, why in named if why is not None and found}


def _problem(address: Address, timeout_s: float) -> str | None:
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(address.sockaddr)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


class AddressRotation:
    """Spreads connections and requests over the addresses that answer."""

    def __init__(self, addresses: Sequence[Address], left_out: dict[str, str]) -> None:
        self._live = list(addresses)
        self.requests = dict.fromkeys(addresses, 0)
        self.left_out = dict(left_out)  # why, by name

    def __len__(self) -> int:
        return len(self._live)

    def next(self, connected: Iterable[Address]) -> Address:
        """For a new connection: the one with the fewest of them, then the one with the fewest requests."""
        if len(self._live) == 1:
            return self._live[0]
        connections = Counter(connected)
        return min(self._live, key=lambda address: (connections[address], self.requests[address]))

    def lacks(self, connected: Iterable[Address]) -> bool:
        """Whether an address has no connection."""
        return len(self._live) > 1 and not set(self._live) <= set(connected)

    def leave_out(self, address: Address, why: str) -> bool:
        """It accepts no connection any more. False if it is the last one: then the server has gone."""
        if address in self._live and len(self._live) > 1:
            self._live.remove(address)
            self.left_out[address.name] = why
        return address not in self._live
