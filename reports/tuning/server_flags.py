"""A setting as a cbbench.toml and as the equivalent flags of vLLM and SGLang.

vLLM: docs.vllm.ai, `vllm serve`; SGLang: docs.sglang.ai, server arguments. vLLM's long-prefill-token-threshold limits
the tokens of one prompt in a step as max_prompt_chunk does (v1/core/sched/scheduler.py). Neither has the order
shortest-prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.sweep_schema import Value

VLLM = {
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "max_model_len": "max-model-len",
    "kv_blocks": "num-gpu-blocks-override",
    "block_size": "block-size",
    "max_prompt_chunk": "long-prefill-token-threshold",
}
SGLANG = {
    "max_num_seqs": "max-running-requests",
    "max_num_batched_tokens": "chunked-prefill-size",
    "max_model_len": "context-length",
    "block_size": "page-size",
}


def toml_of(settings: Mapping[str, Any], comment: str) -> str:
    """A cbbench.toml; settings by field name."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name.replace('_', '-')} = {_toml(value)}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def vllm_flags(settings: Mapping[str, Value]) -> tuple[str, list[str]]:
    """(flags, settings without a flag)."""
    flags = [_flag(VLLM[name], value) for name, value in settings.items() if name in VLLM]
    flags += [_switch("enable-prefix-caching", settings["prefix_caching"])] if "prefix_caching" in settings else []
    flags += [_switch("enable-chunked-prefill", settings["chunked_prefill"])] if "chunked_prefill" in settings else []
    return " ".join(flags), _without(settings, {*VLLM, "prefix_caching", "chunked_prefill"})


def sglang_flags(settings: Mapping[str, Value]) -> tuple[str, list[str]]:
    """(flags, settings without a flag). SGLang sizes its KV pool in tokens, not blocks."""
    flags = [_flag(SGLANG[name], value) for name, value in settings.items() if name in SGLANG]
    if "kv_blocks" in settings and "block_size" in settings:
        flags.append(_flag("max-total-tokens", int(settings["kv_blocks"]) * int(settings["block_size"])))
    flags += [_switch("disable-radix-cache", True)] if settings.get("prefix_caching") is False else []
    return " ".join(flags), _without(settings, {*SGLANG, "kv_blocks", "prefix_caching"})


def _flag(name: str, value: Value) -> str:
    return f"--{name} {value}"


def _switch(name: str, on: Value) -> str:
    return f"--{name}" if on else f"--no-{name}"


def _without(settings: Mapping[str, Value], known: set[str]) -> list[str]:
    return [name.replace("_", "-") for name in settings if name not in known]


def _toml(value: Any) -> str:
    """These values are written in TOML as in JSON."""
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
