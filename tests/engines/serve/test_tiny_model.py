"""The whole way with the tiny model: batches against solo runs, OpenAI's own client, and cbbench's load client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
openai = pytest.importorskip("openai")

from engines.base import SilentObserver  # noqa: E402
from engines.reference import load_model  # noqa: E402
from engines.remote.config import RemoteConfig  # noqa: E402
from engines.remote.engine import RemoteEngine  # noqa: E402
from engines.scheduling.config import SchedulerConfig  # noqa: E402
from engines.serve.server import reference_server  # noqa: E402
from tests.engines.serve.serving import WAIT_S, Running, serving  # noqa: E402
from workloads.pacing import Pacing  # noqa: E402
from workloads.plan import RequestPlan  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    threads = torch.get_num_threads()
    model = load_model("tiny", dtype="fp32")  # turns torch to one thread
    config = SchedulerConfig(kv_blocks=33, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64)
    with serving(reference_server(model, config, name="tiny", random_weights=False)) as running:
        yield running
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=WAIT_S, max_retries=0) as made:
        yield made


def test_sixteen_streams_are_what_each_is_alone(server: Running) -> None:
    """Greedy, half of them streamed, in a pool too small for all, so that some are preempted and recomputed."""
    bodies: list[dict[str, Any]] = [{"prompt": f"{i} " * (1 + 3 * i), "max_tokens": 24 + i} for i in range(16)]

    def ask(i: int) -> str:
        if i % 2:
            return str(server.complete(ignore_eos=True, **bodies[i])["text"])
        more = {"temperature": 0, "ignore_eos": True}
        *chunks, _ = server.events("/v1/completions", bodies[i] | more)
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    alone = [ask(i) for i in range(16)]
    assert len(set(alone)) > 8
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == alone
    assert server.metric("vllm:num_preemptions_total") > 0


def test_a_seed_gives_the_same_text_again_and_none_gives_another(server: Running) -> None:
    def draw(**more: Any) -> str:
        return str(server.complete("once upon", max_tokens=24, ignore_eos=True, **{"temperature": 1.5} | more)["text"])

    assert draw(seed=3) == draw(seed=3) != draw(seed=4)
    assert draw() != draw()
    assert draw(seed=3, temperature=0) == draw(seed=4, temperature=0)
    assert draw(seed=3, top_k=1) == draw(temperature=0)


def test_the_official_client_lists_completes_and_chats(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    completion = client.completions.create(model="tiny", prompt="hello", max_tokens=6, temperature=0)
    assert completion.choices[0].finish_reason in ("length", "stop")
    assert completion.usage.prompt_tokens == 5
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=6, temperature=0
    )
    assert chat.choices[0].message.role == "assistant"
    assert chat.usage.completion_tokens <= 6


def test_the_official_client_streams(client: Any) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9, "temperature": 0}
    whole = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(text for text in texts if text) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    raw = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=9, stream=True, extra_body={"top_k": 3})
    assert len("".join(chunk.choices[0].text for chunk in raw)) > 0


def test_the_official_client_stops_a_stream_in_its_middle(client: Any, server: Running) -> None:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 480, "extra_body": {"ignore_eos": True}}
    before = server.metric("vllm:generation_tokens_total")
    with client.completions.create(**body, stream=True) as stream:
        assert len(list(itertools.islice(stream, 3))) == 3
    assert client.completions.create(model="tiny", prompt="x", max_tokens=1).usage.completion_tokens <= 1
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:generation_tokens_total") < before + 480


def test_the_official_client_knows_the_errors(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        client.completions.create(model="gpt-4", prompt="hello")
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="tiny", messages=[])
    assert error.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt="hello", max_tokens=4000, stream=True)
    assert error.value.code == "context_length_exceeded"


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_our_own_load_client_finds_nothing_wrong(server: Running, api: Any) -> None:
    plan = RequestPlan.of([40] * 12, [5 + i for i in range(12)])
    config = RemoteConfig(url=server.url, api=api, warmup_requests=1)
    record = RemoteEngine(config).run(plan, Pacing(plan.arrivals_ugap, concurrency=6), SilentObserver())
    rows = sorted(record.rows, key=lambda row: row.i)
    assert [(row.status, row.error) for row in rows] == [("completed", None)] * 12
    assert [row.output_tokens for row in rows] == [5 + i for i in range(12)]
    assert {row.token_source for row in rows} == {"usage"}
    if api == "completions":  # token ids go over as they are
        assert {row.prompt_tokens for row in rows} == {40}
