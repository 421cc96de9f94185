"""What a line of a prompt file says of its request beside prompt and lengths: tools, stop strings, sampling, and so on.

A line may be a request as it was sent to the OpenAI API, or one of an OpenAI batch file, which has it under `body`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.file_lines import refuse_line
from workloads.log_names import ARRIVAL

RequestFields = Mapping[str, Any]

# Sent to the server as they stand: of the OpenAI API, and the extensions of vLLM and SGLang.
SENT = frozenset(
    (
        "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "stop",
        "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "suffix", "reasoning_effort", "reasoning",
        "verbosity", "service_tier", "chat_template_kwargs", "stop_token_ids", "structured_outputs", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "json_schema", "regex", "ebnf",
    )
)  # fmt: skip
# Read into the plan, or set by cbbench for every request.
_USED = frozenset(
    (
        "prompt", "messages", "text", "prompt_tokens", "output_tokens", "output_length", "max_tokens",
        "max_completion_tokens", "completion_tokens", "total_tokens", *ARRIVAL, "tenant", "priority", "stream",
        "stream_options", "custom_id", "n", "best_of", "_vllm",
    )
)  # fmt: skip
_PROMPTS = (
    "prompt",
    "messages",
    "prompt_tokens",
    "input_length",
    "input_tokens",
)  # beside a length, a text is not a prompt
_BATCH = ("custom_id", "method", "url", "body")


def request_of(row: dict[str, Any]) -> dict[str, Any]:
    """The request of a line: that under `body`, for a line of a batch file; `text` and `text_input` are `prompt`."""
    if isinstance(body := row.get("body"), dict):
        row = {name: value for name, value in row.items() if name not in _BATCH} | body
    for other in ("text", "text_input"):
        if other in row and row.keys().isdisjoint(_PROMPTS):
            row = {("prompt" if name == other else name): value for name, value in row.items()}
    return row


def fields_of(path: Path, line: int, row: Mapping[str, Any]) -> tuple[RequestFields, list[str]]:
    """(the fields of a request that are sent with it, the names of those that are not).

    Raises CbbenchError, which names the line, for a request of several answers: they have no one TTFT.
    """
    for name in ("n", "best_of"):
        if row.get(name) not in (None, 1):
            refuse_line(path, line, f"{name} is {row[name]!r}; want 1, as several answers have no one TTFT")
    sent = {name: value for name, value in row.items() if name in SENT and value is not None}
    return sent, [name for name in row if name not in SENT and name not in _USED]
