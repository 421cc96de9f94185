"""The runs a sweep consists of: a setting, which repeat of it, its configuration and its folder.

setting   8    16   32        repeats are taken in turns, so that a drift of the machine is no difference between
repeat 1  →    →    →         settings
repeat 2  ←    ←    ←
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cbbench.experiment.sweep_params import field_of, fill_of, is_servers_own
from cbbench.settings.build import build_settings
from cbbench.settings.run import RunSettings
from reports.curves import label_of, short_label
from reports.sweep_schema import Value
from workloads.errors import CbbenchError

Setting = tuple[Value, ...]  # one value per parameter


@dataclass(frozen=True)
class Target:
    """One run to make. config None: it cannot run, for the reason in `error`."""

    setting: Setting
    repeat: int  # from 0
    label: str  # max-num-seqs 8
    folder: str  # relative to the sweep's
    fill: Mapping[str, str]  # of the placeholders in the command of `launch`
    config: RunSettings | None
    config_sha256: str = ""
    error: CbbenchError | None = None


@dataclass(frozen=True)
class Sweep:
    """What is swept, and the settings that all points share."""

    params: tuple[str, ...]
    given: Mapping[str, Any]
    repeats: int

    def target(self, setting: Setting, repeat: int = 0) -> Target:
        """Errors become the target's: other settings may run."""
        label, folder = label_of(self.params, setting), folder_of(self.params, setting, repeat)
        fill = fill_of(self.params, setting)
        try:
            config = build_settings(self._settings(setting))
        except CbbenchError as error:
            return Target(setting, repeat, label, folder, fill, None, error=error)
        return Target(setting, repeat, label, folder, fill, _varied(config, setting, repeat), config.config_hash())

    def _settings(self, setting: Setting) -> dict[str, Any]:
        launch = self.given.get("launch")
        ours = {
            field_of(param): value
            for param, value in zip(self.params, setting, strict=True)
            if not is_servers_own(param, self.params, launch)
        }
        mode, known = ours.get("mode"), RunSettings.all()
        if mode is not None:  # where modes are compared, each takes the settings that it knows
            strangers = {name for name, one in known.items() if one.facts.mode not in (None, mode)}
            return {key: value for key, value in self.given.items() if key not in strangers} | ours
        return {**self.given, **ours}

    def interleaved(self, settings: Sequence[Setting]) -> Iterator[Target]:
        for repeat in range(self.repeats):
            for setting in settings if repeat % 2 == 0 else reversed(settings):
                yield self.target(setting, repeat)


def _varied(config: RunSettings, setting: Setting, repeat: int) -> RunSettings:
    """Other text at each point, so that no cache carries over; the plan, and so its hash, stays the same. The
    simulator, which repeats itself to the bit, takes another plan for each repeat instead."""
    text = short_label(setting) + (f" {repeat}" if repeat else "")
    varied = config.replaced(prompt_seed=config.workload.prompt_seed + zlib.crc32(text.encode()))
    return varied.replaced(seed=config.workload.seed + repeat) if config.engine.kind == "simulated" else varied


def folder_of(params: Sequence[str], setting: Setting, repeat: int = 0) -> str:
    """max-num-seqs-8, or max-num-seqs-8+kv-blocks-64~2 for the second repeat. What a folder's name should not hold is
    taken out of the values, and no two settings share a folder."""
    parts = []
    for param, value in zip(params, setting, strict=True):
        text = short_label([value])
        word = re.sub(r"[^\w.-]+", "-", text)[:60]
        parts.append(f"{param}-{word}" if word == text else f"{param}-{word}-{zlib.crc32(text.encode()):08x}")
    return "+".join(parts) + (f"~{repeat + 1}" if repeat else "")
