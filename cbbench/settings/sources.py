"""Where settings come from: what the workload suggests, then cbbench.toml, then the command line; the last one wins.

cbbench.toml holds settings by the names of the long flags; its tables `[run]`, `[sweep]`, `[tune]` and `[serve]` are
for one command alone. Of several `config` files a later one wins over an earlier one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cbbench.settings.build import checked, value_of
from cbbench.settings.run import RunSettings
from cbbench.settings.values import OLD_SLOT_LIMIT
from cbbench.settings.workload import WorkloadSettings
from cbbench.settings.workload_cache import opened_workload
from workloads.errors import CbbenchError
from workloads.rates import RateSchedule

Command = Literal["run", "sweep", "tune", "serve"]
COMMANDS: tuple[Command, ...] = ("run", "sweep", "tune", "serve")
DEFAULT_FILE = Path("cbbench.toml")


def gather(command: Command, options: Mapping[str, Any], swept: Sequence[str] = ()) -> dict[str, Any]:
    """Every setting that was chosen, by flat name, for `build_settings`. `options`: as the command line has them;
    `swept`: settings whose values come later. Old names are told on stderr."""
    files = [Path(file) for file in options.get("config") or ()]
    ours = ("config", "debug")
    flags = {key: value for key, value in options.items() if key not in ours and value is not None and value != []}
    chosen = read_config_files(files, command) | _with_todays_names(flags)
    if command == "serve":
        return chosen
    # Of several tenants there is no single workload to suggest anything.
    suggested: dict[str, Any] = {}
    if "tenants" not in chosen:
        suggested = dict(opened_workload(_workload_of(chosen)).suggests)
    if {"rate", "duration"} <= {*chosen, *swept}:  # which say together how many requests there are
        suggested.pop("num_requests", None)
    suggested |= _suggested_by_rate(chosen.get("rate"), chosen.get("duration"))
    if "url" in chosen or "launch" in chosen:  # the server's settings are its own
        known = RunSettings.all()
        suggested = {key: value for key, value in suggested.items() if "openai" in known[key].facts.engines}
    return suggested | chosen


def _workload_of(chosen: Mapping[str, Any]) -> WorkloadSettings:
    """What decides which workload is opened, of settings that are not checked yet."""
    group = {name: one for name, one in RunSettings.all().items() if one.group == "workload"}
    names = ("workload", "seed", "column", "time_unit", "window", "sample", "thin")
    values = {group[name].attribute: value_of(group[name], chosen[name]) for name in names if name in chosen}
    return WorkloadSettings(**values)


def _suggested_by_rate(rate: float | str | None, duration_s: float | None) -> dict[str, Any]:
    """As many requests as stages with an end hold, where a duration does not end them."""
    stages = None if rate is None else value_of(RunSettings.all()["rate"], rate)
    if not isinstance(stages, RateSchedule) or stages.requests is None or stages.end_s is None:
        return {}
    if isinstance(duration_s, int | float) and duration_s <= stages.end_s:
        return {}
    return {"num_requests": max(1, round(stages.requests))}


def read_config_files(
    paths: Sequence[Path], command: Command, model: type[RunSettings] = RunSettings
) -> dict[str, Any]:
    """Settings of the files for `command`, by flat name; none named: those of cbbench.toml, if there is one here."""
    if not paths and DEFAULT_FILE.exists():
        paths = (DEFAULT_FILE,)
    settings: dict[str, Any] = {}
    for path in paths:
        settings |= _read(path, command, model)
    return settings


def _read(path: Path, command: Command, model: type[RunSettings]) -> dict[str, Any]:
    document = _parse(path)
    tables = {name: document.pop(name, {}) for name in COMMANDS}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise CbbenchError(None, f"{path}: {name}: must be a table, as in [{name}], got {table!r}")
    return _checked(path, document, "", model) | _checked(path, tables[command], f"{command}.", model)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CbbenchError("config", f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise CbbenchError(None, f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise CbbenchError(None, f"{path}: not valid TOML: {error}") from None


def _checked(path: Path, table: Mapping[str, Any], prefix: str, model: type[RunSettings]) -> dict[str, Any]:
    """The table by flat names, each value checked on its own; conflicts are found later, together with the flags."""
    settings = {key.replace("-", "_"): value for key, value in table.items()}
    settings = _with_todays_names(settings, f"{path}: ")
    try:
        checked(settings, model)
    except CbbenchError as error:
        key = (error.field or "").replace("_", "-")
        message = re.sub(r"`(\w+)`", lambda found: found[1].replace("_", "-"), error.message)  # keys, as in the file
        raise CbbenchError(None, f"{path}: {prefix}{key}: {message}") from None
    return settings


def _with_todays_names(given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Other names become those of today. Old ones are read for one release more, with a note."""
    others = {name: one for name, one in RunSettings.other_names().items() if name in given}
    for name, one in others.items():
        if one.name in given:
            raise CbbenchError(None, f"{where}{name.replace('_', '-')} is another name of {one.key}: give one of them")
        if name == one.facts.old_name:
            _note(f"{where}{name} is now called {one.key}; the old name is read until the next release")
    quotas = given.get("quota") or ()
    if any(f"{OLD_SLOT_LIMIT}=" in text for text in ([quotas] if isinstance(quotas, str) else quotas)):
        _note(f"{where}quota: {OLD_SLOT_LIMIT} is now called max-num-seqs; the old name is read until the next release")
    return {others[name].name if name in others else name: value for name, value in given.items()}


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
