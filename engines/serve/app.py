"""The HTTP side: the OpenAI API's endpoints over an EngineThread. All of it runs on the event loop's thread."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from engines.scheduling.request import Request
from engines.serve.api_key import ApiKeys
from engines.serve.detokenizer import Detokenizer
from engines.serve.engine import EngineThread, TokenStream
from engines.serve.metrics import Metrics
from engines.serve.middlewares import as_json, errors_as_json, only_with
from engines.serve.openai_request import (
    COMPLETION_TOKENS,
    ApiError,
    ApiRequest,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    decode,
    generation_request,
    single_prompt,
)
from engines.serve.openai_response import ApiResponse, event, usage
from engines.tokenizers.chat_template import TemplateError, plain_messages
from engines.tokenizers.model_text import ModelText

BODY_BYTES = 64 << 20  # a prompt of a million token ids fits
SHORT_CHARACTERS = 4096  # up to here, tokenising takes less than a millisecond


@dataclass(frozen=True)
class ServedModel:
    """The served model, as the API describes it."""

    name: str
    vocab: int
    max_model_len: int
    kv_tokens: int  # positions in the whole KV pool


def make_app(api: Api, keys: ApiKeys | None = None) -> web.Application:
    """keys: who may use /v1; health and metrics are open, as in vLLM. None: all."""
    checks = () if keys is None else (only_with(keys),)
    app = web.Application(middlewares=(errors_as_json, *checks), client_max_size=BODY_BYTES)
    app.router.add_get("/health", api.health)
    app.router.add_get("/metrics", api.metrics)
    app.router.add_get("/v1/models", api.models)
    app.router.add_post("/v1/completions", api.completions)
    app.router.add_post("/v1/chat/completions", api.chat)
    return app


class Api:
    def __init__(self, engine: EngineThread, text: ModelText, served: ServedModel, metrics: Metrics) -> None:
        self._engine = engine
        self._text = text
        self._served = served
        self._metrics = metrics
        self._indices = itertools.count()
        self._started_s = int(time.time())

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def models(self, request: web.Request) -> web.Response:
        model = {
            "id": self._served.name,
            "object": "model",
            "created": self._started_s,
            "owned_by": "cbbench",
            "max_model_len": self._served.max_model_len,  # as in vLLM
            "vocab_size": self._served.vocab,  # of cbbench: valid token ids are below it
        }
        return as_json({"object": "list", "data": [model]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        arrived_ns = self._engine.now_ns()
        body = decode(await request.read(), CompletionRequest)
        prompt = single_prompt(body.prompt)
        if isinstance(prompt, str):
            prompt = await self._tokens(prompt, raw=True)
        generation = generation_request(body, prompt, body.max_tokens or COMPLETION_TOKENS)
        objects = ApiResponse("completions", self._served.name, generation.include_usage)
        return await self._respond(request, body, generation, objects, arrived_ns)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        arrived_ns = self._engine.now_ns()
        body = decode(await request.read(), ChatRequest)
        if self._text.template is None:
            raise ApiError(400, "the model has no chat template; use /v1/completions", param="messages")
        try:
            rendered = self._text.template.render(plain_messages(body.messages))
        except TemplateError as error:
            raise ApiError(400, str(error), param="messages") from None
        prompt = await self._tokens(rendered, raw=False)
        room = min(self._served.max_model_len, self._served.kv_tokens + 1) - len(prompt)
        generation = generation_request(body, prompt, body.max_completion_tokens or body.max_tokens or max(room, 1))
        objects = ApiResponse("chat", self._served.name, generation.include_usage)
        return await self._respond(request, body, generation, objects, arrived_ns)

    async def _tokens(self, text: str, *, raw: bool) -> list[int]:
        if len(text) <= SHORT_CHARACTERS:
            return self._text.tokenizer.encode(text, raw=raw)
        return await asyncio.to_thread(self._text.tokenizer.encode, text, raw=raw)

    async def _respond(
        self, http: web.Request, body: ApiRequest, generation: GenerationRequest, objects: ApiResponse, arrived_ns: int
    ) -> web.StreamResponse:
        self._check(body, generation)
        detokenizer = Detokenizer(self._text.tokenizer.token_bytes, generation.stops, generation.min_tokens)
        async with self._opened(generation, arrived_ns) as stream:
            if generation.stream:
                return await self._streamed(http, stream, detokenizer, objects)
            shown = "".join([piece async for piece in _pieces(stream, detokenizer)])
            used = usage(len(generation.prompt), detokenizer.output_tokens)
            return as_json(objects.whole(shown, self._answered(stream, detokenizer), used))

    def _check(self, body: ApiRequest, generation: GenerationRequest) -> None:
        name, prompt = self._served.name, generation.prompt
        if body.model is not None and body.model != name:
            text = f"model: {body.model!r} is not served here, {name!r} is"
            raise ApiError(404, text, param="model", code="model_not_found")
        if not prompt:
            raise ApiError(400, "prompt: is empty", param="prompt")
        for field, ids in (("prompt", prompt), ("stop_token_ids", generation.stop_token_ids)):
            if ids and (min(ids) < 0 or max(ids) >= self._served.vocab):
                raise ApiError(400, f"{field}: token ids are 0 to {self._served.vocab - 1}", param=field)
        if not self._engine.ready:
            raise ApiError(503, "the server is shutting down")

    @asynccontextmanager
    async def _opened(self, generation: GenerationRequest, arrived_ns: int) -> AsyncIterator[TokenStream]:
        """The engine runs the request until the block is left, also when the client disconnects."""
        request = Request(
            next(self._indices),
            len(generation.prompt),
            generation.max_tokens,
            prompt=np.array(generation.prompt, dtype=np.int32),
            tenant=generation.tenant,
            priority=generation.priority,
            scheduled_ns=arrived_ns,
            sent_ns=arrived_ns,
            ignore_eos=generation.ignore_eos,
            min_output_tokens=generation.min_tokens,
            stop_token_ids=generation.stop_token_ids,
            sampling=generation.sampling,
        )
        stream = self._engine.open(request)
        try:
            yield stream
        finally:
            self._engine.cancel(stream)
            if not stream.answered and request.finish_reason != "rejected":
                stream.answered = True
                self._metrics.answered(stream, "abort", request.output_tokens, self._engine.now_ns())

    def _answered(self, stream: TokenStream, detokenizer: Detokenizer) -> str:
        """All of the answer's text is there. Returns why it ends; the metrics count it."""
        reason = "stop" if detokenizer.stopped else str(stream.request.finish_reason)
        ended_ns = stream.last_ns if detokenizer.stopped else stream.ended_ns
        stream.answered = True
        self._metrics.answered(stream, reason, detokenizer.output_tokens, ended_ns or self._engine.now_ns())
        return reason

    async def _streamed(
        self, http: web.Request, stream: TokenStream, detokenizer: Detokenizer, objects: ApiResponse
    ) -> web.StreamResponse:
        """Headers go out with the first token, so a request rejected before that gets an error status."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def write(events: bytes) -> None:
            if not response.prepared:
                await response.prepare(http)
                events = objects.opening() + events
            await response.write(events)

        try:
            async for piece in _pieces(stream, detokenizer):
                await write(objects.piece(piece))
            used = usage(stream.request.prompt_tokens, detokenizer.output_tokens)
            await write(objects.finish(self._answered(stream, detokenizer)) + objects.closing(used))
        except ApiError as refusal:
            if not response.prepared:
                raise
            await response.write(event(refusal.body()))
        await response.write_eof()
        return response


async def _pieces(stream: TokenStream, detokenizer: Detokenizer) -> AsyncIterator[str]:
    """The output text as it arrives: one piece, possibly empty, each time tokens arrive.

    ApiError where the engine rejected or aborted the request.
    """
    while not (stream.ended or detokenizer.stopped):
        tokens = await stream.wait_tokens()
        piece = _push_all(detokenizer, tokens)
        if stream.ended and not detokenizer.stopped:
            piece += detokenizer.end()
        if tokens or piece:
            yield piece
    if not detokenizer.stopped:
        _raise_if_failed(stream)


def _push_all(detokenizer: Detokenizer, tokens: Sequence[int]) -> str:
    shown = ""
    for token in tokens:
        shown += detokenizer.push(token)
        if detokenizer.stopped:
            break
    return shown


def _raise_if_failed(stream: TokenStream) -> None:
    reason, error = stream.request.finish_reason, stream.request.error
    if reason in ("stop", "length"):
        return
    if reason == "rejected" and stream.refused:
        raise ApiError(
            400, f"the request can never run here: {error}", param="max_tokens", code="context_length_exceeded"
        )
    if reason == "rejected":
        raise ApiError(429, f"rejected under load: {error}", code="rate_limit_exceeded")
    if reason == "aborted":
        raise ApiError(503, "the server is shutting down")
    raise ApiError(500, "the engine has ended")
