"""The facts of a setting beside its type and range; and the settings of a model, by flat name.

A setting is one field of one struct:

    max_num_seqs: Annotated[int, Meta(ge=1, description="Slots in the batch ...", extra=setting("N"))] = 32

From it come the option with its help, the key in cbbench.toml, whether a sweep may vary it, the engines it belongs to
and whether it is part of a run's identity. Only msgspec is imported here: help must be quick.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

EngineKind = Literal["reference", "simulated", "openai"]
ALL_ENGINES: tuple[EngineKind, ...] = ("reference", "simulated", "openai")
OURS: tuple[EngineKind, ...] = ("reference", "simulated")
REFERENCE: tuple[EngineKind, ...] = ("reference",)
SIMULATED: tuple[EngineKind, ...] = ("simulated",)
OPENAI: tuple[EngineKind, ...] = ("openai",)
SET = "any value"  # in `needs`: the other setting must be given

# Why a sweep may not vary a setting. {PARAM} stands for its name.
ONCE = "is loaded once for all points; `cbbench compare` measures two of them in turns"
SHOWN = "changes how a run is judged or shown, not what it does"
SEED = "is what makes every point the same work; `repeat` N measures each point N times"
SERVER = "says which server is loaded; start one for each value with {PARAM} in `launch`"


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of a setting that its type does not hold.

    metavar     what stands for the value in help
    panel       the part of help it stands in
    engines     the kinds of engine it is a setting of
    needs       other settings and the value they must have where this one is given
    mode        the batching mode it is a setting of; None: both
    other_mode  values that may stand beside the other mode all the same
    unswept     why a sweep cannot vary it; None: it can
    other_work  in a sweep, its values ask different work of the engine, so no point is better than another
    hashed      whether it is part of a run's identity: always; only where it is not the default, as for a setting that
                is newer than some sweep; or never, as it changes no measurement
    plan        whether the requests depend on it
    loaded_once whether the engine is loaded anew where it changes
    served      whether `cbbench serve` takes it
    compared    whether it may differ between the two sides of `cbbench compare`
    secret      whether its value must not appear in a file or message
    old_name    what it was called before, read for one release
    also        what other systems call it, taken wherever its name is
    short       a second, short option
    switch      an option that takes no value and has no negative form
    given       the types a value may be given as, where `parse` makes another one of it
    parse       "module:function" that makes a value of what was given; it raises ValueError
    """

    metavar: str | None = None
    panel: str
    engines: tuple[EngineKind, ...] = ALL_ENGINES
    needs: dict[str, Any] = {}
    mode: Literal["continuous", "static"] | None = None
    other_mode: tuple[Any, ...] = ()
    unswept: str | None = None
    other_work: bool = False
    hashed: Literal["always", "if-set", "never"] = "always"
    plan: bool = False
    loaded_once: bool = False
    served: bool = False
    compared: bool = True
    secret: bool = False
    old_name: str | None = None
    also: str | None = None
    short: str | None = None
    switch: bool = False
    given: Any = None
    parse: str | None = None


def setting(metavar: str | None = None, **facts: Any) -> dict[str, Facts]:
    """The `extra` of a setting's Meta."""
    return {"facts": Facts(metavar=metavar, **facts)}


class FromText(Struct, frozen=True):
    """A value that was parsed, beside the text it was parsed from, which is its part of a run's identity."""

    text: str

    @property
    def identity(self) -> Any:
        return self.text


class SettingField(Struct, frozen=True):
    """One setting of a model: its place, its type and its facts.

    kind: the type of one value as it is given, without None and without the bounds, which are in meta.
    """

    name: str
    group: str
    attribute: str
    kind: Any
    default: Any
    meta: Meta
    facts: Facts

    @property
    def key(self) -> str:
        """The name in cbbench.toml, and of a sweep's parameter."""
        return self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it takes, empty if it takes other things."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is list

    @property
    def value_type(self) -> type:
        """int, float, bool or str: what a word on the command line is read as, in a sweep or an option."""
        if self.choices or self.is_list or self.kind is str:
            return str
        kinds = get_args(self.kind) or (self.kind,)  # of several ways to write it, the first
        first: type = kinds[0]
        return first


@cache
def settings_of(model: type[Struct]) -> dict[str, SettingField]:
    """Every setting of a model of nested structs, by flat name, in the order of help."""
    found: dict[str, SettingField] = {}
    for group in msgspec.structs.fields(model):
        for field in msgspec.structs.fields(group.type):
            hint, meta = _without_meta(field.type)
            facts = (meta.extra or {})["facts"]
            kind = facts.given if facts.parse is not None else _without_none(hint)
            assert field.encode_name not in found, f"two settings are called {field.encode_name}"
            found[field.encode_name] = SettingField(
                field.encode_name, group.name, field.name, kind, field.default, meta, facts
            )
    return found


def _without_meta(hint: Any) -> tuple[Any, Meta]:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"a setting says what it is in Annotated[..., Meta(...)], got {hint}")
    kind, meta = get_args(hint)
    return kind, meta


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    parts = [one for one in get_args(hint) if one is not types.NoneType]
    return parts[0] if len(parts) == 1 else Union[tuple(parts)]  # noqa: UP007
