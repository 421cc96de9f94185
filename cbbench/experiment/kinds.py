"""The three kinds of engine a bench can make: our own, the simulator, and a server over HTTP.

Each knows the longest request it takes, and makes an engine for a configuration with what run.json says of it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from cbbench.config import RunConfig, UsageError
from cbbench.experiment.pools import (
    blocks_for_every_seat,
    refuse_what_never_fits,
    refuse_what_never_fits_a_pair,
)
from engines.base import Engine
from engines.remote.headers import checked_value, parse_headers
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.pair import PairConfig
from engines.scheduling.request import Sampling
from reports.schema import EngineInfo
from workloads.plan import RequestPlan
from workloads.texts import Encode

if TYPE_CHECKING:
    from engines.reference.model.weights import LoadedModel
    from engines.remote.engine import RemoteEngine
    from engines.simulated.law import StepLaw

BUDGET_TOKENS = {"cpu": 512, "cuda": 8192}
API_KEY_VARIABLE = "OPENAI_API_KEY"


class Kind(Protocol):
    def context_tokens(self, config: RunConfig) -> int:
        """Longest prompt + output a request may have."""
        ...

    def encode(self) -> Encode | None:
        """What counts the tokens of prompts that a file has; None: nobody here does."""
        ...

    def engine(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]: ...


class Reference:
    """Model settings (model, weights, device, dtype) come from `base`; everything else from each run's config."""

    def __init__(self, base: RunConfig) -> None:
        self._base = base

    @cached_property
    def model(self) -> LoadedModel:
        from engines.reference import load_model

        base = self._base
        return load_model(base.model, weights=base.weights, device=base.device, dtype=base.dtype)

    def context_tokens(self, config: RunConfig) -> int:
        return config.max_model_len or self.model.context_tokens

    def encode(self) -> Encode | None:
        from engines.serve.encoder import encoder_of

        return encoder_of(self._base.model, random_weights=self._base.weights == "random")

    def scheduler(self, config: RunConfig, kv_blocks: int) -> SchedulerConfig:
        made = scheduler_of(config, kv_blocks, self.context_tokens(config), self.model.device)
        if config.swap_blocks is not None or not made.swap_blocks:
            return made
        from engines.reference.engine import host_blocks

        return replace(made, swap_blocks=min(made.swap_blocks, host_blocks(self.model, config.block_size)))

    def kv_blocks_in_memory(self, config: RunConfig) -> int:
        from engines.reference.engine import GPU_SHARE, default_kv_blocks

        return default_kv_blocks(
            self.model,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=self.context_tokens(config),
            max_num_batched_tokens=budget_tokens(config, self.model.device),
            attention=config.attention,
            gpu_memory_utilization=config.gpu_memory_utilization or GPU_SHARE,
        )

    def kv_blocks(self, config: RunConfig, most: int | None) -> int:
        """Usable blocks of the pool. most: what the plan's requests can ever need, if that is known."""
        if config.gpu_memory_utilization is not None and self.model.device == "cpu":
            raise UsageError("--gpu-memory-utilization: the model runs on a CPU; --kv-blocks N sets its KV cache")
        if config.kv_blocks:
            return config.kv_blocks
        blocks = self.kv_blocks_in_memory(config)
        if most is not None and config.gpu_memory_utilization is None:
            blocks = min(blocks, most)
        if self.model.device != "cpu":
            print(f"{blocks:,} KV blocks of {config.block_size} tokens", file=sys.stderr)
        return blocks

    def engine(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.reference.engine import ReferenceEngine

        if config.disaggregate:
            return self._pair(config, plan)
        most = blocks_for_every_seat(plan, config, self.context_tokens(config))
        scheduler = self.scheduler(config, self.kv_blocks(config, most))
        refuse_what_never_fits(config, plan, scheduler)
        engine = ReferenceEngine(self.model, scheduler, **self._settings(config))
        return engine, _info("reference", config, scheduler, self.model.name, self.model.device, engine.describe())

    def _pair(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.reference.pair import ReferencePair

        most = blocks_for_every_seat(plan, config, self.context_tokens(config))
        blocks = self.kv_blocks(config, most)
        if self.model.device != "cpu" and config.kv_blocks is None:
            blocks = max(1, blocks // 2)  # both pools are in the one GPU's memory
        pair = pair_of(config, self.scheduler(config, blocks))
        refuse_what_never_fits_a_pair(config, plan, pair)
        engine = ReferencePair(self.model, pair, **self._settings(config))
        return engine, _info("reference", config, pair.decode, self.model.name, self.model.device, engine.describe())

    @staticmethod
    def _settings(config: RunConfig) -> dict[str, Any]:
        """What an engine wants to know beside its scheduler."""
        return {
            "prompt_seed": config.prompt_seed,
            "ignore_eos": config.ignore_eos,
            "sampling": Sampling(config.temperature, config.top_k, config.top_p, seed=config.prompt_seed),
            "attention": config.attention,
            "cuda_graphs": config.cuda_graphs,
        }


class Simulated:
    def __init__(self, base: RunConfig) -> None:
        self._base = base

    @cached_property
    def law(self) -> StepLaw:
        from engines.simulated.choose import choose_law

        base = self._base
        return choose_law(Path(base.law) if base.law else None, base.hardware, base.model)

    def encode(self) -> Encode | None:
        """By the tokenizer of the model that the law is of."""
        from engines.serve.encoder import encoder_of

        return encoder_of(self.law.origin.model or self._base.model, random_weights=False)

    def context_tokens(self, config: RunConfig) -> int:
        from engines.simulated.choose import default_context_tokens

        known = default_context_tokens(self.law, config.model)
        if config.max_model_len and config.max_model_len > known:
            raise UsageError(f"--max-model-len {config.max_model_len}: the model has a context of {known} tokens")
        return config.max_model_len or known

    def engine(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.simulated.choose import default_kv_blocks, kv_link_bytes_per_s, refuse_free_swaps, refuse_unread
        from engines.simulated.disaggregated import SimulatedPair
        from engines.simulated.engine import SimulatedEngine

        refuse_unread(plan, prefix_caching=config.prefix_caching)
        if config.on_kv_pressure == "swap":
            refuse_free_swaps(self.law)
        law = self.law.with_blocks_of(config.block_size)
        context = self.context_tokens(config)
        blocks = config.kv_blocks or default_kv_blocks(
            law, config.hardware, config.model, config.block_size, config.gpu_memory_utilization
        )
        device = "cpu" if self.law.origin.device == "cpu" else "cuda"  # a law's device may be a GPU's name
        scheduler = scheduler_of(config, blocks or blocks_for_every_seat(plan, config, context), context, device)
        model, device = self.law.origin.model or config.model, config.hardware or device
        if config.disaggregate:
            pair = pair_of(config, scheduler)
            refuse_what_never_fits_a_pair(config, plan, pair)
            link_bytes_per_s = kv_link_bytes_per_s(law, config.hardware, config.kv_link_gb_per_s)
            two = SimulatedPair(pair, law, link_bytes_per_s, law.origin.kv_bytes_per_token or 0)
            return two, _info("simulated", config, scheduler, model, device, two.describe())
        refuse_what_never_fits(config, plan, scheduler)
        engine = SimulatedEngine(scheduler, law)
        return engine, _info("simulated", config, scheduler, model, device, engine.describe())


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


def kind_of(config: RunConfig) -> Kind:
    if config.url is not None or config.engine == "openai":
        return OpenAI(config)
    return Simulated(config) if config.engine == "simulated" else Reference(config)


def scheduler_of(config: RunConfig, kv_blocks: int, max_model_len: int, device: str) -> SchedulerConfig:
    return config.scheduler(
        kv_blocks=kv_blocks, max_model_len=max_model_len, max_num_batched_tokens=budget_tokens(config, device)
    )


def pair_of(config: RunConfig, scheduler: SchedulerConfig) -> PairConfig:
    """The scheduler that was asked for, to decode, and one beside it that computes prompts."""
    seats = config.prefill_max_num_seqs or scheduler.max_num_seqs
    budget = config.prefill_max_num_batched_tokens or max(scheduler.max_num_batched_tokens, seats)
    if budget < seats:
        raise UsageError(
            f"--prefill-max-num-batched-tokens: {budget} is less than the {seats} seats of the prefill instance, so a "
            f"full batch could not go on; raise it to at least {seats}"
        )
    prefill = replace(
        scheduler,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        kv_blocks=config.prefill_kv_blocks or scheduler.kv_blocks,
    )
    return PairConfig(prefill, scheduler)


def budget_tokens(config: RunConfig, device: str) -> int:
    # A default must not contradict a flag: every seat gets a token per step.
    return config.max_num_batched_tokens or max(BUDGET_TOKENS[device], config.max_num_seqs)


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


def _info(
    kind: str, config: RunConfig, scheduler: SchedulerConfig, model: str, device: str, described: dict[str, Any]
) -> EngineInfo:
    settings = asdict(scheduler) | {"admission": scheduler.effective_admission} | described
    return EngineInfo(kind=kind, mode=config.mode, model=model, device=device, config=settings)
