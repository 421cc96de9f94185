"""What makes the three kinds of engine: our own, the simulator, and the client of a server over HTTP.

Each knows the longest request it takes, and makes an engine for a configuration with what run.json says of it.
"""

from __future__ import annotations

from typing import Protocol

from cbbench.experiment.engine_factories.openai import OpenAIFactory
from cbbench.experiment.engine_factories.reference import ReferenceFactory
from cbbench.experiment.engine_factories.simulated import SimulatedFactory
from cbbench.settings.run import RunSettings
from engines.base import Engine
from reports.schema import EngineInfo
from workloads.plan import RequestPlan
from workloads.prompt_texts import Encode


class EngineFactory(Protocol):
    def context_tokens(self, settings: RunSettings) -> int:
        """Longest prompt + output a request may have."""
        ...

    def encode(self) -> Encode | None:
        """Tokenizes the prompts of a file; None: no tokenizer here."""
        ...

    def engine(self, settings: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]: ...


def factory_for(settings: RunSettings, *, many_runs: bool = False) -> EngineFactory:
    if settings.server.url is not None or settings.engine.kind == "openai":
        return OpenAIFactory(settings)
    if settings.engine.kind == "simulated":
        return SimulatedFactory(settings, many_runs=many_runs)
    return ReferenceFactory(settings)
