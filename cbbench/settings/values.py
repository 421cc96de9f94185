"""Settings that are more than a word or a number: parsed once, into values, when settings are built.

A parser takes what was given and raises ValueError in one line, which says what would be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cbbench.settings.facts import FromText
from engines.remote import headers
from engines.remote.dialect import OMITTABLE
from engines.scheduling.resource_gate import Quota

AtLeastOne = Annotated[int, Meta(ge=1, le=100_000_000)]
OLD_SLOT_LIMIT = "rows"  # a tenant's max-num-seqs, until the next release


class PromptBuckets(FromText, frozen=True):
    """lengths: ascending, in tokens."""

    lengths: tuple[int, ...]


class ExtraBody(FromText, frozen=True):
    """content: goes into every request's body."""

    content: dict[str, Any]


class Header(FromText, frozen=True):
    """A header of every request. A key that was renewed makes no other work; another route does."""

    name: str
    value: str

    @property
    def identity(self) -> list[str] | None:
        return None if headers.is_credential(self.name) else [self.name, self.value]


class TenantQuota(FromText, frozen=True):
    """limits: of one tenant."""

    tenant: str
    limits: Quota

    @property
    def identity(self) -> str:
        """As sweeps have it that were made when max-num-seqs was called rows."""
        tenant, colon, limits = self.text.partition(":")
        return tenant + colon + limits.replace("max-num-seqs", OLD_SLOT_LIMIT).replace("max_num_seqs", OLD_SLOT_LIMIT)


class TenantWeight(FromText, frozen=True):
    """A tenant of weight 2 gets twice the service of one of weight 1, while both have work."""

    tenant: str
    weight: float


class FailuresAllowed(FromText, frozen=True):
    """Failed requests that a run may have: a number, or a share of those that have ended."""

    count: int | None
    share: float | None


class _Limits(msgspec.Struct, forbid_unknown_fields=True):
    max_num_seqs: AtLeastOne | None = None
    kv_blocks: AtLeastOne | None = None
    tokens_per_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None


def parse_buckets(text: str) -> PromptBuckets:
    """Ascending prompt lengths out of "512,4096"; none out of an empty text."""
    try:
        return PromptBuckets(text, tuple(int(word) for word in text.split(",")) if text else ())
    except ValueError:
        raise ValueError(f"want ascending prompt lengths like 512,4096, got {text!r}") from None


def parse_quotas(texts: Sequence[str]) -> tuple[TenantQuota, ...]:
    """Of "a:max-num-seqs=4,kv-blocks=100,tokens-per-s=500", one text a tenant."""
    quotas: dict[str, TenantQuota] = {}
    for text in texts:
        tenant, _, limits = text.partition(":")
        pairs = [part.partition("=")[::2] for part in limits.replace("-", "_").split(",")]
        pairs = [("max_num_seqs" if name == OLD_SLOT_LIMIT else name, limit) for name, limit in pairs]
        try:
            if not tenant or tenant in quotas or len(dict(pairs)) != len(pairs):
                raise ValueError(text)
            given = msgspec.convert(dict(pairs), _Limits, strict=False)
        except (ValueError, msgspec.ValidationError):
            raise ValueError(
                "want TENANT:LIMIT=N,... once a tenant, each limit (max-num-seqs, kv-blocks, tokens-per-s) once and "
                f"above 0, got {text!r}"
            ) from None
        quotas[tenant] = TenantQuota(text, tenant, Quota(given.max_num_seqs, given.kv_blocks, given.tokens_per_s))
    return tuple(quotas.values())


def parse_weights(texts: Sequence[str]) -> tuple[TenantWeight, ...]:
    """Of "a:2", one text a tenant."""
    weights: dict[str, TenantWeight] = {}
    for text in texts:
        tenant, _, weight = text.rpartition(":")
        try:
            if not tenant or tenant in weights or not 1e-6 <= float(weight) <= 1e6:
                raise ValueError(text)
        except ValueError:
            raise ValueError(f"want TENANT:W once a tenant, W from 1e-6 to 1e6, got {text!r}") from None
        weights[tenant] = TenantWeight(text, tenant, float(weight))
    return tuple(weights.values())


def parse_headers(texts: Sequence[str]) -> tuple[Header, ...]:
    """The error never shows a value."""
    parsed = headers.parse_headers(texts)
    return tuple(Header(text, name, value) for text, (name, value) in zip(texts, parsed, strict=True))


def parse_omit(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in OMITTABLE:
            raise ValueError(f"want one of {', '.join(OMITTABLE)}, got {name!r}")
    return tuple(dict.fromkeys(names))


def parse_workers(given: str | int) -> int | Literal["auto"]:
    if given == "auto":
        return "auto"
    text = str(given)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"want a whole number from 1 on, or auto, got {given!r}")
    return int(text)


def parse_host_floor_ms(given: str | float) -> float | Literal["eager"]:
    if given == "eager":
        return "eager"
    try:
        floor_ms = float(given)
    except ValueError:
        floor_ms = -1.0
    if not 0 <= floor_ms <= 1e6:
        raise ValueError(f"want milliseconds from 0 to a million, or eager, got {given!r}")
    return floor_ms


def parse_urls(urls: Sequence[str]) -> str | tuple[str, ...]:
    """One as it is, as it stands in the identities of runs that know one only."""
    if len(set(urls)) < len(urls):
        raise ValueError(f"want each server once, got {' '.join(urls)}")
    return urls[0] if len(urls) == 1 else tuple(urls)


def parse_header_name(given: str) -> str:
    """Raises ValueError."""
    from engines.remote.headers import is_name, is_reserved

    if not is_name(given):
        raise ValueError(f"{given[:40]!r} is not a header name; want letters, digits and -, as X-Session-Id")
    if is_reserved(given):
        raise ValueError(f"{given} is set by cbbench, as the measurement depends on it")
    return given


def parse_max_failures(given: str | int) -> FailuresAllowed:
    """A number of requests, or a share like 5%."""
    text = str(given)
    try:
        if text.endswith("%"):
            percent = float(text[:-1])
            if not 0 <= percent < 100:
                raise ValueError(text)
            return FailuresAllowed(text, None, percent / 100)
        if not text.isdigit():
            raise ValueError(text)
        return FailuresAllowed(text, int(text), None)
    except ValueError:
        raise ValueError(f"want a whole number, or a share below 100% like 5%, got {given!r}") from None


def parse_connections(given: str | int) -> int | Literal["reuse", "new"]:
    if given == "reuse":
        return "reuse"
    if given == "new":
        return "new"
    text = str(given)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"want reuse, new or a whole number from 1 on, got {given!r}")
    return int(text)


def parse_extra_body(text: str) -> ExtraBody:
    """A JSON object; an empty one out of an empty text."""
    try:
        body = msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.DecodeError as error:
        raise ValueError(f"want a JSON object like '{{\"seed\": 1}}': {error}") from None
    for name in ("n", "best_of"):
        if body.get(name, 1) != 1:
            raise ValueError(f"{name} is {body[name]!r}; want 1, as several answers to a request have no one TTFT")
    if body.get("stream", True) is not True:
        raise ValueError("stream must stay true: TTFT and TPOT are measured on the events of the stream")
    return ExtraBody(text, body)
