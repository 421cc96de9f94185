"""Proxies of the environment: a load does not go through one, as its connections and delays would be the proxy's."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from urllib.request import getproxies_environment

from workloads.errors import CbbenchError


def refuse_proxy(scheme: str, host: str, field: str) -> None:
    """Raises CbbenchError where HTTP_PROXY, HTTPS_PROXY or ALL_PROXY is meant for this host and NO_PROXY does not
    except it. This machine itself is never reached through a proxy. field: the setting that the host is from."""
    proxies = getproxies_environment()
    name = scheme if scheme in proxies else "all"
    if name not in proxies or _is_this_machine(host) or _excepted(host):
        return
    raise CbbenchError(
        field,
        f"{name.upper()}_PROXY is set, but a load through a proxy would measure the proxy: add {host} to NO_PROXY to "
        "load it directly",
    )


def _is_this_machine(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _excepted(host: str) -> bool:
    """By a name, the end of one, * or a network like 10.0.0.0/8."""
    for entry in os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).lower().split(","):
        name = entry.strip().lstrip(".")
        if name and (name in ("*", host.lower()) or host.lower().endswith(f".{name}")):
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
    return False
