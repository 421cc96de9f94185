"""RunSettings out of what was given: each setting by itself, then all together. CbbenchError names the field."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import msgspec

from cbbench.settings.facts import SET, SettingField
from cbbench.settings.like import imitated
from cbbench.settings.run import RunSettings
from cbbench.settings.scheduler_config import scheduler_config
from cbbench.settings.workload import MOST_REQUESTS
from engines.scheduling.config import DisaggregatedConfig
from workloads.arrivals import requests_to_fill
from workloads.errors import CbbenchError
from workloads.rates import requests_expected
from workloads.tenants import parse_tenants

LAUNCHED_URL = "http://127.0.0.1:{port}"  # until the port is known
TYPE_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def build_settings(given: Mapping[str, Any], model: type[RunSettings] = RunSettings) -> RunSettings:
    """Check what was given by flat name, alone and together. None: not given."""
    given = {name: value for name, value in given.items() if value is not None}
    if "launch" in given:
        if "url" in given:
            raise CbbenchError("launch", "starts the server that is loaded, so `url` cannot name another")
        given = {**given, "url": LAUNCHED_URL}
    values = checked(given, model)
    settings = model.of(values)
    _refuse_settings_of_others(settings, values)
    if settings.scheduler.like is not None:
        settings = model.of(imitated(settings.scheduler.like, values))
    for name, value in values.items():
        _refuse_alone(settings, settings.all()[name], value)
    _refuse_conflicts(settings)
    if settings.load.rate is None or settings.load.duration is None or "num_requests" in values:
        return settings
    return settings.replaced(num_requests=_requests_in(settings.load.duration, settings))


def checked(given: Mapping[str, Any], model: type[RunSettings] = RunSettings) -> dict[str, Any]:
    """Values by flat name, each checked by itself and parsed. Old names become those of today."""
    known, others = model.all(), model.other_names()
    values = {}
    for key, value in given.items():
        name = others[key].name if key in others else key
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "the help of `cbbench run` lists them"
            raise CbbenchError(name, f"unknown setting; {hint}")
        values[name] = value_of(known[name], value)
    return values


def value_of(setting: SettingField, given: Any) -> Any:
    """The value of one setting. CbbenchError with what was wrong and what would be right."""
    if isinstance(given, str) and setting.is_list:
        given = [given]  # one alone needs no list
    if isinstance(given, tuple) and setting.is_list:
        given = list(given)
    try:
        plain = msgspec.convert(given, setting.kind)
    except msgspec.ValidationError:
        raise CbbenchError(setting.name, problem_with(setting, given)) from None
    value = _parsed(setting, plain)
    if isinstance(value, int | float) and (bound := broken_bound(setting.meta, value)) is not None:
        raise CbbenchError(setting.name, f"must be {TYPE_WORDS[setting.value_type]} {bound}, got {given!r}")
    return value


def _parsed(setting: SettingField, given: Any) -> Any:
    if setting.facts.parse is None:
        return given
    module, _, function = setting.facts.parse.partition(":")
    try:
        return getattr(import_module(module), function)(given)
    except ValueError as error:
        raise CbbenchError(setting.name, str(error)) from None


def problem_with(setting: SettingField, given: Any) -> str:
    """What a value should have been, by the setting's choices or type."""
    if setting.choices:
        return f"{given!r} is not one of {', '.join(setting.choices)}"
    if setting.facts.secret:
        return "must be a list of strings, as in 'Name: value'"
    if setting.is_list:
        return f"must be a list of strings, got {given!r}"
    return f"must be {TYPE_WORDS[setting.value_type]}, got {given!r}"


def broken_bound(meta: msgspec.Meta, number: float) -> str | None:
    """The bound that the number does not keep, as ">= 1"."""
    kept = {
        f">= {meta.ge}": meta.ge is None or number >= meta.ge,
        f"> {meta.gt}": meta.gt is None or number > meta.gt,
        f"<= {meta.le}": meta.le is None or number <= meta.le,
        f"< {meta.lt}": meta.lt is None or number < meta.lt,
    }
    return next((bound for bound, holds in kept.items() if not holds), None)


def _requests_in(duration_s: float, settings: RunSettings) -> int:
    """As many as the duration asks of the rate, so that it is the duration that ends the run."""
    rate = settings.load.rate
    assert rate is not None
    expected = requests_expected(rate, duration_s)
    tenants = parse_tenants(settings.workload.tenants) if settings.workload.tenants is not None else ()
    count = requests_to_fill(expected, settings.load.arrival or "poisson")
    count += sum(one.burst.requests for one in tenants if one.burst is not None)  # which come beside the others
    if count > MOST_REQUESTS:
        raise CbbenchError(
            "duration",
            f"{duration_s:g} s at `rate` {rate} is about {expected:,.0f} requests, and a plan has at most "
            f"{MOST_REQUESTS:,}; ask for less, or give `num_requests`",
        )
    return count


def _refuse_settings_of_others(settings: RunSettings, given: Mapping[str, Any]) -> None:
    """Settings that belong to another kind of engine than the one asked for."""
    url, engine = settings.server.url, settings.engine.kind
    if url is not None and given.get("engine", "openai") != "openai":
        raise CbbenchError("url", f"loads a server, which is `engine` openai, got `engine` {engine}")
    if url is None and engine == "openai":
        raise CbbenchError("engine", "openai needs `url`, as in http://127.0.0.1:8000")
    kind = settings.engine_kind
    for name, setting in settings.all().items():
        engines = setting.facts.engines
        if name not in given or kind in engines:
            continue
        if kind == "openai":
            raise CbbenchError(name, "belongs to cbbench's own engine: the server at `url` has its own")
        if engines == ("openai",):
            raise CbbenchError(name, "needs `url`: it is a setting of a load over HTTP")
        if engines == ("simulated",):
            raise CbbenchError(name, "needs `engine` simulated")
    if engine == "simulated" and settings.output.gpu_telemetry:
        raise CbbenchError("gpu_telemetry", "`engine` simulated computes on no GPU")


def _refuse_alone(settings: RunSettings, setting: SettingField, value: Any) -> None:
    """A setting that means something beside another one alone."""
    for other, wanted in setting.facts.needs.items():
        found = settings.get(other)
        if found != wanted and (wanted is not SET or found is None):
            value = f" {wanted}" if isinstance(wanted, str) and wanted is not SET else ""
            raise CbbenchError(setting.name, f"needs `{other}`{value}")
    mode = settings.scheduler.mode
    if setting.facts.mode not in (None, mode) and value not in setting.facts.other_mode:
        takes = setting.facts.other_mode
        instead = f"; {mode} takes {takes[0]} alone" if takes and isinstance(takes[0], str) else ""
        raise CbbenchError(setting.name, f"belongs to `mode` {setting.facts.mode}{instead}")


def _refuse_without_stream(settings: RunSettings) -> None:
    if settings.server.api == "tgi":
        raise CbbenchError("stream", "cannot be off with `api` tgi: its API of whole answers is not supported")
    for sla in settings.slo.sla:
        if sla.latency not in (None, "e2el_ms"):
            raise CbbenchError("sla", f'"{sla.expr}": without `stream` only E2EL is measured; want an e2el_ms')


def _refuse_conflicts(settings: RunSettings) -> None:
    workload, load = settings.workload, settings.load
    if workload.tenants is not None and load.arrival == "trace":
        raise CbbenchError("arrival", "trace does not go with `tenants`: they share one arrival process; give `rate`")
    for name in ("column", "time_unit", "window", "sample", "thin"):
        if workload.tenants is not None and getattr(workload, name):
            raise CbbenchError(name, "is of the file of one workload, and does not go with `tenants`")
    if load.speed is not None and load.rate is not None:
        raise CbbenchError("speed", "multiplies the trace's own rate, and `rate` sets another; give one of them")
    if load.arrival not in (None, "trace") and load.rate is None:
        raise CbbenchError("arrival", f"{load.arrival} needs `rate`: without it, nothing is scheduled")
    if workload.temperature == 0 and (workload.top_k or workload.top_p < 1):
        name = "top_k" if workload.top_k else "top_p"
        raise CbbenchError(name, "needs `temperature` above 0: temperature 0 is greedy")
    if not settings.server.stream:
        _refuse_without_stream(settings)
    # The scheduler checks its own settings; any pool, context and budget will do to find conflicts early.
    scheduler = scheduler_config(
        settings,
        kv_blocks=settings.scheduler.kv_blocks or 1,
        max_model_len=settings.scheduler.max_model_len or 1,
        max_num_batched_tokens=settings.scheduler.max_num_batched_tokens or settings.scheduler.max_num_seqs,
    )
    if settings.disaggregation.disaggregate:
        DisaggregatedConfig(scheduler, scheduler)
