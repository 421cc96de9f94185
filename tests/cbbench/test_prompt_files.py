"""--workload prompts.jsonl through the whole command line: our engine, a real server of it, the simulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.reference import load_model
from engines.scheduling.config import SchedulerConfig
from engines.serve.server import reference_server
from reports.folder import read_record, read_run
from tests.cbbench.conftest import Outcome
from tests.engines.serve.serving import Running, serving
from tests.wire.fake import FakeServer, plain
from workloads.spec import build_plan

Call = Callable[..., Outcome]
CHAT = [{"role": "user", "content": "Why?"}]
AS_PLAIN_CHAT = "user: Why?\nassistant:"  # by the template of models without one
ROWS: list[dict[str, Any]] = [
    {"prompt": "Tell me a joke.", "output_tokens": 3, "tenant": "acme"},
    {"messages": CHAT, "max_tokens": 4, "priority": 1},
    {"prompt": "naïve", "output_tokens": 5},
]
LENGTHS = [15, len(AS_PLAIN_CHAT), 6]  # of random weights a token is a byte
OURS = ("--model", "tiny", "--device", "cpu", "--max-model-len", 128)


@pytest.fixture(autouse=True)
def prompts(own_folder: Path) -> Path:
    path = Path("prompts.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    threads = torch.get_num_threads()
    model = load_model("tiny", dtype="fp32")  # turns torch to one thread
    config = SchedulerConfig(kv_blocks=128, max_model_len=512, max_num_seqs=4)
    with serving(reference_server(model, config, name="tiny", random_weights=True)) as running:
        yield running
    torch.set_num_threads(threads)


def lengths_in(folder: str) -> list[tuple[int, int]]:
    rows = sorted(read_record(Path(folder)).rows, key=lambda row: row.i)
    assert {row.status for row in rows} == {"completed"}
    return [(row.prompt_tokens, row.output_tokens) for row in rows]


def test_our_engine_reads_them_with_the_models_tokenizer(cbbench: Call) -> None:
    outcome = cbbench("run", *OURS, "--workload", "prompts.jsonl", "-o", "out")
    assert outcome.code == 0, outcome.err
    assert lengths_in("out") == list(zip(LENGTHS, (3, 4, 5), strict=True))
    run = read_run(Path("out"))
    assert run.workload.prompts is not None
    assert (run.workload.prompts.source, run.workload.prompts.prompts) == ("prompts.jsonl", 3)
    assert run.workload.prompts.counted_by == "tokenizer"
    assert run.workload.realised["prompt_tokens"]["max"] == max(LENGTHS)
    assert "acme" in outcome.out, "a line's tenant is one of the report's"


def test_a_server_reads_them_as_our_engine_does(cbbench: Call, server: Running) -> None:
    outcome = cbbench(
        "run", "--url", server.url, "--api", "chat", "--workload", "prompts.jsonl", "-o", "out", "--warmup", 2
    )
    assert outcome.code == 0, outcome.err
    # Behind /v1/chat/completions a prompt is a user's message too.
    chats = [len(f"user: {row['prompt']}\nassistant:".encode()) if "prompt" in row else LENGTHS[1] for row in ROWS]
    assert lengths_in("out") == list(zip(chats, (3, 4, 5), strict=True))
    run = read_run(Path("out"))
    assert run.workload.prompts is not None
    assert run.workload.prompts.counted_by == "server"
    assert run.workload.realised["prompt_tokens"] is None, "what was not counted before the run is not shown"
    assert any("has the same text in every run" in note for note in run.notes)


def test_completions_have_the_lengths_of_our_engine(cbbench: Call, server: Running) -> None:
    Path("two.jsonl").write_text("".join(json.dumps(ROWS[i]) + "\n" for i in (0, 2)))
    assert cbbench("run", "--url", server.url, "--workload", "two.jsonl", "-o", "out").code == 0
    assert lengths_in("out") == [(15, 3), (6, 5)]


def test_more_requests_than_prompts_say_so(cbbench: Call) -> None:
    outcome = cbbench("run", *OURS, "--workload", "prompts.jsonl", "--num-requests", 7, "-o", "out")
    assert outcome.code == 0, outcome.err
    said = "prompts.jsonl has 3 prompts, repeated in an order drawn from the seed to make 7 requests"
    assert said in outcome.err
    assert said in " ".join(outcome.out.split())
    assert said in read_run(Path("out")).notes


def test_what_a_file_says_is_no_command_to_the_terminal(cbbench: Call, prompts: Path) -> None:
    """Neither Rich's markup nor an escape sequence."""
    rows = [{"prompt": "[/b]\x1b[31m red", "output_tokens": 2, "tenant": tenant} for tenant in ("[/a]", "b")]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = cbbench("run", *OURS, "--workload", "prompts.jsonl", "-o", "out")
    assert outcome.code == 0, outcome.err
    assert "[/a]" in outcome.out
    sample = cbbench("workload", "sample", "prompts.jsonl")
    assert "[/b] [31m red" in sample.out
    assert "\x1b" not in sample.out


def test_a_sweep_from_the_file_of_settings(cbbench: Call) -> None:
    Path("cbbench.toml").write_text('workload = "prompts.jsonl"\nmax-model-len = 128\n')
    outcome = cbbench("sweep", "max-num-seqs", "--values", "1,2", "--model", "tiny", "--device", "cpu", "-o", "out")
    assert outcome.code == 0, outcome.err
    runs = [read_run(Path("out") / f"max-num-seqs-{slots}") for slots in (1, 2)]
    assert len({run.workload.sha256 for run in runs}) == 1
    assert len({run.workload.prompts.sha256 for run in runs if run.workload.prompts}) == 1


def test_a_sweep_does_not_go_on_with_other_prompts_of_the_same_lengths(cbbench: Call, prompts: Path) -> None:
    sweep = ("sweep", "max-num-seqs", *OURS, "--workload", "prompts.jsonl", "-o", "out", "--values")
    assert cbbench(*sweep, "1").code == 0
    assert cbbench(*sweep, "1,2").code == 0
    prompts.write_text(prompts.read_text().replace("joke", "tale"))
    outcome = cbbench(*sweep, "1,2,4")
    assert outcome.code == 2
    assert "a point 1 that was measured with other settings" in outcome.error_line


def test_the_simulator_reads_them_with_the_tokenizer_of_its_model(cbbench: Call) -> None:
    simulated = ("run", "--engine", "simulated", "--hardware", "h100", "--workload", "prompts.jsonl")
    assert cbbench(*simulated, "--model", "tiny", "--max-model-len", 128, "-o", "out").code == 0
    assert [prompt for prompt, _ in lengths_in("out")] == LENGTHS
    assert cbbench("run", *OURS, "--workload", "prompts.jsonl", "-o", "ours").code == 0
    assert read_run(Path("out")).workload.sha256 == read_run(Path("ours")).workload.sha256
    unread = cbbench(*simulated, "--model", "llama-3.1-8b")
    assert unread.code == 2
    assert "give each line its prompt_tokens" in unread.error_line


def test_the_simulator_takes_the_files_own_counts(cbbench: Call) -> None:
    Path("counted.jsonl").write_text('{"prompt": "abc", "prompt_tokens": 40, "output_tokens": 2}\n')
    simulated = ("run", "--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b")
    assert cbbench(*simulated, "--workload", "counted.jsonl", "-o", "out").code == 0
    assert lengths_in("out") == [(40, 2)]
    caching = cbbench(*simulated, "--workload", "counted.jsonl", "--prefix-caching")
    assert caching.code == 2
    assert "--prefix-caching" in caching.error_line


def test_prompts_that_begin_alike_are_cached(cbbench: Call) -> None:
    shared = "The same words at the beginning, of more than two blocks; "
    Path("alike.jsonl").write_text("".join(f'{{"prompt": "{shared}{i}", "output_tokens": 2}}\n' for i in range(3)))
    work = ("--workload", "alike.jsonl", "--concurrency", 1, "--prefix-caching")
    assert cbbench("run", *OURS, *work, "-o", "out").code == 0
    waste = read_run(Path("out")).summary.waste  # type: ignore[union-attr]
    assert waste is not None
    asked = sum(sum(one) for one in lengths_in("out"))
    assert waste.launched_tokens <= asked - 2 * (len(shared) // 16 * 16), "two of three found the blocks of the first"


def test_compare_tells_prompts_of_the_same_lengths_apart(cbbench: Call) -> None:
    for name, words in (("a", "abcd"), ("b", "wxyz")):
        Path(f"{name}.jsonl").write_text(f'{{"prompt": "{words}", "output_tokens": 2}}\n')
        assert cbbench("run", *OURS, "--workload", f"{name}.jsonl", "-o", name).code == 0
    outcome = cbbench("compare", "a", "b")
    assert "different texts" in outcome.out
    assert "different texts" not in cbbench("compare", "a", "a").out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": 5}', "prompts.jsonl, line 1: prompt must be a string"),
        ('{"messages": [{"role": "user"}], "max_tokens": 0}', "prompts.jsonl, line 1: max_tokens is 0"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "line 1: messages: messages[0].content",
        ),
        ('{"prompt": "' + "a" * 200 + '"}', "request 0 (line 1) with prompt 200"),
    ],
)
def test_refused_by_file_line_and_field(cbbench: Call, prompts: Path, line: str, words: str) -> None:
    prompts.write_text(line + "\n")
    outcome = cbbench("run", *OURS, "--workload", "prompts.jsonl")
    assert outcome.code == 2
    assert words in outcome.error_line
    assert not Path("runs").exists()


def test_chats_need_the_chat_api(cbbench: Call) -> None:
    with FakeServer() as server:
        run = ("run", "--url", server.url, "--workload", "prompts.jsonl", "--warmup", 0, "--no-scrape", "-o", "runs/p1")
        outcome = cbbench(*run)
        assert outcome.code == 2
        assert "--api: prompts.jsonl, line 2: messages: completions takes no chats; want chat" in outcome.error_line
        assert not Path("runs").exists(), "a refused run leaves nothing that the next one would stumble over"
        assert cbbench(*run, "--api", "chat").code in (0, 5)
        series = " ".join(map(str, run[1:-2]))
        assert cbbench("compare", "--aa", series, "--pairs", 2, "-o", "aa").code == 2
    assert not Path("aa").exists()


def test_a_server_that_refuses_leaves_no_folder(cbbench: Call) -> None:
    with FakeServer(lambda call: call.send(plain("404 Not Found"))) as server:
        outcome = cbbench("run", "--url", server.url, "--workload", "prompts.jsonl", "--api", "chat", "-o", "out")
    assert outcome.code == 2, outcome.err
    assert not Path("out").exists()


def test_describe_and_a_sample_that_is_a_file_again(cbbench: Call) -> None:
    described = cbbench("workload", "describe", "prompts.jsonl")
    assert described.code == 0
    assert "estimates, a token for 4 bytes" in " ".join(described.out.split())
    sample = cbbench("workload", "sample", "prompts.jsonl", "--count", 3, "--format", "jsonl")
    Path("again.jsonl").write_text(sample.out)
    for name in ("prompts", "again"):
        assert cbbench("run", *OURS, "--workload", f"{name}.jsonl", "-o", name).code == 0
    first, again = (read_run(Path(name)).workload for name in ("prompts", "again"))
    assert first.sha256 == again.sha256
    assert first.prompts is not None
    assert again.prompts is not None
    assert first.prompts.sha256 == again.prompts.sha256
    assert "Tell me a joke." in cbbench("workload", "sample", "prompts.jsonl").out
    assert cbbench("workload", "sample", "prompts.jsonl", "--format", "csv").code == 2


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
RECORDED: dict[str, Any] = {
    "model": "other", "messages": CHAT, "tools": [TOOL], "tool_choice": "required", "temperature": 0.7, "stop": ["\n"],
    "response_format": {"type": "json_object"}, "max_tokens": 12,
}  # fmt: skip
BATCH_LINE = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": RECORDED}


@pytest.mark.parametrize("line", [RECORDED, BATCH_LINE], ids=["request", "batch"])
def test_a_recorded_request_reaches_the_server_as_it_was(cbbench: Call, line: dict[str, Any]) -> None:
    Path("recorded.jsonl").write_text(json.dumps(line) + "\n")
    with FakeServer() as server:
        outcome = cbbench("run", "--url", server.url, "--api", "chat", "--workload", "recorded.jsonl", "--warmup", 0)
    assert outcome.code == 0, outcome.err
    (body,) = server.bodies
    for name in ("messages", "tools", "tool_choice", "temperature", "stop", "response_format", "max_tokens"):
        assert body[name] == RECORDED[name]
    assert body["model"] != "other"
    assert "fields that are not sent, with the number of their lines: model (1)" in outcome.err


def test_extra_body_replaces_a_recorded_field(cbbench: Call) -> None:
    Path("recorded.jsonl").write_text(json.dumps(RECORDED) + "\n")
    extra = json.dumps({"stop": ["END"]})
    with FakeServer() as server:
        outcome = cbbench(
            "run", "--url", server.url, "--api", "chat", "--workload", "recorded.jsonl", "--warmup", 0,
            "--extra-body", extra, "--omit", "temperature",
        )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (body,) = server.bodies
    assert body["stop"] == ["END"]
    assert "temperature" not in body


def test_our_engine_says_which_fields_it_does_not_use(cbbench: Call) -> None:
    Path("recorded.jsonl").write_text(json.dumps(RECORDED) + "\n")
    outcome = cbbench("run", *OURS, "--workload", "recorded.jsonl", "-o", "out")
    assert outcome.code == 0, outcome.err
    assert "fields that this engine does not use, with the number of their lines: tools (1)" in outcome.err


def test_fields_are_part_of_the_texts_identity(tmp_path: Path) -> None:
    def identity(line: dict[str, Any]) -> str:
        path = tmp_path / "p.jsonl"
        path.write_text(json.dumps(line) + "\n")
        plan = build_plan(str(path), num_requests=1, seed=0, arrival="constant", max_model_len=None)
        assert plan.texts is not None
        return plan.texts.sha256

    plain_line = {"messages": CHAT, "max_tokens": 12}
    assert identity(plain_line) != identity(plain_line | {"stop": ["x"]}) != identity(plain_line | {"stop": ["y"]})
    assert identity(plain_line) == identity(plain_line | {"model": "other"})


def test_several_answers_to_a_request_are_refused(cbbench: Call) -> None:
    Path("recorded.jsonl").write_text(json.dumps(RECORDED | {"n": 4}) + "\n")
    outcome = cbbench("run", *OURS, "--workload", "recorded.jsonl", "-o", "out")
    assert outcome.code == 2
    assert "recorded.jsonl, line 1: n is 4; want 1, as several answers have no one TTFT" in " ".join(
        outcome.err.split()
    )


def test_a_line_with_text(cbbench: Call) -> None:
    Path("texts.jsonl").write_text(json.dumps({"text": "What is it?", "output_length": 3}) + "\n")
    assert cbbench("run", *OURS, "--workload", "texts.jsonl", "-o", "out").code == 0
    assert lengths_in("out") == [(11, 3)]
