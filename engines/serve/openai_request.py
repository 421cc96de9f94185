"""The request bodies of the two endpoints, validated into one GenerationRequest. ApiError names the field at fault."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from engines.scheduling.request import Sampling

COMPLETION_TOKENS = 16  # the OpenAI default
MOST_STOPS = 16
_SEED_MASK = (1 << 63) - 1

AtLeast1 = Annotated[int, Meta(ge=1)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both endpoints; null means not given. Unknown fields are ignored."""

    model: str | None = None
    max_tokens: AtLeast1 | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None  # 0 and -1: no limit
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    user: str | None = None

    # Not supported, and they would change the output: only a value that has no effect is accepted.
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    suffix: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    # vLLM's
    min_p: float | None = None
    length_penalty: float | None = None
    use_beam_search: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    chat_template: str | None = None
    continue_final_message: bool | None = None


_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
}
_UNSUPPORTED = ApiRequest.__struct_fields__[ApiRequest.__struct_fields__.index("n") :]


class CompletionRequest(ApiRequest, frozen=True, kw_only=True):
    prompt: str | list[Any]


class ChatRequest(ApiRequest, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: AtLeast1 | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """A validated request of either endpoint, with its defaults filled in."""

    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int
    sampling: Sampling
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    priority: int
    tenant: str
    stream: bool
    include_usage: bool


AnyRequest = TypeVar("AnyRequest", bound=ApiRequest)


def decode(raw: bytes, kind: type[AnyRequest]) -> AnyRequest:
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _api_error(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    for field in _UNSUPPORTED:
        value = getattr(body, field)
        if value and value not in _NO_EFFECT.get(field, ()):
            text = f"{field}: not supported by this server; leave it out"
            raise ApiError(400, text, param=field, code="unsupported_parameter")
    return body


def _api_error(error: msgspec.ValidationError) -> ApiError:
    problem, _, path = str(error).partition(" - at `$")
    if missing := re.search(r"required field `(.*)`", problem):
        return ApiError(400, f"{missing[1]}: is missing", param=missing[1], code="missing_required_parameter")
    param = re.match(r"\.?(\w*)", path)[1] or None  # type: ignore[index]
    problem = problem[:1].lower() + problem[1:].replace("`", "")
    return ApiError(400, f"{param or 'the body'}: {problem}", param=param, code="invalid_value")


def generation_request(body: ApiRequest, prompt: Sequence[int], max_tokens: int) -> GenerationRequest:
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise ApiError(400, f"min_tokens: {min_tokens} is more than max_tokens {max_tokens}", param="min_tokens")
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if not all(stops) or len(stops) > MOST_STOPS:
        raise ApiError(400, f"stop: want up to {MOST_STOPS} strings that are not empty", param="stop")
    return GenerationRequest(
        prompt=prompt,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        sampling=_sampling(body),
        stops=stops,
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        priority=body.priority or 0,
        tenant=body.user or "default",
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _sampling(body: ApiRequest) -> Sampling:
    temperature = 1.0 if body.temperature is None else body.temperature
    seed = secrets.randbits(63) if body.seed is None else body.seed & _SEED_MASK
    return Sampling(temperature, max(body.top_k or 0, 0), 1.0 if body.top_p is None else body.top_p, seed)


def single_prompt(prompt: str | list[Any]) -> str | list[int]:
    """Text or token ids; a list that holds one prompt is that prompt."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ApiError(400, f"prompt: one prompt a request, got {len(prompt)}", param="prompt")
        prompt = prompt[0]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    if isinstance(prompt, str):
        return prompt
    raise ApiError(400, "prompt: want text or token ids", param="prompt")


class ApiError(Exception):
    """An error response, in the shape of the OpenAI API's errors."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """param: the field of the request at fault, if any."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = (
            "rate_limit_error"
            if self.status == 429
            else "server_error"
            if self.status >= 500
            else "invalid_request_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
