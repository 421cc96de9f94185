"""A RunConfig out of what was given: each setting by itself, then all of them together. UsageError names the flag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from cbbench.config import (
    ENGINE_SETTINGS,
    FIELDS,
    MOST_REQUESTS,
    PAIR_SETTINGS,
    SERVER_SETTINGS,
    RunConfig,
    UsageError,
    flag,
)
from engines.remote.headers import parse_headers
from engines.scheduling.config import DisaggregatedConfig
from reports.sla import parse_all
from workloads.arrivals import requests_to_fill
from workloads.rates import read_rate, requests_expected
from workloads.tenants import parse_tenants

LAUNCHED_URL = "http://127.0.0.1:{port}"  # until the port is known
KIND_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list of strings",
}


def build_config(given: Mapping[str, Any]) -> RunConfig:
    """Check what was given, alone and together."""
    if given.get("launch") is not None:
        if given.get("url") is not None:
            raise UsageError("--launch starts the server that is loaded, so --url cannot name another")
        given = {**given, "url": LAUNCHED_URL}
    try:
        config = msgspec.convert(_with_plain_rate(given), RunConfig)
    except msgspec.ValidationError as error:
        field, problem = explain_validation(error, given)
        raise UsageError(f"{flag(field)}: {problem}") from None
    _refuse_settings_of_others(config, given)
    _refuse_conflicts(config)
    if config.rate is None or config.duration is None or "num_requests" in given:
        return config
    return msgspec.structs.replace(config, num_requests=_requests_in(config.duration, config))


def _requests_in(duration_s: float, config: RunConfig) -> int:
    """As many as the duration asks of the rate, so that it is the duration that ends the run."""
    assert config.rate is not None
    expected = requests_expected(read_rate(config.rate), duration_s)
    tenants = parse_tenants(config.tenants) if config.tenants is not None else ()
    count = requests_to_fill(expected, config.arrival or "poisson")
    count += sum(one.burst.requests for one in tenants if one.burst is not None)  # which come beside the others
    if count > MOST_REQUESTS:
        raise UsageError(
            f"--duration {duration_s:g} at --rate {config.rate} is about {expected:,.0f} requests, and a plan has at "
            f"most {MOST_REQUESTS:,}; ask for less, or give --num-requests"
        )
    return count


def _with_plain_rate(given: Mapping[str, Any]) -> dict[str, Any]:
    """A rate that does not change as a number, and stages in one spelling, however they were written: a setting has one
    name."""
    rate = given.get("rate")
    if not isinstance(rate, str):
        return dict(given)
    try:
        plain = read_rate(rate)
    except ValueError as error:
        raise UsageError(f"--rate: {error}") from None
    return {**given, "rate": plain if isinstance(plain, float) else str(plain)}


def explain_validation(error: msgspec.ValidationError, given: Mapping[str, Any]) -> tuple[str, str]:
    """(field, what was wrong and what would be right) of a msgspec error on a mapping of fields."""
    text = str(error)
    if unknown := re.search(r"unknown field `(.*)`", text):
        field = unknown[1]
        near = get_close_matches(field, FIELDS, n=1)
        hint = f"did you mean `{near[0].replace('_', '-')}`?" if near else "see `cbbench run --help`"
        return field, f"unknown setting; {hint}"
    problem, _, path = text.partition(" - at `$.")
    field = re.split(r"[`.\[]", path)[0]
    value = given.get(field)
    if problem.startswith("Invalid enum value"):
        return field, f"{value!r} is not one of {', '.join(choices(field))}"
    if field == "header":  # its value may be secret
        return field, "must be a list of strings, as in 'Name: value'"
    expected = re.sub(r"Expected |`| \| null| \| str", "", problem.partition(", got ")[0])
    kind, _, bound = expected.partition(" ")
    return field, f"must be {KIND_WORDS.get(kind, kind)} {bound}".rstrip() + f", got {value!r}"


def choices(field: str) -> tuple[str, ...]:
    """The words a setting takes, empty if it takes other things."""
    hint = get_type_hints(RunConfig)[field]
    for option in (hint, *get_args(hint)):
        if get_origin(option) is Literal:
            return get_args(option)
    return ()


def _refuse_settings_of_others(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Settings that belong to another kind of engine than the one asked for."""
    if config.url is not None and given.get("engine", "openai") != "openai":
        raise UsageError(f"--url loads a server, which is --engine openai, got --engine {config.engine}")
    if config.url is None and config.engine == "openai":
        raise UsageError("--engine openai needs --url, as in --url http://127.0.0.1:8000")
    others = SERVER_SETTINGS if config.url is None else (*ENGINE_SETTINGS, "law", "hardware")
    where = (
        "needs --url: it is a setting of a load over HTTP"
        if config.url is None
        else ("is a setting of cbbench's own engine: the server at --url has its own")
    )
    for field in others:
        if field in given:
            raise UsageError(f"{flag(field)} {where}")
    if "ready_timeout" in given and config.launch is None:
        raise UsageError("--ready-timeout needs --launch")
    if config.engine == "simulated" and config.gpu_telemetry:
        raise UsageError("--gpu-telemetry: --engine simulated computes on no GPU")
    if config.engine != "simulated" and (config.law or config.hardware):
        raise UsageError(f"--{'law' if config.law else 'hardware'} needs --engine simulated")


def _refuse_conflicts_of_a_pair(config: RunConfig) -> None:
    if not config.disaggregate:
        for field in PAIR_SETTINGS:
            if getattr(config, field) is not None:
                raise UsageError(f"{flag(field)} needs --disaggregate")
        return
    if config.kv_link_gb_per_s is not None and config.engine != "simulated":
        raise UsageError("--kv-link-gb-per-s needs --engine simulated: a real copy takes as long as it takes")


def _refuse_conflicts(config: RunConfig) -> None:
    _refuse_conflicts_of_a_pair(config)
    if config.mode == "static" and (config.chunked_prefill is False or config.prefill is not None):
        raise UsageError("--[no-]chunked-prefill and --prefill belong to --mode continuous")
    if config.mode == "static" and config.max_prompt_chunk is not None:
        raise UsageError("--max-prompt-chunk belongs to --mode continuous")
    if config.mode != "static" and config.static is not None:
        raise UsageError(f"--static {config.static} needs --mode static")
    if config.mode != "static" and config.static_patience is not None:
        raise UsageError("--static-patience needs --mode static")
    if config.swap_blocks is not None and config.on_kv_pressure != "swap":
        raise UsageError("--swap-blocks needs --on-kv-pressure swap")
    if config.metrics_url is not None and not config.scrape:
        raise UsageError("--metrics-url and --no-scrape: read the metrics or do not")
    if config.tenants is not None and config.arrival == "trace":
        raise UsageError("--arrival trace and --tenants: a mix of tenants has no trace's arrivals; give --rate")
    if config.arrival not in (None, "trace") and config.rate is None:
        raise UsageError(f"--arrival {config.arrival} needs --rate: without it, nothing is scheduled")
    if config.temperature == 0 and (config.top_k or config.top_p < 1):
        raise UsageError("--top-k and --top-p need --temperature above 0: temperature 0 is greedy")
    # The scheduler checks its own settings; any pool, context and budget will do to hear its opinion early.
    scheduler = config.scheduler(
        kv_blocks=config.kv_blocks or 1,
        max_model_len=config.max_model_len or 1,
        max_num_batched_tokens=config.max_num_batched_tokens or config.max_num_seqs,
    )
    if config.disaggregate:
        DisaggregatedConfig(scheduler, scheduler)
    try:
        parse_headers(config.header)
    except ValueError as error:
        raise UsageError(f"--header: {error}") from None
    parse_all(config.sla)
