"""The three kinds of engine a bench can make: our own, the simulator, and a server over HTTP.

Each knows the longest request it takes, and makes an engine for a configuration with what run.json says of it.
"""

from __future__ import annotations

from typing import Protocol

from cbbench.experiment.engine_factories.openai import OpenAI
from cbbench.experiment.engine_factories.reference import Reference
from cbbench.experiment.engine_factories.simulated import Simulated
from cbbench.settings.run import RunSettings
from engines.base import Engine
from reports.schema import EngineInfo
from workloads.plan import RequestPlan
from workloads.prompt_texts import Encode


class Kind(Protocol):
    def context_tokens(self, config: RunSettings) -> int:
        """Longest prompt + output a request may have."""
        ...

    def encode(self) -> Encode | None:
        """What counts the tokens of prompts that a file has; None: nobody here does."""
        ...

    def engine(self, config: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]: ...


def kind_of(config: RunSettings) -> Kind:
    if config.server.url is not None or config.engine.kind == "openai":
        return OpenAI(config)
    return Simulated(config) if config.engine.kind == "simulated" else Reference(config)
