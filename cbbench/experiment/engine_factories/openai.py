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


class OpenAIFactory:
    """A server at a URL. Its settings are its own: it is only asked which model it serves, and how long a context."""

    def __init__(self, base: RunSettings) -> None:
        self._base = base

    def encode(self) -> None:
        """None: the server tokenizes, and reports its counts in `usage`."""

    def context_tokens(self, settings: RunSettings) -> int:
        if settings.scheduler.max_model_len:
            return settings.scheduler.max_model_len
        if (context := self._engine(settings).server.context_tokens) is None:
            raise CbbenchError(
                "max_model_len", "the server at `url` does not say how long its context is; give it here"
            )
        return context

    def engine(self, settings: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        engine = self._engine(settings)
        server, urls = engine.server, engine.config.urls
        info = EngineInfo(
            kind="openai",
            model=server.model,
            config={
                "url": urls[0],
                "launch": settings.server.launch,
                "api": settings.server.api,
                "served": list(server.served),
                "ignore_eos": settings.workload.ignore_eos,
            }
            | ({"urls": list(urls)} if len(urls) > 1 else {})
            | ({} if settings.server.stream else {"stream": False})
            | ({"omit": list(settings.server.omit)} if settings.server.omit else {})
            | ({"headers": [one.name for one in settings.server.header]} if settings.server.header else {}),
        )
        return engine, info

    def _engine(self, settings: RunSettings) -> RemoteEngine:
        from engines.remote.config import RemoteConfig
        from engines.remote.engine import RemoteEngine
        from engines.remote.failure_limit import MostFailures

        allowed = settings.server.max_failures
        given = settings.server.url
        assert given is not None
        urls = (given,) if isinstance(given, str) else given
        return RemoteEngine(
            RemoteConfig(
                url=urls[0],
                other_urls=urls[1:],
                api=settings.server.api,
                model=settings.engine.model if settings.engine.model != RunSettings().engine.model else None,
                api_key=_api_key(),
                headers=tuple((one.name, one.value) for one in settings.server.header),
                session_header=settings.server.session_header,
                ca_file=settings.server.ca_file,
                insecure=settings.server.insecure,
                cert_file=settings.server.cert,
                key_file=settings.server.key,
                max_failures=None if allowed is None else MostFailures(allowed.count, allowed.share),
                prompt_form=settings.server.prompt_form,
                prompt_seed=settings.workload.prompt_seed,
                ignore_eos=settings.workload.ignore_eos,
                temperature=settings.workload.temperature,
                top_p=settings.workload.top_p,
                top_k=settings.workload.top_k,
                stream=settings.server.stream,
                omit=settings.server.omit,
                extra_body={} if settings.server.extra_body is None else settings.server.extra_body.content,
                warmup_requests=settings.server.warmup,
                workers=settings.server.workers,
                connections=settings.server.connections,
                idle_timeout_s=settings.server.idle_timeout,
                retry_429=settings.server.retry_429,
                request_timeout_s=settings.server.request_timeout,
                read_timeout_s=settings.server.read_timeout,
                scrape=settings.server.scrape,
                metrics_url=settings.server.metrics_url,
            )
        )


def _api_key() -> str | None:
    """Not a flag: run.json keeps the command line. CbbenchError for what no header can hold."""
    key = os.environ.get(API_KEY_VARIABLE, "").strip()  # out of a file it often has a line's end
    try:
        return checked_value(API_KEY_VARIABLE, key) if key else None
    except ValueError as error:
        raise CbbenchError(None, str(error)) from None
