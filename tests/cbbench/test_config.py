"""RunSettings: what is refused, what identifies a run, and that a setting is one field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from cbbench.cli.errors import in_flags
from cbbench.cli.options import names_of, options_of, run_options
from cbbench.experiment.sweep_params import parse_params, parse_values
from cbbench.settings.build import build_settings
from cbbench.settings.facts import OURS, setting
from cbbench.settings.run import RunSettings
from cbbench.settings.scheduler import SchedulerSettings
from cbbench.settings.scheduler_config import scheduler_config
from cbbench.settings.sources import read_config_files
from workloads.errors import CbbenchError

SHOWN = [one for one in run_options() if not one.annotation.__metadata__[0].hidden]


def test_every_option_says_its_default() -> None:
    for option in SHOWN:
        assert "Default: " in option.annotation.__metadata__[0].help, option.name


def test_stated_defaults_are_the_real_ones() -> None:
    defaults = build_settings({})
    for option in SHOWN:
        stated = re.search(r"Default: ([\w.-]+)", option.annotation.__metadata__[0].help)
        value = defaults.get(option.name)
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
        ({"pace": 3}, ["pace", "unknown setting"]),
        ({"speed": 3}, ["--speed", "--arrival trace"]),
        ({"speed": 3, "arrival": "trace", "rate": 2}, ["--speed", "--rate"]),
        ({"sample": 3, "tenants": "a;b"}, ["--sample", "--tenants"]),
        ({"column": ["prompts=a"]}, ["--column", "prompts=a", "prompt, output, arrival"]),
        ({"max_num_seq": 3}, ["max-num-seqs"]),
        ({"engine": "openai"}, ["--engine: openai", "--url"]),
        ({"engine": "simulated", "url": "http://127.0.0.1:1"}, ["--url", "--engine simulated"]),
        ({"url": "http://127.0.0.1:1", "mode": "static"}, ["--mode", "--url"]),
        ({"url": "http://127.0.0.1:1", "max_num_seqs": 8}, ["--max-num-seqs", "--url"]),
        ({"api": "chat"}, ["--api", "--url"]),
        ({"step_time_model": "runs/a"}, ["--step-time-model", "--engine simulated"]),
        ({"tenants": "a;b", "arrival": "trace"}, ["--arrival: trace", "--tenants"]),
        ({"preempt_for_priority": True}, ["--preempt-for-priority", "--order priority"]),
        ({"swap_blocks": 4}, ["--swap-blocks", "--on-kv-pressure swap"]),
        ({"prompt_buckets": "512,256"}, ["--prompt-buckets", "ascending"]),
        ({"prompt_buckets": "short"}, ["--prompt-buckets", "512,4096"]),
        ({"quota": ("a:slots=4",)}, ["--quota", "a:slots=4", "max-num-seqs"]),
        ({"quota": ("max-num-seqs=4",)}, ["--quota", "TENANT"]),
        ({"static_patience": 1.0}, ["--static-patience", "--mode static"]),
        ({"static": "padded"}, ["--static", "--mode static"]),
        ({"mode": "static", "admission": "full-prompt"}, ["--admission", "static", "full-reserve"]),
        ({"mode": "static", "chunked_prefill": False}, ["--mode continuous"]),
        ({"on_kv_pressure": "delay", "admission": "full-prompt"}, ["--admission", "delay", "full-reserve"]),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, ["--max-num-batched-tokens", "--max-num-seqs"]),
        ({"arrival": "constant"}, ["--arrival: constant", "--rate"]),
        ({"top_k": 5}, ["--top-k", "--temperature"]),
        ({"sla": ["p99_ttft_ms is low"]}, ["--sla"]),
    ],
)
def test_refused_in_one_line_that_names_the_flag(given: dict[str, object], names: list[str]) -> None:
    with pytest.raises(CbbenchError) as caught:
        build_settings(given)
    message = in_flags(caught.value)
    assert "\n" not in message
    for name in names:
        assert name in message


def test_delay_and_static_imply_full_reserve() -> None:
    for given in ({"on_kv_pressure": "delay"}, {"mode": "static"}, {"mode": "static", "admission": "full-reserve"}):
        scheduler = scheduler_config(build_settings(given), kv_blocks=8, max_model_len=64, max_num_batched_tokens=64)
        assert scheduler.effective_admission == "full-reserve"


def test_hash_is_of_the_work_not_of_how_it_is_judged_or_shown() -> None:
    base = build_settings({})
    assert build_settings({"sla": ["p99_ttft_ms<=5"], "output": "x", "json": True}).config_hash() == base.config_hash()
    assert build_settings({"max_num_seqs": 8}).config_hash() != base.config_hash()
    assert build_settings({"seed": 1}).config_hash() != base.config_hash()


class MoreSchedulerSettings(SchedulerSettings, frozen=True, kw_only=True):
    """One field more: all of the edit that a new flag takes."""

    lookahead: Annotated[
        int | None,
        Meta(
            ge=1,
            le=64,
            description="Steps planned beside `max_num_seqs`. Default: none.",
            extra=setting("N", panel="Scheduler", engines=OURS, mode="continuous", hashed="if-set", served=True),
        ),
    ] = None


class MoreSettings(RunSettings, frozen=True, kw_only=True):
    scheduler: MoreSchedulerSettings = MoreSchedulerSettings()


def test_a_new_flag_is_one_field(tmp_path: Path) -> None:
    """Its option and panel, TOML key, range, sweep, identity and refusals come from it."""
    option = next(one for one in options_of(MoreSettings) if one.name == "lookahead")
    declared = option.annotation.__metadata__[0]
    assert (names_of(declared), declared.metavar, declared.rich_help_panel) == (["--lookahead"], "N", "Scheduler")
    assert declared.help == "Steps planned beside --max-num-seqs. Default: none."
    assert [one.name for one in options_of(MoreSettings, lambda one: one.facts.served)].count("lookahead") == 1

    (tmp_path / "more.toml").write_text("lookahead = 4\n")
    given = read_config_files([tmp_path / "more.toml"], "run", MoreSettings)
    settings = build_settings(given, MoreSettings)
    assert settings.scheduler.lookahead == settings.get("lookahead") == 4

    assert parse_params("lookahead", None, MoreSettings) == ("lookahead",)
    assert parse_values("lookahead", "1,2,4", model=MoreSettings) == [1, 2, 4]
    with pytest.raises(CbbenchError, match="lookahead must be a whole number <= 64, got 65"):
        parse_values("lookahead", "1,65", model=MoreSettings)

    assert build_settings({}, MoreSettings).config_hash() == build_settings({}).config_hash(), "old sweeps resume"
    assert settings.config_hash() != build_settings({"lookahead": 5}, MoreSettings).config_hash()

    for others, words in (
        ({"url": "http://127.0.0.1:9"}, "lookahead: belongs to cbbench's own engine"),
        ({"mode": "static"}, "lookahead: belongs to `mode` continuous"),
    ):
        with pytest.raises(CbbenchError, match=words):
            build_settings({"lookahead": 4, **others}, MoreSettings)


def test_like_sets_a_systems_policies_and_refuses_what_it_lacks() -> None:
    chosen = build_settings({"like": "vllm-v1", "max_num_seqs": 4}).scheduler
    assert (chosen.prefill, chosen.victim, chosen.admission, chosen.watermark) == ("in-order", "last", "prompt-fits", 0)
    assert chosen.max_num_seqs == 4
    same = build_settings({"like": "vllm-v1", "admission": "optimistic", "watermark": 2.0, "victim": "last"}).scheduler
    assert (same.admission, same.watermark) == ("optimistic", 2)
    for given, words in (
        ({"victim": "newest"}, "victim: `like` vllm-v1 has last; drop `victim` or `like`"),
        ({"admission": "peak"}, "admission: `like` vllm-v1 has prompt-fits or optimistic"),
        ({"quota": ["a:kv-blocks=1"]}, "quota: `like` vllm-v1 has none"),
        ({"disaggregate": True}, "disaggregate: `like` vllm-v1 has none"),
        ({"chunked_prefill": False}, "chunked_prefill: `like` vllm-v1 has it on"),
    ):
        with pytest.raises(CbbenchError, match=words):
            build_settings({"like": "vllm-v1", **given})


def test_every_setting_is_refused_by_the_engines_that_have_none() -> None:
    """A server has its own; ours have no server. No setting of an engine slips by."""
    for name, one in RunSettings.all().items():
        if "openai" not in one.facts.engines:
            with pytest.raises(CbbenchError) as caught:
                build_settings({"url": "http://127.0.0.1:9", name: example_of(name)})
            assert caught.value.field == name
        elif one.facts.engines == ("openai",):
            with pytest.raises(CbbenchError) as caught:
                build_settings({name: example_of(name)})
            assert (caught.value.field, "`url`" in caught.value.message) == (name, True)


def example_of(name: str) -> object:
    """Any value that the setting takes by itself."""
    one = RunSettings.all()[name]
    special = {
        "quota": ["a:kv-blocks=1"],
        "tenant_weight": ["a:2"],
        "header": ["X-A: b"],
        "omit": ["temperature"],
        "connections": "new",
        "max_failures": "5%",
        "request_timeout": 5.0,
        "extra_body": "{}",
        "prompt_buckets": "8",
        "workers": "2",
    }
    if name in special:
        return special[name]
    if one.choices:
        return one.choices[0]
    return {int: 1, float: 0.5, bool: True, str: "x"}[one.value_type]


def test_secrets_are_never_shown() -> None:
    with pytest.raises(CbbenchError) as caught:
        build_settings({"url": "http://127.0.0.1:9", "header": 5})
    assert "5" not in str(caught.value)
    assert msgspec.structs.fields(RunSettings)


def test_only_fields_that_cbbench_sends_can_be_omitted() -> None:
    settings = build_settings({"url": "http://127.0.0.1:9", "omit": ["temperature", "user", "temperature"]})
    assert settings.server.omit == ("temperature", "user")
    with pytest.raises(CbbenchError, match=r"want one of model, max_tokens, .* got 'messages'"):
        build_settings({"url": "http://127.0.0.1:9", "omit": ["messages"]})


def test_failures_allowed_are_a_number_or_a_share() -> None:
    for given, count, share in (("0", 0, None), (12, 12, None), ("5%", None, 0.05), ("0%", None, 0.0)):
        allowed = build_settings({"url": "http://127.0.0.1:9", "max_failures": given}).server.max_failures
        assert allowed is not None
        assert (allowed.count, allowed.share) == (count, share)
    for wrong in ("-1", "100%", "many", "%", "nan%", 1.5):
        with pytest.raises(CbbenchError) as caught:
            build_settings({"url": "http://127.0.0.1:9", "max_failures": wrong})
        assert caught.value.field == "max_failures"


def test_connections_are_a_word_or_a_number() -> None:
    for given, meant in (("new", "new"), ("reuse", "reuse"), ("16", 16), (16, 16)):
        assert build_settings({"url": "http://127.0.0.1:9", "connections": given}).server.connections == meant
    for wrong in ("0", -1, "all", "1.5"):
        with pytest.raises(CbbenchError, match="want reuse, new or a whole number"):
            build_settings({"url": "http://127.0.0.1:9", "connections": wrong})


def test_a_setting_is_taken_by_the_name_that_another_system_has_for_it(tmp_path: Path) -> None:
    """In a file, as a flag and in a sweep; both names at once say which is which."""
    path = tmp_path / "cbbench.toml"
    path.write_text("long-prefill-token-threshold = 64\n")
    assert read_config_files([path], "run") == {"max_prompt_chunk": 64}
    assert build_settings({"long_prefill_token_threshold": 64}).scheduler.max_prompt_chunk == 64
    assert parse_params("long-prefill-token-threshold", None) == ("max-prompt-chunk",)
    path.write_text("max-prompt-chunk = 32\nlong-prefill-token-threshold = 64\n")
    with pytest.raises(
        CbbenchError, match="long-prefill-token-threshold is another name of max-prompt-chunk: give one"
    ):
        read_config_files([path], "run")
