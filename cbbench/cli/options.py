"""Options of commands: those that the settings of a run describe, and the ones that many commands have.

Help must be quick, so a command's options are made when that command is called, and settings are imported then.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cbbench.settings.facts import SettingField
    from cbbench.settings.run import RunSettings

ON_OFF = ", on or off"
FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")  # how texts of settings, and errors, name another setting
Command = Callable[..., int]
MakeOptions = Callable[[], Iterable[inspect.Parameter]]


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def option(
    name: str, kind: Any, panel: str, text: str, *flags: str, metavar: str | None = None, hidden: bool = False
) -> inspect.Parameter:
    """None means not given: then cbbench.toml, the workload or the setting's default decides."""
    declaration = typer.Option(
        *(flags or (flag(name),)),
        help=text,
        rich_help_panel=panel,
        metavar=metavar,
        show_default=False,
        hidden=hidden,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declaration]
    )


def run_options() -> list[inspect.Parameter]:
    """The settings of a run, as options."""
    from cbbench.settings.run import RunSettings

    return options_of(RunSettings)


def options_of(
    model: type[RunSettings], wanted: Callable[[SettingField], bool] = lambda one: True
) -> list[inspect.Parameter]:
    """An option for every setting of the model, and a hidden one for every other name of it."""
    known = model.all()
    options = []
    for name, one in known.items():
        if wanted(one):
            text = FIELD.sub(
                lambda found: flag(found[1]) if found[1] in known else found[0], one.meta.description or ""
            )
            options.append(_option(name, one, text))
            others = (one.facts.old_name, one.facts.also)
            options += [_option(other, one, text, hidden=True) for other in others if other is not None]
    return options


def _option(name: str, one: SettingField, text: str, *, hidden: bool = False) -> inspect.Parameter:
    panel, kind = one.facts.panel, one.value_type
    if kind is bool and not one.facts.switch:
        # In a panel of their own: beside two names the help of other options would have no room in 80 columns.
        both = f"{flag(name)}/{flag('no_' + name)}"
        return option(name, bool, f"{panel}{ON_OFF}", text, both, metavar=" ", hidden=hidden)
    if one.is_list:
        kind = list[str]
    elif one.facts.parse is not None:
        kind = str
    flags = (flag(name), one.facts.short) if one.facts.short is not None else (flag(name),)
    return option(name, kind, panel, text, *flags, metavar=one.facts.metavar, hidden=hidden)


CONFIG_FILE = option("config", list[Path], "Output", "Read settings from this file; flags win. Repeat to lay one over "
                     "another: later files win. Default: cbbench.toml here, if there is one.",
                     metavar="FILE")  # fmt: skip
DEBUG = option("debug", bool, "Output", "Show the traceback of an error. Default: off.", "--debug")


def takes(*options: inspect.Parameter | MakeOptions) -> Callable[[Command], Command]:
    """Options of a command beside the parameters it names itself; they reach it through its **given."""

    def add(command: Command) -> Command:
        command.options = options  # type: ignore[attr-defined]
        return command

    return add


def complete(command: Command) -> Command:
    """The command with all of its options, for Typer."""
    made = [[one] if isinstance(one, inspect.Parameter) else one() for one in command.options]  # type: ignore[attr-defined]
    return _with_signature(command, [parameter for several in made for parameter in several])


def outline(command: Command) -> Command:
    """The command with its name and text alone, for a list of commands."""
    return _with_signature(command, [])


def _with_signature(command: Command, options: list[inspect.Parameter]) -> Command:
    own = inspect.signature(command, eval_str=True)
    named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]

    @functools.wraps(command)
    def wrapped(*given: Any, **by_name: Any) -> int:
        return command(*given, **by_name)

    wrapped.__signature__ = own.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    return wrapped


def names_of(declared: Any) -> list[str]:
    """Of an option in Annotated, where Typer keeps the first name in the place of a default."""
    first = [declared.default] if isinstance(declared.default, str) else []
    return [*first, *(declared.param_decls or ())]


def flags_of(command: Command) -> dict[str, str]:
    """The flag of every option of the command, by the name of its parameter and by its own."""
    flags = {}
    for parameter in inspect.signature(complete(command)).parameters.values():
        declared = next(iter(getattr(parameter.annotation, "__metadata__", ())), None)
        if isinstance(declared, type(typer.Option())):
            names = [name.partition("/")[0] for name in names_of(declared)]
            long = next((name for name in names if name.startswith("--")), flag(parameter.name))
            flags[parameter.name] = flags[long[2:].replace("-", "_")] = long
    return flags
