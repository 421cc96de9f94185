"""RunSettings: every setting of a run, and what identifies one.

A new setting is one field in engine.py, scheduler.py or workload.py: its option, its key in cbbench.toml, its place in
sweeps and identities and what it is refused beside come from there.
"""

from __future__ import annotations

import hashlib
from typing import Any, Self

import msgspec
from msgspec import Struct

from cbbench.settings.engine import EngineSettings, ServerSettings
from cbbench.settings.facts import EngineKind, FromText, SettingField, settings_of
from cbbench.settings.scheduler import DisaggregationSettings, SchedulerSettings
from cbbench.settings.workload import LoadSettings, OutputSettings, SloSettings, WorkloadSettings


class RunSettings(Struct, frozen=True, kw_only=True):
    """One run. Made by `build.build_settings` from flat names; read as settings.scheduler.max_num_seqs."""

    engine: EngineSettings = EngineSettings()
    server: ServerSettings = ServerSettings()
    workload: WorkloadSettings = WorkloadSettings()
    load: LoadSettings = LoadSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    disaggregation: DisaggregationSettings = DisaggregationSettings()
    slo: SloSettings = SloSettings()
    output: OutputSettings = OutputSettings()

    @classmethod
    def all(cls) -> dict[str, SettingField]:
        """By flat name."""
        return settings_of(cls)

    @classmethod
    def other_names(cls) -> dict[str, SettingField]:
        """By the names of the last release and of other systems."""
        names = ((other, one) for one in cls.all().values() for other in (one.facts.old_name, one.facts.also))
        return {other: one for other, one in names if other is not None}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """values: by flat name, checked and parsed; the others have their defaults."""
        return cls().replaced(**values)

    def replaced(self, **values: Any) -> Self:
        """With other values, by flat name."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            setting = self.all()[name]
            groups.setdefault(setting.group, {})[setting.attribute] = value
        changed = {
            group: msgspec.structs.replace(getattr(self, group), **attributes) for group, attributes in groups.items()
        }
        return msgspec.structs.replace(self, **changed)

    def get(self, name: str) -> Any:
        setting = self.all()[name]
        return getattr(getattr(self, setting.group), setting.attribute)

    def flat(self) -> dict[str, Any]:
        return {name: self.get(name) for name in self.all()}

    @property
    def engine_kind(self) -> EngineKind:
        """What really runs the requests: a server where there is a URL."""
        return "openai" if self.server.url is not None else self.engine.kind

    def config_hash(self) -> str:
        """Identity of the work: equal for two runs that measure the same thing, however judged or shown."""
        work = {}
        for name, setting in self.all().items():
            value, hashed = self.get(name), setting.facts.hashed
            if setting.facts.secret:
                value = tuple(one for one in value if one.identity is not None)
                hashed = "if-set"
            if hashed == "always" or (hashed == "if-set" and value != setting.default):
                work[setting.facts.old_name or name] = identity_of(value)
        return hashlib.sha256(msgspec.json.encode(work, order="sorted")).hexdigest()[:16]

    def plan_identity(self) -> tuple[object, ...]:
        """What decides about the plan, beside the context of a model or server."""
        # As text, since a list of columns is no key of a dictionary.
        return tuple(repr(identity_of(self.get(name))) for name, one in self.all().items() if one.facts.plan)


def identity_of(value: Any) -> Any:
    """A value as it stands in a run's identity: plain, or the text it was parsed from."""
    if isinstance(value, tuple):
        return [identity_of(one) for one in value]
    if isinstance(value, FromText):
        return value.identity
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
