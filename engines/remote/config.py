"""Which server to load and how to reach it: RemoteConfig as configured, Target with its address resolved."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from engines.remote.addresses import Address, reachable
from engines.remote.failure_limit import MostFailures
from engines.remote.headers import Headers, hide, merged
from engines.remote.paths import Api, ServerPaths
from engines.remote.proxies import refuse_proxy
from engines.remote.templates import has_names
from engines.remote.tls import context_of
from workloads.errors import CbbenchError

PromptForm = Literal["auto", "ids", "text"]


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    url: str
    other_urls: tuple[str, ...] = ()  # of servers that take equal parts of the load
    api: Api = "completions"
    model: str | None = None  # None: the one the server serves
    api_key: str | None = field(default=None, repr=False)
    headers: Headers = field(default=(), repr=False)  # of every request; they replace cbbench's own
    session_header: str | None = None  # with the session's number, in its requests alone
    ca_file: str | None = None  # trusted instead of the system's certificate authorities
    insecure: bool = False  # verify no certificate
    cert_file: str | None = None  # of the client; with its key, unless that is in key_file
    key_file: str | None = None
    prompt_form: PromptForm = "auto"  # auto: token ids where the server takes them, else text
    prompt_seed: int = 0
    token_ids: tuple[int, int] = (1000, 8000)  # prompts draw from [low, high): in every large vocabulary, never special
    ignore_eos: bool = True  # ask for exactly the planned number of output tokens
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    stream: bool = True  # False: whole answers, so that only their end has a time
    omit: tuple[str, ...] = ()  # fields of the body that are left out, unless extra_body has them
    renamed: tuple[tuple[str, str], ...] = ()  # (field, what this server calls it)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # merged into every request
    warmup_requests: int = 4
    workers: int | Literal["auto"] = 1
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 600.0  # without a byte of the response
    max_failures: MostFailures | None = None  # the run stops at the first one above; None: it goes on
    retry_429: int = 0  # how often a request that is refused with 429 is sent again
    request_timeout_s: float | None = None  # from sending to the end of the response; None: no limit
    # reuse: opened when a request has none; new: one for every request; a number: so many are opened before the run.
    connections: Literal["reuse", "new"] | int = "reuse"
    idle_timeout_s: float = 50.0  # an unused connection is closed; common load balancers forget it after 60 s
    gone_after_s: float = 2.0  # no connection can be opened for this long: the server is gone
    scrape: bool = False  # read the server's metrics during the run
    metrics_url: str | None = None  # None: /metrics of the server itself
    kernel_stamps: bool = True  # False: time every read instead, to measure what the kernel's stamps are worth

    @cached_property
    def extra_body_varies(self) -> bool:
        return has_names(self.extra_body)

    @property
    def urls(self) -> tuple[str, ...]:
        """Request i goes to number i % len(urls)."""
        return (self.url, *self.other_urls)

    @property
    def each(self) -> tuple[RemoteConfig, ...]:
        """A configuration for every URL."""
        return tuple(replace(self, url=url, other_urls=()) for url in self.urls)

    @property
    def kept_connections(self) -> int:
        """Opened before the run, and kept however long they are idle."""
        return self.connections if isinstance(self.connections, int) else 0

    @property
    def one_request_each(self) -> bool:
        """Whether no connection carries a second request."""
        return self.connections == "new" or any(name.lower() == "connection" for name, _ in self.headers)

    @property
    def caller(self) -> dict[str, str]:
        """The headers that identify the caller: the key's, and the configured ones."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return merged(key, self.headers)

    @property
    def has_key(self) -> bool:
        return any(name.lower() == "authorization" for name in self.caller)

    @property
    def key_problem(self) -> str:
        """What to check after HTTP 401 or 403."""
        return (
            f"the API key is {'wrong' if self.has_key else 'missing'}; set OPENAI_API_KEY, or `header` if the server "
            "wants a header of another name or form"
        )

    def hide(self, text: str) -> str:
        """A text of the server's, without the secrets that it was sent."""
        return hide(text, self.caller.items())


@dataclass(frozen=True)
class Target:
    """A server, resolved once: no name lookup happens during a run."""

    host: str
    port: int
    paths: ServerPaths
    addresses: tuple[Address, ...]  # that accept connections
    left_out: dict[str, str]  # the others: why they do not, by name
    tls: ssl.SSLContext | None

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def resolve(config: RemoteConfig, field: str = "url") -> Target:
    """Raises CbbenchError for a URL that cannot be right or a host that is not known. field: the setting it is from."""
    url = config.url if "://" in config.url else f"http://{config.url}"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise CbbenchError(field, f"{config.url}: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise CbbenchError(field, f"{config.url}: want http:// or https://, got {parts.scheme}://")
    if not parts.hostname:
        raise CbbenchError(field, f"{config.url}: no host in it; want http://host:port")
    if parts.username or parts.fragment:
        raise CbbenchError(field, f"{config.url}: want http://host:port[/path][?query] without user or fragment")
    if field != "url" and parts.query:
        raise CbbenchError(field, f"{config.url}: want no query")
    if any(not "!" <= one <= "~" for one in parts.path + parts.query):
        raise CbbenchError(field, f"{config.url}: write spaces and letters beyond ASCII in the path as %XX")
    refuse_proxy(parts.scheme, parts.hostname, field)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        why = f"{config.url}: cannot find the host {parts.hostname}: {error.strerror}"
        raise CbbenchError(field, why) from None
    addresses, left_out = reachable(
        [Address(family, address) for family, _, _, _, address in found],
        config.connect_timeout_s,
        # Both ::1 and 127.0.0.1, and many servers listen on one of them only.
        one=parts.hostname == "localhost",
    )
    tls = context_of(config) if parts.scheme == "https" else None
    return Target(parts.hostname, port, ServerPaths.of(parts.path, parts.query, config.api), addresses, left_out, tls)
