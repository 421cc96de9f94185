"""Where settings come from: what the workload suggests, then cbbench.toml, then the command line; the last one wins.

cbbench.toml holds settings by the names of the long flags; its tables `[run]`, `[sweep]`, `[tune]` and `[serve]` are
for one command alone. Of several `--config` files a later one wins over an earlier one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from cbbench.config import ENGINE_SETTINGS, RunConfig, UsageError
from cbbench.validation import explain_validation
from workloads.rates import RateSchedule, read_rate
from workloads.spec import suggestions

Command = Literal["run", "sweep", "tune", "serve"]
COMMANDS: tuple[Command, ...] = ("run", "sweep", "tune", "serve")
LISTS = ("sla", "header", "quota")
DEFAULT_FILE = Path("cbbench.toml")


def gather(command: Command, options: Mapping[str, Any], swept: Sequence[str] = ()) -> dict[str, Any]:
    """Every setting that somebody chose, by field name, for `build_config`. `options`: as Typer gives them; `swept`:
    settings whose values come later."""
    files = [Path(file) for file in options.get("config") or ()]
    ours = ("config", "debug")
    flags = {key: value for key, value in options.items() if key not in ours and value is not None and value != []}
    chosen = read_config_files(files, command) | flags
    if command == "serve":
        return chosen
    # Of several tenants there is no single workload to suggest anything.
    suggested = {} if "tenants" in chosen else dict(suggestions(str(chosen.get("workload", RunConfig().workload))))
    if {"rate", "duration"} <= {*chosen, *swept}:  # which say together how many requests there are
        suggested.pop("num_requests", None)
    suggested |= _suggested_by_rate(chosen.get("rate"), chosen.get("duration"))
    if "url" in chosen or "launch" in chosen:  # the server's settings are its own
        suggested = {key: value for key, value in suggested.items() if key not in ENGINE_SETTINGS}
    return suggested | chosen


def _suggested_by_rate(rate: float | str | None, duration_s: float | None) -> dict[str, Any]:
    """As many requests as stages with an end hold, where a duration does not end them."""
    try:
        stages = None if rate is None else read_rate(rate)
    except ValueError as error:
        raise UsageError(f"--rate: {error}") from None
    if not isinstance(stages, RateSchedule) or stages.requests is None or stages.end_s is None:
        return {}
    if isinstance(duration_s, int | float) and duration_s <= stages.end_s:
        return {}
    return {"num_requests": max(1, round(stages.requests))}


def read_config_files(paths: Sequence[Path], command: Command) -> dict[str, Any]:
    """Settings of the files for `command`, by field name; none named: those of cbbench.toml, if there is one here."""
    if not paths and DEFAULT_FILE.exists():
        paths = (DEFAULT_FILE,)
    settings: dict[str, Any] = {}
    for path in paths:
        settings |= _read(path, command)
    return settings


def _read(path: Path, command: Command) -> dict[str, Any]:
    document = _parse(path)
    tables = {name: document.pop(name, {}) for name in COMMANDS}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name}: must be a table, as in [{name}], got {table!r}")
    return _checked(path, document, "") | _checked(path, tables[command], f"{command}.")


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--config: {path} does not exist") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None


def _checked(path: Path, table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The table by field names, each value checked on its own; conflicts are found later, together with the flags."""
    settings = {key.replace("-", "_"): value for key, value in table.items()}
    settings |= {name: [settings[name]] for name in LISTS if isinstance(settings.get(name), str)}  # one alone
    try:
        msgspec.convert(settings, RunConfig)
    except msgspec.ValidationError as error:
        field, problem = explain_validation(error, settings)
        raise UsageError(f"{path}: {prefix}{field.replace('_', '-')}: {problem}") from None
    return settings
