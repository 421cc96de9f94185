"""Requests before the measured ones: whether the server accepts them, how it counts tokens, and to warm it up.

Their prompts begin with a token that no measured prompt begins with, so that they leave no prefix in a cache that a
measured one could hit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engines.base import Observer, RunRecord, SilentObserver
from engines.remote import tgi
from engines.remote.client_stats import ClientStats
from engines.remote.config import RemoteConfig, Target
from engines.remote.dialect import adapted, own_fields
from engines.remote.dispatcher import Load
from engines.remote.load_client import LoadClient
from engines.remote.load_recorder import LoadRecorder
from engines.remote.openai import RequestSpec
from engines.remote.paths import ENDINGS, Api
from engines.remote.request_bodies import BodyWindow, RequestFormat
from engines.remote.server_info import ServerInfo
from engines.request_table import RequestRow
from workloads.errors import CbbenchError, ExitCode
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompt_texts import PromptTexts

EXTENSIONS = ("ignore_eos", "min_tokens", "stream_options", "priority", "top_k")  # to the OpenAI API
PROBE_TOKENS = (32, 96)  # two lengths show what the server adds to both
WARMUP_OUTPUT_TOKENS = 32  # at most, of each warm-up request


class WarmupObserver(SilentObserver):
    """Keeps nothing, and stops when the run's observer does."""

    def __init__(self, other: Observer) -> None:
        self._other = other

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self._other.stopping


def choose_request_format(
    config: RemoteConfig, target: Target, server: ServerInfo, plan: RequestPlan, pacing: Pacing, observer: Observer
) -> RequestFormat:
    """The request format that this server accepts, after the probes and the warm-up requests.

    Without warm-up requests nothing is sent, and the format is as configured. Raises CbbenchError where the server
    refuses what is needed.
    """
    quiet = WarmupObserver(observer)
    as_ids = config.api == "completions" and config.prompt_form != "text" and plan.texts is None
    if config.prompt_form == "ids" and config.api != "completions":
        raise CbbenchError("prompt_form", f"`api` {config.api} takes no token ids; want text or auto")
    if plan.texts is not None:
        _refuse_texts(config, plan.texts)
    notes = _not_for_tgi(plan.texts) if config.api == "tgi" else ()
    request_format = RequestFormat(config, server.model, as_ids, vocab_size=server.vocab_size, notes=notes)
    if config.warmup_requests == 0 or len(plan) == 0:
        return request_format
    probe = RequestPlan.of(PROBE_TOKENS, [2] * len(PROBE_TOKENS))
    request_format, record = _adapt(request_format, target, probe, quiet)
    request_format = replace(request_format, overhead_tokens=_overhead(record))
    warmup = _warmup_plan(plan, config.warmup_requests)
    answers = _send(request_format, target, warmup, quiet, concurrency=pacing.concurrency)
    _refuse_failures(config, [*record.rows, *answers.rows])
    return request_format


def _refuse_failures(config: RemoteConfig, rows: Sequence[RequestRow]) -> None:
    """Raises CbbenchError where no request of the warm-up was answered: none of the run would be."""
    failed = [row for row in rows if row.status == "failed"]
    if not failed or any(row.status == "completed" for row in rows):
        return
    said = " ".join((failed[-1].error or "").split())[:300]
    why = f"the server at {config.url} answered none of the {len(failed)} warm-up requests ({said})"
    raise CbbenchError(None, f"{why}; a warm-up of 0 requests measures it all the same", ExitCode.SERVER)


def not_adapted(request_format: RequestFormat, record: RunRecord) -> tuple[str, ...]:
    """A note where measured requests were refused for what a warm-up, which was not asked for, would have found."""
    refused = _refusal(record) if request_format.config.warmup_requests == 0 else None
    if refused is None:
        return ()
    body = request_format.body(RequestSpec(prompt="", output_tokens=1))
    found = adapted(request_format.config, own_fields(body, request_format.config), refused.error or "")
    if found is None:
        return ()
    return (f"warmup is 0, so that nothing was adapted to the server; with a warm-up: {'; '.join(found[1])}",)


def _adapt(
    request_format: RequestFormat, target: Target, probe: RequestPlan, quiet: WarmupObserver
) -> tuple[RequestFormat, RunRecord]:
    """The format without what the server refuses, and the answers to the probe. Each field is left out or renamed once,
    and ids become text once, so that this ends. Raises CbbenchError where nothing of this helps."""
    while True:
        record = _send(request_format, target, probe, quiet, concurrency=1)
        refused = _refusal(record)
        if refused is None:
            return request_format, record
        config, error = request_format.config, refused.error or ""
        body = request_format.body(RequestSpec(prompt="", output_tokens=1))
        found = adapted(config, own_fields(body, config), error)
        if found is not None:
            request_format = replace(request_format, config=found[0], notes=request_format.notes + found[1])
        elif request_format.as_ids and config.prompt_form == "auto" and not _names_extension(refused):
            request_format = replace(request_format, as_ids=False)
        else:
            raise _explain(config, target, refused)


def _refuse_texts(config: RemoteConfig, texts: PromptTexts) -> None:
    """Raises CbbenchError where the API has no place for what the prompt file holds."""
    if config.prompt_form == "ids":
        why = f"ids, but {texts.file.path} has text, which the server tokenizes itself; want text or auto"
        raise CbbenchError("prompt_form", why)
    if config.api == "chat":
        return
    for row, content in enumerate(texts.file.contents):
        if not isinstance(content, str):
            where = f"{texts.file.path}, line {texts.file.lines[row]}: messages"
            raise CbbenchError("api", f"{where}: {config.api} takes no chats; want chat")


def _not_for_tgi(texts: PromptTexts | None) -> tuple[str, ...]:
    counts = {} if texts is None else texts.file.field_counts()
    unused = [f"{name} ({count:,})" for name, count in counts.items() if name not in tgi.RECORDED]
    if not unused:
        return ()
    return (f"fields of the prompts that TGI does not take, with the number of their lines: {', '.join(unused)}",)


def _send(
    request_format: RequestFormat,
    target: Target,
    plan: RequestPlan,
    quiet: WarmupObserver,
    *,
    concurrency: int | None,
) -> RunRecord:
    """Send a plan whose results are not measured."""
    recorder = LoadRecorder(plan, quiet, ClientStats())
    # Outside the range that measured prompts draw from.
    first_id = request_format.token_ids[0] - 1 if request_format.as_ids else 0
    make = request_format.requests(plan, target, first_id=first_id)
    pacing = Pacing(plan.arrivals_ugap, concurrency=min(concurrency or len(plan), len(plan)))
    load = Load(make, BodyWindow(make, range(len(plan)), count=len(plan)), pacing, recorder)
    config = replace(request_format.config, connections="reuse")
    client = LoadClient(target, config, request_format.interpret, load)
    url = request_format.config.url
    try:
        if not client.prepare(1):
            raise CbbenchError(None, f"no server answers at {url}: {client.refusal}", ExitCode.SERVER)
        if client.run(time.monotonic_ns()) == "gone":
            raise CbbenchError(None, f"the server at {url} went away: {client.refusal}", ExitCode.SERVER)
    finally:
        client.close()
    return recorder.record(interrupted=False)


def _refusal(record: RunRecord) -> RequestRow | None:
    """A request that the server refused as wrong. Other failures show in the measurement."""
    for row in record.rows:
        if row.finish_reason == "http_4xx" and not (row.error or "").startswith(("HTTP 408", "HTTP 429")):
            return row
    return None


def _names_extension(row: RequestRow) -> str | None:
    return next((name for name in EXTENSIONS if name in (row.error or "")), None)


def _explain(config: RemoteConfig, target: Target, row: RequestRow) -> CbbenchError:
    said = " ".join((row.error or "").split())[:300]
    extension = _names_extension(row)
    if extension in ("ignore_eos", "min_tokens"):
        why = f"the server does not take {extension}; turn this off, and answers may be shorter ({said})"
        return CbbenchError("ignore_eos", why)
    if extension is not None:
        return CbbenchError(None, f"the server does not take {extension} ({said})")
    if said.startswith(("HTTP 401", "HTTP 403")):
        return CbbenchError(None, f"{config.key_problem} ({said})")
    if config.model is not None and said.startswith(("HTTP 400", "HTTP 404")) and config.model in said:
        return CbbenchError("model", f"{config.url} does not serve {config.model} ({said})")
    if said.startswith(("HTTP 404", "HTTP 405")):
        return CbbenchError(
            "api", f"{config.url} has no {target.paths.generate}; want {_other_apis(config.api)} ({said})"
        )
    return CbbenchError(None, f"the server refuses the requests: {said}")


def _other_apis(api: Api) -> str:
    return " or ".join(other for other in ENDINGS if other != api)


def _overhead(record: RunRecord) -> int:
    """Tokens that the server adds to every text: equal for both lengths, or it is not known. A prompt that the server
    did not count has its planned length."""
    over = [row.prompt_tokens - PROBE_TOKENS[row.i] for row in record.rows]
    known = len(over) == len(PROBE_TOKENS) and len(set(over)) == 1
    return max(over[0], 0) if known else 0


def _warmup_plan(plan: RequestPlan, count: int) -> RequestPlan:
    """Prompt lengths over the range of the plan's, with short outputs. Each request is its own session, so that its
    prompt is not that of a probe."""
    order = np.argsort(plan.prompt_tokens, kind="stable")
    chosen = order[np.linspace(0, len(plan) - 1, min(count, len(plan))).round().astype(np.int64)]
    outputs = np.minimum(plan.output_tokens[chosen], WARMUP_OUTPUT_TOKENS)
    return RequestPlan.of(plan.prompt_tokens[chosen], outputs, session=np.arange(len(chosen)))
