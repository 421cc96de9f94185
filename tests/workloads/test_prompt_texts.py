"""Files of prompts: what a line may say, what is refused and where, and what is the same plan."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.errors import CbbenchError
from workloads.plan import RequestPlan
from workloads.prompt_texts import BYTES_PER_TOKEN, DEFAULT_OUTPUT_TOKENS, Content, PromptTexts, estimated_tokens
from workloads.prompts import Prompts
from workloads.spec import build_plan, open_workload, suggestions
from workloads.tenant_plan import build_tenant_plan

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def notes_of(plan: RequestPlan) -> dict[str, str]:
    return {note.kind: note.text for note in plan.notes}


def file_of(tmp_path: Path, *rows: Any, name: str = "p.jsonl") -> str:
    path = tmp_path / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(path)


def plan_of(spec: str, n: int, **more: Any) -> RequestPlan:
    return build_plan(spec, num_requests=n, **({"seed": 0, "arrival": "poisson", "max_model_len": None} | more))


def texts_of(plan: RequestPlan) -> PromptTexts:
    assert plan.texts is not None
    return plan.texts


def letters(content: Content) -> list[int]:
    """A tokenizer: a letter is a token; a chat has two more for its template."""
    said = content if isinstance(content, str) else "ab" + "".join(str(one["content"]) for one in content)
    return [ord(letter) for letter in said]


def test_what_a_line_may_say(tmp_path: Path) -> None:
    spec = file_of(
        tmp_path,
        {"prompt": "abcd", "output_tokens": 5, "tenant": "acme", "priority": 2},
        "",
        {"messages": CHAT, "max_tokens": 6},
        {"prompt": "x" * 9, "max_completion_tokens": 7, "something": "else"},
        {"prompt": "é", "output_length": "8"},
        {"prompt": "none"},
    )
    plan = plan_of(spec, 5)
    assert plan.output_tokens.tolist() == [5, 6, 7, 8, DEFAULT_OUTPUT_TOKENS]
    assert plan.tenants == ("acme", "default")
    assert plan.priority.tolist() == [2, 0, 0, 0, 0]
    texts = texts_of(plan)
    assert [texts.content(i) for i in range(5)] == ["abcd", tuple(CHAT), "x" * 9, "é", "none"]
    assert [texts.line(i) for i in range(5)] == [1, 3, 4, 5, 6]
    assert (
        notes_of(plan)["outputs"]
        == f"{spec}: 1 of 5 prompts have no output_tokens; their output length is {DEFAULT_OUTPUT_TOKENS}"
    )
    assert suggestions(spec) == {"num_requests": 5}


def test_gzip_too(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"prompt": "hello"}\n'))
    assert texts_of(plan_of(str(path), 1)).content(0) == "hello"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"output_tokens": 4}, "want prompt or messages"),
        ({"prompt": "a", "messages": CHAT}, "prompt and messages: want one of the two"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": None}, "prompt must be a string, got nothing"),
        ({"prompt": [1, 2]}, "prompt must be a string, got a list"),
        ({"prompt": {"a": 1}}, "prompt must be a string, got an object"),
        ({"prompt": 5}, "prompt must be a string, got a number"),
        ('{"prompt": "\\ud800"}', "prompt: half of a surrogate pair"),
        ('{"messages": [{"role": "user", "content": "a", "weight": NaN}]}', "messages: NaN or Infinity"),
        ({"messages": []}, "messages must be a list of messages, got an empty list"),
        ({"messages": "hi"}, "messages must be a list of messages, got a string"),
        ({"messages": ["hi"]}, "messages[0] must be an object"),
        ({"messages": [CHAT[0], {"content": "no role"}]}, "messages[1] must be an object"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a string or a list"),
        ({"prompt": "a", "output_tokens": 0}, "output_tokens is 0, must be from 1"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens must be a whole number, got 'many'"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens must be a whole number, got 1.5"),
        ({"prompt": "a", "priority": -1}, "priority is -1"),
        ({"prompt": "a", "prompt_tokens": 0}, "prompt_tokens is 0"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "want an object"),
    ],
)
def test_refused_with_file_line_and_field(tmp_path: Path, row: Any, words: str) -> None:
    spec = file_of(tmp_path, {"prompt": "good", "prompt_tokens": 1}, "", row)
    with pytest.raises(CbbenchError) as caught:
        open_workload(spec)
    assert caught.value.message.startswith(f"{spec}, line 3: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_time_that_goes_back_is_named_by_its_line(tmp_path: Path) -> None:
    spec = file_of(tmp_path, {"prompt": "a", "timestamp": 5}, {"prompt": "b", "timestamp": 4})
    with pytest.raises(CbbenchError, match="line 2: timestamp decreases"):
        open_workload(spec)


def test_a_tokenizer_counts_and_what_it_read_is_what_is_asked(tmp_path: Path) -> None:
    spec = file_of(tmp_path, {"prompt": "abc", "prompt_tokens": 99}, {"messages": CHAT, "prompt_tokens": 99})
    plan = plan_of(spec, 4, encode=letters)
    texts = texts_of(plan)
    assert texts.counted_by == "tokenizer"
    assert plan.prompts_counted
    assert sorted(plan.prompt_tokens.tolist()) == sorted([3, 15] * 2), "not what the file says: the tokenizer knows"
    prompts = Prompts(plan, np.arange(10, dtype=np.int32), prompt_seed=7)
    for i in range(4):
        assert prompts.ids(i).tolist() == letters(texts.content(i))
        assert len(prompts.ids(i)) == plan.prompt_tokens[i]


def test_the_file_counts_where_no_tokenizer_does_and_else_it_is_a_guess(tmp_path: Path) -> None:
    counted = plan_of(file_of(tmp_path, {"prompt": "abcdef", "prompt_tokens": 3}), 1)
    assert (counted.prompt_tokens.tolist(), texts_of(counted).counted_by) == ([3], "file")
    half = file_of(
        tmp_path, {"prompt": "abcdef", "prompt_tokens": 3}, {"prompt": "ab" * BYTES_PER_TOKEN}, name="h.jsonl"
    )
    guessed = plan_of(half, 2)
    assert (guessed.prompt_tokens.tolist(), texts_of(guessed).counted_by) == ([2, 2], "server")
    assert not guessed.prompts_counted
    with pytest.raises(ValueError, match="no tokenizer has read"):
        texts_of(guessed).tokens(0)


def test_guesses_are_of_what_is_said() -> None:
    assert estimated_tokens("a") == 1
    assert estimated_tokens("é" * BYTES_PER_TOKEN) == 2, "of bytes, not of letters"
    assert estimated_tokens(tuple(CHAT)) == -(-len("Be brief.Why?") // BYTES_PER_TOKEN)
    parts = [{"type": "text", "text": "x" * 40}, {"type": "image_url", "image_url": {"url": "u" * 400}}]
    assert estimated_tokens(({"role": "user", "content": parts},)) == 10


def test_what_the_tokenizer_refuses_is_named_by_its_line(tmp_path: Path) -> None:
    def without_chats(content: Content) -> list[int]:
        if not isinstance(content, str):
            raise ValueError("the model has no chat template")
        return [1] if content != "nothing" else []

    chat = file_of(tmp_path, {"prompt": "a"}, {"messages": CHAT})
    with pytest.raises(CbbenchError, match="line 2: messages: the model has no chat template"):
        plan_of(chat, 2, encode=without_chats)
    assert len(plan_of(chat, 1, encode=without_chats)) == 1, "the second is not used"
    with pytest.raises(CbbenchError, match="line 1: prompt: the tokenizer makes no token of it"):
        plan_of(file_of(tmp_path, {"prompt": "nothing"}), 1, encode=without_chats)


def test_one_that_passes_the_context_is_named_by_its_line(tmp_path: Path) -> None:
    spec = file_of(tmp_path, {"prompt": "ab", "max_tokens": 3}, "", {"prompt": "abcdef", "max_tokens": 4})
    with pytest.raises(CbbenchError, match=r"request 1 \(line 3\) with prompt 6 \+ output 4"):
        plan_of(spec, 2, encode=letters, max_model_len=9)
    assert len(plan_of(spec, 2, encode=letters, max_model_len=9, misfit="reject")) == 2
    assert len(plan_of(spec, 2, max_model_len=5)) == 2, "a guess refuses nothing"


def test_more_requests_than_lines_repeat_in_the_order_of_the_seed(tmp_path: Path) -> None:
    spec = file_of(tmp_path, *({"prompt": f"p{i}"} for i in range(20)))
    plan = plan_of(spec, 50)
    rows = texts_of(plan).rows
    assert rows[:20].tolist() == list(range(20)), "the first time through as in the file"
    assert sorted(rows[20:40].tolist()) == list(range(20))
    assert rows[20:40].tolist() != list(range(20))
    assert rows[40:].tolist() != rows[20:30].tolist()
    assert (
        notes_of(plan)["repeated"]
        == f"{spec} has 20 prompts, repeated in an order drawn from the seed to make 50 requests"
    )
    assert np.array_equal(texts_of(plan_of(spec, 50)).rows, rows)
    assert np.array_equal(texts_of(plan_of(spec, 30)).rows, rows[:30]), "fewer requests are the beginning of more"
    assert not np.array_equal(texts_of(plan_of(spec, 50, seed=1)).rows, rows)
    assert "repeated" not in notes_of(plan_of(spec, 20))


def test_a_trace_keeps_each_line_with_its_gap(tmp_path: Path) -> None:
    spec = file_of(tmp_path, *({"prompt": f"p{i}", "arrival_s": i * i} for i in range(4)))
    plan = plan_of(spec, 8, arrival="trace")
    assert texts_of(plan).rows.tolist() == [0, 1, 2, 3] * 2
    assert "repeated from the top" in notes_of(plan)["repeated"]
    assert "arrivals" not in notes_of(plan)
    assert "`arrival trace` would use them" in notes_of(plan_of(spec, 4))["arrivals"]


def test_the_plans_hash_is_of_its_columns_and_the_texts_have_their_own(tmp_path: Path) -> None:
    """The first with itself, with other words of the same length, and with other lengths."""
    one, other, longer = (
        plan_of(file_of(tmp_path, {"prompt": said}, name=f"{said}.jsonl"), 2, encode=letters)
        for said in ("abc", "xyz", "abcd")
    )
    assert one.sha256 == other.sha256 != longer.sha256
    assert len({texts_of(plan).sha256 for plan in (one, other, longer)}) == 3
    lengths = RequestPlan.of([3, 3], [256, 256], arrivals_ugap=one.arrivals_ugap)
    assert lengths.sha256 == one.sha256, "it covers lengths and arrivals, whatever is said"


def test_the_texts_hash_follows_order_and_not_spelling(tmp_path: Path) -> None:
    def hash_of(*rows: str, n: int = 2) -> str:
        return texts_of(plan_of(file_of(tmp_path, *rows), n)).sha256

    ab = hash_of('{"prompt": "a"}', '{"prompt": "b"}')
    assert ab != hash_of('{"prompt": "b"}', '{"prompt": "a"}')
    assert ab == hash_of('{"prompt": "\\u0061", "x": 1}', "", '{"prompt":"b"}')
    assert ab != hash_of('{"prompt": "a"}', '{"prompt": "b"}', n=1)
    role, content = '"role": "user"', '"content": "hi"'
    assert hash_of(f'{{"messages": [{{{role}, {content}}}]}}') == hash_of(f'{{"messages": [{{{content}, {role}}}]}}')


def test_plans_that_share_tokens_tokenise_each_prompt_once(tmp_path: Path) -> None:
    workload = open_workload(file_of(tmp_path, {"prompt": "ab"}, {"prompt": "abcd"}, {"prompt": "not used"}))
    encoded: list[Content] = []

    def encode(content: Content) -> list[int]:
        encoded.append(content)
        return letters(content)

    tokens = workload.tokenised(encode)
    for count in (1, 2, 2):
        plan = workload.plan(num_requests=count, seed=0, arrival="constant", max_model_len=None, tokens=tokens)
        assert plan.prompt_tokens.tolist() == [2, 4][:count]
    assert encoded == ["ab", "abcd"]
    assert workload.tokenised(None) is None


def test_tenants_of_a_mix_take_no_prompts(tmp_path: Path) -> None:
    spec = file_of(tmp_path, {"prompt": "a"})
    with pytest.raises(CbbenchError, match=r"tenant a: .* has prompts, and tenants have lengths only"):
        build_tenant_plan(
            f"a:workload={spec};b", workload="bus-stop", num_requests=4, seed=0, arrival="poisson", max_model_len=None
        )


def test_a_file_of_lengths_stays_one(tmp_path: Path) -> None:
    plan = plan_of(file_of(tmp_path, {"prompt_tokens": 3, "output_tokens": 4, "text": "ignored"}), 1)
    assert plan.texts is None
    assert plan.prompt_tokens.tolist() == [3]
