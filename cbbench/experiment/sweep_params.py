"""What a sweep can vary, and how its values are written: every setting of a run, unless there is a reason against it.

max-num-seqs                           --values 8,16,32
max-num-seqs,max-num-batched-tokens    --values 8,16,32 --values 512,2048
prompt-buckets                         --values '512,4096|1024'      with | between values that have commas
knob, with {knob} in --launch          --values a,b                  whatever the server takes
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from cbbench.config import FIELDS, RunConfig, UsageError
from cbbench.validation import explain_validation
from reports.sweep_schema import Value

ONCE = "is loaded once for all points; `cbbench compare --ab` measures two of them in turns"
SHOWN = "changes how a run is judged or shown, not what it does"
SEED = "is what makes every point the same work; --repeat N measures each point N times"
SERVER = "says which server is loaded; start one for each value with {PARAM} in --launch"
FIXED = (
    dict.fromkeys(("engine", "model", "weights", "device", "dtype", "law", "hardware"), ONCE)
    | dict.fromkeys(("sla", "confidence", "max_failure_rate", "output", "json", "timeline", "gpu_telemetry"), SHOWN)
    | dict.fromkeys(("scrape", "metrics_url", "ready_timeout"), SHOWN)
    | dict.fromkeys(("seed", "prompt_seed"), SEED)
    | dict.fromkeys(("url", "launch", "ca_file"), SERVER)
    | dict.fromkeys(("quota",), "is a list of limits; sweep it with one `cbbench run` for each")
    | dict.fromkeys(("header",), "goes with every request of every point; a sweep's files would tell its values")
)
WORK_PARAMS = ("workload", "tenants", "num-requests")  # whose values are different workloads
BOOLEANS = {"true": True, "false": False}
KINDS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "words"}
MOST_PARAMS = 2


def parse_params(text: str, launch: str | None) -> tuple[str, ...]:
    """One or two names. UsageError in one line for what cannot be swept."""
    params = tuple(text.split(","))
    if len(params) > MOST_PARAMS or len(set(params)) != len(params):
        raise UsageError(f"PARAM: want one name, or two different ones as in max-num-seqs,kv-blocks, got {text!r}")
    for param in params:
        if not is_servers_own(param, params, launch):
            _refuse_what_is_fixed(param)
        elif not re.fullmatch(r"\w[\w.-]*", param):
            raise UsageError(f"cannot sweep {param!r}: want a word, such as the name of the server's flag")
    return params


def _refuse_what_is_fixed(param: str) -> None:
    field = field_of(param)
    if field not in FIELDS or "_" in param:
        near = get_close_matches(param, [name.replace("_", "-") for name in FIELDS if name not in FIXED], n=1)
        hint = f"did you mean {near[0]}?" if near else "want a setting of `cbbench run`, as max-num-seqs, rate or mode"
        raise UsageError(f"cannot sweep {param!r}: {hint} (a launched server's own needs {{{param}}} in --launch)")
    if field in FIXED:
        raise UsageError(f"cannot sweep {param}: it {FIXED[field].replace('{PARAM}', '{' + param + '}')}")


def field_of(param: str) -> str:
    return param.replace("-", "_")


def is_servers_own(param: str, params: Sequence[str], launch: str | None) -> bool:
    """Whether the values go to a launched server's command line, rather than into a setting of ours."""
    return any(place in (launch or "") for place in placeholders(param, params))


def placeholders(param: str, params: Sequence[str]) -> tuple[str, ...]:
    """{max-num-seqs}; a single parameter may also be written {value}."""
    return ("{" + param + "}", "{value}") if len(params) == 1 else ("{" + param + "}",)


def parse_grid(params: Sequence[str], texts: Sequence[str], launch: str | None) -> list[tuple[Value, ...]]:
    """Every combination of the values, the first parameter's changing slowest."""
    if len(texts) != len(params):
        raise UsageError(f"--values: want it once for each of {', '.join(params)}, got it {len(texts)} times")
    grid: list[tuple[Value, ...]] = [()]
    for param, text in zip(params, texts, strict=True):
        values = parse_values(param, text, servers_own=is_servers_own(param, params, launch))
        grid = [(*setting, value) for setting in grid for value in values]
    return grid


def parse_values(param: str, text: str, *, servers_own: bool = False) -> list[Value]:
    words = [word.strip() for word in text.split("|" if "|" in text else ",")]
    if "" in words:
        raise UsageError(f"--values: want V,V,... without gaps, got {text!r}")
    values = _guessed(words) if servers_own else _typed(param, words, text)
    if len(set(values)) != len(values):
        raise UsageError(f"--values: each value once, got {text!r}")
    return values


def _guessed(words: Sequence[str]) -> list[Value]:
    """Whatever a server's knob may take: whole numbers, numbers or words."""
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(word) for word in words]
    return list(words)


def _typed(param: str, words: Sequence[str], text: str) -> list[Value]:
    kind = kind_of(param)
    try:
        values: list[Value] = [_read(kind, word) for word in words]
    except (ValueError, KeyError):
        raise UsageError(f"--values: {param} takes {KINDS[kind]}, got {text!r}") from None
    for value in values:
        check(param, value, "--values")
    return values


def _read(kind: type, word: str) -> Value:
    if kind is bool:
        return BOOLEANS[word]
    return as_number(float(word)) if kind is float else int(word) if kind is int else word


def as_number(value: float) -> int | float:
    """2 for 2.0: a setting has one name, however it was written."""
    return int(value) if value.is_integer() else value


def check(param: str, value: Value, flag: str) -> None:
    """The value by itself; how it goes with the other settings shows later. UsageError, which names the flag."""
    given = {field_of(param): value}
    try:
        msgspec.convert(given, RunConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{flag}: {param} {explain_validation(error, given)[1]}") from None


def kind_of(param: str) -> type[int] | type[float] | type[bool] | type[str]:
    """What RunConfig says this setting is; words for a choice."""
    hint = get_type_hints(RunConfig)[field_of(param)]
    parts = [one for one in get_args(hint) if one is not NoneType] if NoneType in get_args(hint) else [hint]
    kind: Any = parts[0]
    return str if get_origin(kind) is Literal else kind


def fill_of(params: Sequence[str], setting: Sequence[Value]) -> Mapping[str, str]:
    """What to put in place of each placeholder of --launch."""
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in setting]
    return {place: word for param, word in zip(params, words, strict=True) for place in placeholders(param, params)}
