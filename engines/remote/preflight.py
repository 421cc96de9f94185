"""A few requests before the measured ones: does the server take them, how does it count, and is it warm?

Their prompts begin with a token that no measured prompt begins with, so no cache of prefixes carries over.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from engines.base import EngineError, Observer, RunRecord, SilentObserver
from engines.remote.client_stats import ClientStats
from engines.remote.config import PATHS, RemoteConfig, Target
from engines.remote.dispatcher import Load
from engines.remote.load_client import LoadClient
from engines.remote.load_recorder import LoadRecorder
from engines.remote.request_bodies import BodyWindow, RequestFormat
from engines.remote.server_info import ServerInfo
from engines.request_table import RequestRow
from workloads.errors import ExitCode
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompt_texts import PromptTexts

EXTENSIONS = ("ignore_eos", "min_tokens", "stream_options", "priority", "top_k")  # to the OpenAI API
PROBE_TOKENS = (32, 96)  # two lengths show what the server adds to both
WARMUP_OUTPUT_TOKENS = 32  # at most, of each warm-up request


class WarmupObserver(SilentObserver):
    """Keeps nothing, and stops when another one does."""

    def __init__(self, other: Observer) -> None:
        self._other = other

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self._other.stopping


def check(
    config: RemoteConfig, target: Target, server: ServerInfo, plan: RequestPlan, pacing: Pacing, observer: Observer
) -> RequestFormat:
    """How to ask this server. Raises EngineError where it refuses what is needed.

    Without warm-up requests nothing is sent, and the setup is what the configuration says.
    """
    quiet = WarmupObserver(observer)
    as_ids = config.api == "completions" and config.prompt_form != "text" and plan.texts is None
    if config.prompt_form == "ids" and config.api != "completions":
        raise EngineError(f"--api {config.api} takes no token ids, only text")
    if plan.texts is not None:
        _refuse_texts(config, plan.texts)
    setup = RequestFormat(config, server.model, as_ids, vocab_size=server.vocab_size)
    if config.warmup_requests == 0 or len(plan) == 0:
        return setup
    probe = RequestPlan.of(PROBE_TOKENS, [2] * len(PROBE_TOKENS))
    record = _try(setup, target, probe, quiet, concurrency=1)
    refused = _refusal(record)
    if as_ids and refused is not None and config.prompt_form == "auto" and not _names_extension(refused):
        setup = replace(setup, as_ids=False)
        record = _try(setup, target, probe, quiet, concurrency=1)
        refused = _refusal(record)
    if refused is not None:
        raise EngineError(_explain(config, refused))
    setup = replace(setup, overhead_tokens=_overhead(record))
    _try(setup, target, _warmup_plan(plan, config.warmup_requests), quiet, concurrency=pacing.concurrency)
    return setup


def _refuse_texts(config: RemoteConfig, texts: PromptTexts) -> None:
    """Raises EngineError where the API has no place for what the file says."""
    if config.prompt_form == "ids":
        raise EngineError(f"--prompt-form ids: {texts.file.path} has text, of which the server makes its own tokens")
    if config.api == "chat":
        return
    for row, content in enumerate(texts.file.contents):
        if not isinstance(content, str):
            where = f"{texts.file.path}, line {texts.file.lines[row]}: messages"
            raise EngineError(f"{where}: --api {config.api} takes no chats; use --api chat")


def _try(
    setup: RequestFormat, target: Target, plan: RequestPlan, quiet: WarmupObserver, *, concurrency: int | None
) -> RunRecord:
    """Send a plan without measuring anything."""
    recorder = LoadRecorder(plan, quiet, ClientStats())
    # Outside the range that measured prompts draw from.
    make = setup.requests(plan, target, first_id=setup.token_ids[0] - 1 if setup.as_ids else 0)
    pacing = Pacing(plan.arrivals_ugap, concurrency=min(concurrency or len(plan), len(plan)))
    load = Load(make, BodyWindow(make, range(len(plan)), count=len(plan)), pacing, recorder)
    client = LoadClient(target, setup.config, setup.interpret, load)
    try:
        if not client.prepare(1):
            raise EngineError(f"no server answers at {setup.config.url}: {client.refusal}", ExitCode.SERVER)
        if client.run(time.monotonic_ns()) == "gone":
            raise EngineError(f"the server at {setup.config.url} went away: {client.refusal}", ExitCode.SERVER)
    finally:
        client.close()
    return recorder.record(interrupted=False)


def _refusal(record: RunRecord) -> RequestRow | None:
    """A request that the server calls wrong. Every other failure is the measurement's to show."""
    for row in record.rows:
        if row.finish_reason == "http_4xx" and not (row.error or "").startswith(("HTTP 408", "HTTP 429")):
            return row
    return None


def _names_extension(row: RequestRow) -> str | None:
    return next((name for name in EXTENSIONS if name in (row.error or "")), None)


def _explain(config: RemoteConfig, row: RequestRow) -> str:
    said = " ".join((row.error or "").split())[:300]
    extension = _names_extension(row)
    if extension in ("ignore_eos", "min_tokens"):
        return (
            f"the server does not take {extension}; --no-ignore-eos leaves it out, and answers may be shorter ({said})"
        )
    if extension is not None:
        return f"the server does not take {extension} ({said})"
    if said.startswith(("HTTP 401", "HTTP 403")):
        return f"{config.key_problem} ({said})"
    if said.startswith(("HTTP 404", "HTTP 405")):
        return f"{config.url} has no {PATHS[config.api]}; try another --api ({said})"
    return f"the server refuses the requests: {said}"


def _overhead(record: RunRecord) -> int:
    """Tokens that the server adds to every text: equal for both lengths, or it is not known."""
    over = [row.prompt_tokens - PROBE_TOKENS[row.i] for row in record.rows if row.token_source == "usage"]
    known = len(over) == len(PROBE_TOKENS) and len(set(over)) == 1
    return max(over[0], 0) if known else 0


def _warmup_plan(plan: RequestPlan, count: int) -> RequestPlan:
    """The range of prompt lengths of the plan, with short answers. Each is a conversation: its text is no probe's."""
    order = np.argsort(plan.prompt_tokens, kind="stable")
    chosen = order[np.linspace(0, len(plan) - 1, min(count, len(plan))).round().astype(np.int64)]
    outputs = np.minimum(plan.output_tokens[chosen], WARMUP_OUTPUT_TOKENS)
    return RequestPlan.of(plan.prompt_tokens[chosen], outputs, session=np.arange(len(chosen)))
