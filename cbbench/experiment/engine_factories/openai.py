"""A server over HTTP that speaks the OpenAI API or TGI's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cbbench.settings.run import RunSettings
from engines.base import Engine
from engines.remote.headers import checked_value
from reports.schema import EngineInfo
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan

if TYPE_CHECKING:
    from engines.remote.engine import RemoteEngine

API_KEY_VARIABLE = "OPENAI_API_KEY"


class OpenAI:
    """A server at a URL. Its settings are its own: it is only asked which model it serves, and how long a context."""

    def __init__(self, base: RunSettings) -> None:
        self._base = base

    def encode(self) -> None:
        """The server does, and says so in its usage."""

    def context_tokens(self, config: RunSettings) -> int:
        if config.scheduler.max_model_len:
            return config.scheduler.max_model_len
        if (context := self._engine(config).server.context_tokens) is None:
            raise CbbenchError(
                "max_model_len", "the server at `url` does not say how long its context is; give it here"
            )
        return context

    def engine(self, config: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        engine = self._engine(config)
        server = engine.server
        info = EngineInfo(
            kind="openai",
            model=server.model,
            config={
                "url": config.server.url,
                "launch": config.server.launch,
                "api": config.server.api,
                "served": list(server.served),
                "ignore_eos": config.workload.ignore_eos,
            }
            | ({"headers": [one.name for one in config.server.header]} if config.server.header else {}),
        )
        return engine, info

    def _engine(self, config: RunSettings) -> RemoteEngine:
        from engines.remote.config import RemoteConfig
        from engines.remote.engine import RemoteEngine

        assert config.server.url is not None
        return RemoteEngine(
            RemoteConfig(
                url=config.server.url,
                api=config.server.api,
                model=config.engine.model if config.engine.model != RunSettings().engine.model else None,
                api_key=_api_key(),
                headers=tuple((one.name, one.value) for one in config.server.header),
                ca_file=config.server.ca_file,
                prompt_form=config.server.prompt_form,
                prompt_seed=config.workload.prompt_seed,
                ignore_eos=config.workload.ignore_eos,
                temperature=config.workload.temperature,
                top_p=config.workload.top_p,
                top_k=config.workload.top_k,
                extra_body={} if config.server.extra_body is None else config.server.extra_body.content,
                warmup_requests=config.server.warmup,
                workers=config.server.workers,
                read_timeout_s=config.server.read_timeout,
                scrape=config.server.scrape,
                metrics_url=config.server.metrics_url,
            )
        )


def _api_key() -> str | None:
    """Not a flag: run.json keeps the command line. CbbenchError for what no header can hold."""
    key = os.environ.get(API_KEY_VARIABLE, "").strip()  # out of a file it often has a line's end
    try:
        return checked_value(API_KEY_VARIABLE, key) if key else None
    except ValueError as error:
        raise CbbenchError(None, str(error)) from None
