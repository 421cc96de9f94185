"""A server over HTTP that speaks the OpenAI API or TGI's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from cbbench.config import RunConfig, UsageError
from engines.base import Engine
from engines.remote.headers import checked_value, parse_headers
from reports.schema import EngineInfo
from workloads.plan import RequestPlan

if TYPE_CHECKING:
    from engines.remote.engine import RemoteEngine

API_KEY_VARIABLE = "OPENAI_API_KEY"


class OpenAI:
    """A server at --url. Its settings are its own: it is only asked which model it serves, and how long a context."""

    def __init__(self, base: RunConfig) -> None:
        self._base = base

    def encode(self) -> None:
        """The server does, and says so in its usage."""

    def context_tokens(self, config: RunConfig) -> int:
        if config.max_model_len:
            return config.max_model_len
        if (context := self._engine(config).server.context_tokens) is None:
            raise UsageError("--max-model-len: the server at --url does not say how long its context is; give it here")
        return context

    def engine(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        engine = self._engine(config)
        server = engine.server
        info = EngineInfo(
            kind="openai",
            model=server.model,
            config={
                "url": config.url,
                "launch": config.launch,
                "api": config.api,
                "served": list(server.served),
                "ignore_eos": config.ignore_eos,
            }
            | ({"headers": [name for name, _ in parse_headers(config.header)]} if config.header else {}),
        )
        return engine, info

    def _engine(self, config: RunConfig) -> RemoteEngine:
        from engines.remote.config import RemoteConfig
        from engines.remote.engine import RemoteEngine

        assert config.url is not None
        return RemoteEngine(
            RemoteConfig(
                url=config.url,
                api=config.api,
                model=config.model if config.model != RunConfig().model else None,
                api_key=_api_key(),
                headers=parse_headers(config.header),
                ca_file=config.ca_file,
                prompt_form=config.prompt_form,
                prompt_seed=config.prompt_seed,
                ignore_eos=config.ignore_eos,
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                extra_body=parse_extra_body(config.extra_body),
                warmup_requests=config.warmup,
                workers=worker_count(config.workers),
                read_timeout_s=config.read_timeout,
                scrape=config.scrape,
                metrics_url=config.metrics_url,
            )
        )


def _api_key() -> str | None:
    """Not a flag: run.json keeps the command line. UsageError for what no header can hold."""
    key = os.environ.get(API_KEY_VARIABLE, "").strip()  # out of a file it often has a line's end
    try:
        return checked_value(API_KEY_VARIABLE, key) if key else None
    except ValueError as error:
        raise UsageError(str(error)) from None


def worker_count(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--workers: want a whole number from 1 on, or auto, got {text!r}")
    return int(text)


def parse_extra_body(text: str | None) -> dict[str, Any]:
    """The JSON object that goes into every request."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.DecodeError as error:
        raise UsageError(f"--extra-body: want a JSON object like '{{\"seed\": 1}}': {error}") from None
