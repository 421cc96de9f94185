"""The three kinds of engine a bench can make: our own, the simulator, and a server over HTTP.

Each knows the longest request it takes, and makes an engine for a configuration with what run.json says of it.
"""

from __future__ import annotations

from typing import Protocol

from cbbench.config import RunConfig
from cbbench.experiment.engine_factories.openai import OpenAI
from cbbench.experiment.engine_factories.reference import Reference
from cbbench.experiment.engine_factories.simulated import Simulated
from engines.base import Engine
from reports.schema import EngineInfo
from workloads.plan import RequestPlan
from workloads.prompt_texts import Encode


class Kind(Protocol):
    def context_tokens(self, config: RunConfig) -> int:
        """Longest prompt + output a request may have."""
        ...

    def encode(self) -> Encode | None:
        """What counts the tokens of prompts that a file has; None: nobody here does."""
        ...

    def engine(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]: ...


def kind_of(config: RunConfig) -> Kind:
    if config.url is not None or config.engine == "openai":
        return OpenAI(config)
    return Simulated(config) if config.engine == "simulated" else Reference(config)
