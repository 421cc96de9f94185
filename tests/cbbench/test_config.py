"""RunConfig: what is refused, what identifies a run, and that every field is a flag."""

from __future__ import annotations

import re

import pytest

from cbbench.cli.options import RUN_OPTIONS
from cbbench.config import FIELDS, UsageError
from cbbench.validation import build_config, choices
from engines.base import EngineError


def test_options_and_fields_agree() -> None:
    options = {option.name: option.annotation.__metadata__[0] for option in RUN_OPTIONS}
    assert set(options) == set(FIELDS)
    for field, declaration in options.items():
        for word in choices(field):
            assert word in declaration.help, f"{field} {word}"


def test_every_option_says_its_default() -> None:
    for option in RUN_OPTIONS:
        assert "Default: " in option.annotation.__metadata__[0].help, option.name


def test_stated_defaults_are_the_real_ones() -> None:
    defaults = build_config({})
    for option in RUN_OPTIONS:
        stated = re.search(r"Default: ([\w.-]+)", option.annotation.__metadata__[0].help)
        value = getattr(defaults, option.name)
        if stated and value is not None and value is not False and value != ():
            words = ("on",) if value is True else (str(value), f"{value:g}" if isinstance(value, float) else "")
            assert stated[1].rstrip(".") in words, option.name


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"num_requests": 0}, ["--num-requests", ">= 1", "0"]),
        ({"num_requests": "many"}, ["--num-requests", "whole number", "'many'"]),
        ({"rate": 0}, ["--rate", ">= 1e-06"]),
        ({"mode": "batch"}, ["--mode", "'batch'", "continuous, static"]),
        ({"top_p": 1.5, "temperature": 1.0}, ["--top-p", "<= 1"]),
        ({"confidence": 1.0}, ["--confidence", "< 1"]),
        ({"watermark": 100}, ["--watermark", "< 100"]),
        ({"speed": 3}, ["--speed", "unknown setting"]),
        ({"max_num_seq": 3}, ["max-num-seqs"]),
        ({"engine": "openai"}, ["--engine openai", "--url"]),
        ({"engine": "simulated", "url": "http://127.0.0.1:1"}, ["--url", "--engine simulated"]),
        ({"url": "http://127.0.0.1:1", "mode": "static"}, ["--mode", "--url"]),
        ({"url": "http://127.0.0.1:1", "max_num_seqs": 8}, ["--max-num-seqs", "--url"]),
        ({"api": "chat"}, ["--api", "--url"]),
        ({"law": "runs/a"}, ["--law", "--engine simulated"]),
        ({"tenants": "a;b", "arrival": "trace"}, ["--arrival trace", "--tenants"]),
        ({"preempt_for_priority": True}, ["--preempt-for-priority", "--order priority"]),
        ({"swap_blocks": 4}, ["--swap-blocks", "--on-kv-pressure swap"]),
        ({"prompt_buckets": "512,256"}, ["--prompt-buckets", "ascending"]),
        ({"prompt_buckets": "short"}, ["--prompt-buckets", "512,4096"]),
        ({"quota": ("a:seats=4",)}, ["--quota", "a:seats=4", "rows"]),
        ({"quota": ("rows=4",)}, ["--quota", "TENANT"]),
        ({"static_patience": 1.0}, ["--static-patience", "--mode static"]),
        ({"static": "padded"}, ["--static", "--mode static"]),
        ({"mode": "static", "admission": "full-prompt"}, ["--admission", "static", "full-reserve"]),
        ({"mode": "static", "chunked_prefill": False}, ["--mode continuous"]),
        ({"on_kv_pressure": "delay", "admission": "full-prompt"}, ["--admission", "delay", "full-reserve"]),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, ["--max-num-batched-tokens", "--max-num-seqs"]),
        ({"arrival": "constant"}, ["--arrival constant", "--rate"]),
        ({"top_k": 5}, ["--top-k", "--temperature"]),
        ({"sla": ["p99_ttft_ms is low"]}, ["--sla"]),
    ],
)
def test_refused_in_one_line_that_names_the_flag(given: dict[str, object], names: list[str]) -> None:
    with pytest.raises((UsageError, EngineError)) as caught:
        build_config(given)
    message = str(caught.value)
    assert "\n" not in message
    for name in names:
        assert name in message


def test_delay_and_static_imply_full_reserve() -> None:
    for given in ({"on_kv_pressure": "delay"}, {"mode": "static"}, {"mode": "static", "admission": "full-reserve"}):
        scheduler = build_config(given).scheduler(kv_blocks=8, max_model_len=64, max_num_batched_tokens=64)
        assert scheduler.effective_admission == "full-reserve"


def test_hash_is_of_the_work_not_of_how_it_is_judged_or_shown() -> None:
    base = build_config({})
    assert build_config({"sla": ["p99_ttft_ms<=5"], "output": "x", "json": True}).config_hash() == base.config_hash()
    assert build_config({"max_num_seqs": 8}).config_hash() != base.config_hash()
    assert build_config({"seed": 1}).config_hash() != base.config_hash()
