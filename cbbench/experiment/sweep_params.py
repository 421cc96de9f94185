"""What a sweep can vary, and how its values are written: every setting of a run, unless there is a reason against it.

parameters                             values
max-num-seqs                           8,16,32
max-num-seqs,max-num-batched-tokens    8,16,32 and 512,2048
prompt-buckets                         512,4096|1024     with | between values that have commas
word, with {word} in `launch`          a,b               whatever the server takes
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches

from cbbench.settings.build import value_of
from cbbench.settings.run import RunSettings
from reports.sweep_schema import Value
from workloads.errors import CbbenchError

BOOLEANS = {"true": True, "false": False}
KINDS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "words"}
MOST_PARAMS = 2


def parse_params(text: str, launch: str | None, model: type[RunSettings] = RunSettings) -> tuple[str, ...]:
    """One or two names. CbbenchError in one line for what cannot be swept."""
    others = {name.replace("_", "-"): one.key for name, one in model.other_names().items()}
    params = tuple(others.get(param, param) for param in text.split(","))
    if len(params) > MOST_PARAMS or len(set(params)) != len(params):
        raise CbbenchError(
            None, f"PARAM: want one name, or two different ones as in max-num-seqs,kv-blocks, got {text!r}"
        )
    for param in params:
        if not is_servers_own(param, params, launch):
            _refuse_what_is_fixed(param, model)
        elif not re.fullmatch(r"\w[\w.-]*", param):
            raise CbbenchError(None, f"cannot sweep {param!r}: want a word, such as the name of the server's flag")
    return params


def _refuse_what_is_fixed(param: str, model: type[RunSettings]) -> None:
    by_key = {one.key: one for one in model.all().values()}
    if param not in by_key:
        near = get_close_matches(param, [key for key, one in by_key.items() if one.facts.unswept is None], n=1)
        hint = f"did you mean {near[0]}?" if near else "want a setting of `cbbench run`, as max-num-seqs, rate or mode"
        raise CbbenchError(
            None, f"cannot sweep {param!r}: {hint} (a launched server's own needs {{{param}}} in `launch`)"
        )
    if (reason := by_key[param].facts.unswept) is not None:
        raise CbbenchError(None, f"cannot sweep {param}: it {reason.replace('{PARAM}', '{' + param + '}')}")


def work_params() -> set[str]:
    """The parameters whose values are different workloads, so that no point of such a sweep is better than another."""
    return {one.key for one in RunSettings.all().values() if one.facts.other_work}


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
        raise CbbenchError("values", f"want it once for each of {', '.join(params)}, got it {len(texts)} times")
    grid: list[tuple[Value, ...]] = [()]
    for param, text in zip(params, texts, strict=True):
        values = parse_values(param, text, servers_own=is_servers_own(param, params, launch))
        grid = [(*setting, value) for setting in grid for value in values]
    return grid


def parse_values(
    param: str, text: str, *, servers_own: bool = False, model: type[RunSettings] = RunSettings
) -> list[Value]:
    words = [word.strip() for word in text.split("|" if "|" in text else ",")]
    if "" in words:
        raise CbbenchError("values", f"want V,V,... without gaps, got {text!r}")
    values = _guessed(words) if servers_own else _typed(param, words, text, model)
    if len(set(values)) != len(values):
        raise CbbenchError("values", f"each value once, got {text!r}")
    return values


def _guessed(words: Sequence[str]) -> list[Value]:
    """Whatever the setting of a server may take: whole numbers, numbers or words."""
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(word) for word in words]
    return list(words)


def _typed(param: str, words: Sequence[str], text: str, model: type[RunSettings]) -> list[Value]:
    kind = model.all()[field_of(param)].value_type
    try:
        values: list[Value] = [_read(kind, word) for word in words]
    except (ValueError, KeyError):
        raise CbbenchError("values", f"{param} takes {KINDS[kind]}, got {text!r}") from None
    for value in values:
        check(param, value, "values", model)
    return values


def _read(kind: type, word: str) -> Value:
    if kind is bool:
        return BOOLEANS[word]
    return as_number(float(word)) if kind is float else int(word) if kind is int else word


def as_number(value: float) -> int | float:
    """2 for 2.0: a setting has one name, however it was written."""
    return int(value) if value.is_integer() else value


def check(param: str, value: Value, field: str, model: type[RunSettings] = RunSettings) -> None:
    """The value by itself; how it goes with the other settings shows later. CbbenchError, which names `field`."""
    try:
        value_of(model.all()[field_of(param)], value)
    except CbbenchError as error:
        raise CbbenchError(field, f"{param} {error.message}") from None


def fill_of(params: Sequence[str], setting: Sequence[Value]) -> Mapping[str, str]:
    """What to put in place of each placeholder in the command of `launch`."""
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in setting]
    return {place: word for param, word in zip(params, words, strict=True) for place in placeholders(param, params)}
