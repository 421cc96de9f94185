"""The names that logs and traces give to what a request has, and the unit of a time where its name says it.

source                          prompt               output              arrival
ours                            prompt_tokens        output_tokens       arrival_s
OpenAI `usage`, vLLM, SGLang    prompt_tokens        completion_tokens   created, timestamp
Azure 2023 and 2024             ContextTokens        GeneratedTokens     TIMESTAMP (a date)
BurstGPT                        Request tokens       Response tokens     Timestamp (s)
Mooncake, dynamo, aiperf        input_length         output_length       timestamp (ms)
Vidur, Etalon                   num_prefill_tokens   num_decode_tokens   arrived_at (s)
APEX                            ContextTokens        GeneratedTokens     StartTimeOffset (ns)
LLMServingSim                   input_toks           output_toks         arrival_time_ns
Anthropic `usage`, ServeGen     input_tokens         output_tokens       timestamp
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

TimeUnit = Literal["s", "ms", "us", "ns"]
Part = Literal["prompt", "output", "arrival", "tenant", "priority"]

PROMPT = (
    "prompt_tokens", "ContextTokens", "input_length", "num_prefill_tokens", "Request tokens", "input_tokens",
    "input_toks", "num_prompt_tokens", "prompt_len", "prompt_length", "input_len", "isl",
)  # fmt: skip
OUTPUT = (
    "output_tokens", "GeneratedTokens", "output_length", "num_decode_tokens", "Response tokens", "completion_tokens",
    "output_toks", "num_generation_tokens", "generated_tokens", "output_len", "osl",
)  # fmt: skip
ARRIVAL: dict[str, TimeUnit | None] = {  # None: inferred from the values
    "arrival_s": "s",
    "timestamp": None,
    "TIMESTAMP": None,
    "Timestamp": None,
    "arrived_at": "s",
    "StartTimeOffset": "ns",
    "arrival_time_ns": "ns",
    "startTimeUnixNano": "ns",
    "arrival_time": None,
    "start_time": None,
    "created_at": None,
    "created": None,
    "ts": None,
}
NAMES: dict[Part, tuple[str, ...]] = {
    "prompt": PROMPT,
    "output": OUTPUT,
    "arrival": tuple(ARRIVAL),
    "tenant": ("tenant",),
    "priority": ("priority",),
}
# In these columns a request without tokens is one that failed; in others it is a mistake.
_FAILED_HAVE_NO_TOKENS = frozenset(("Request tokens", "Response tokens", "completion_tokens"))


def parse_columns(texts: list[str]) -> tuple[tuple[Part, str], ...]:
    """From 'prompt=NAME'. Raises ValueError with a one-line message."""
    found: list[tuple[Part, str]] = []
    for text in texts:
        part, equals, name = text.partition("=")
        if part not in NAMES or not equals or not name:
            raise ValueError(f"cannot read '{text}'; want PART=NAME with PART one of {', '.join(NAMES)}")
        if part in dict(found):
            raise ValueError(f"{part} is given twice")
        found.append((part, name))
    return tuple(found)


def first_known(part: Part, names: Iterable[str]) -> str | None:
    """The column that has this part of a request, if one does."""
    there = set(names)
    return next((name for name in NAMES[part] if name in there), None)


def failed_have_no_tokens(*names: str) -> bool:
    """Whether rows with 0 in a column of one of these names are failed requests."""
    return not _FAILED_HAVE_NO_TOKENS.isdisjoint(names)


def unit_of(name: str, beside: Iterable[str]) -> TimeUnit | None:
    """The unit of numbers that count from the start of a log, by the name and the columns beside it; None: unknown."""
    if ARRIVAL.get(name) is not None:
        return ARRIVAL[name]
    for suffix in ("ms", "us", "ns"):
        if name.endswith("_" + suffix):
            return suffix
    there = set(beside)
    if name.endswith("_s") or "Request tokens" in there:
        return "s"
    return "ms" if name == "timestamp" and "input_length" in there else None
