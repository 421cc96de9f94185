"""Bodies at the edges: of a read, of a socket's buffer, of a megabyte or four; and the ways HTTP has to end one."""

from __future__ import annotations

import pytest

from engines.remote.connection import READ_BYTES
from engines.remote.request_bodies import PromptMaker
from tests.wire.driving import load
from tests.wire.fake import DONE, END, GOOD, HEAD, Call, FakeServer, chunk, text, usage
from workloads.plan import RequestPlan

MIB = 2**20


@pytest.mark.parametrize("event_bytes", [READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 4 * MIB])
def test_an_event_of_exactly(event_bytes: int) -> None:
    """B4 43, vllm #39963 #40050: where a read, or a buffer of that size, would end."""
    filler = event_bytes - 200
    filler += event_bytes - len(chunk(text("x" * filler)))
    piece = chunk(text("x" * filler))
    assert len(piece) == event_bytes
    ran = load(lambda call: call.send(HEAD, piece, chunk(text("b", "stop")) + chunk(DONE) + END))
    assert ran.failures == [None]
    assert ran.row.events == 2


def test_a_request_larger_than_any_buffer() -> None:
    """B4 43: a prompt of a million ids, five megabytes, goes out in as many writes as it takes, and whole."""
    with FakeServer(lambda call: call.send(GOOD)) as server:
        ran = load(server, requests=2, concurrency=1, prompt_tokens=1_000_000)
    assert ran.failures == [None, None]
    assert [len(body["prompt"]) for body in server.bodies] == [1_000_000] * 2
    assert ran.report.connections == 1


def test_a_server_that_refuses_a_large_request_before_it_has_read_it() -> None:
    """B5 53: its response is kept, though the connection breaks while the request is still being sent."""
    refusal = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 7\r\n\r\ntoo big"

    class Impatient(FakeServer):
        async def _serve(self, reader, writer):  # type: ignore[no-untyped-def]
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(self._models)
            else:
                writer.write(refusal)
                await writer.drain()
                await reader.readexactly(4 * MIB)  # a polite server reads on for a while
            writer.close()

    with Impatient() as server:
        row = load(server, prompt_tokens=1_000_000).row
    assert (row.status, row.finish_reason, row.error) == ("failed", "http_4xx", "HTTP 413: too big")


@pytest.mark.parametrize("short", [0, 1], ids=["to the end", "one byte short"])
def test_a_stream_of_a_known_length(short: int) -> None:
    body = text("a") + text("b", "stop") + DONE
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"

    async def script(call: Call) -> None:
        await call.send(head % (len(body) + short), body)
        if short:
            call.close()

    ran = load(script, requests=2, concurrency=1)
    assert ran.failures == [None, None], "after [DONE] nothing is missing"
    assert ran.report.connections == 1 + short


def test_chunks_with_extensions_trailers_and_sizes_in_any_writing() -> None:
    pieces = (text("a"), text("b", "stop"), usage(2), DONE)
    sizes = (b"%X", b"%x", b"00%x", b"%X;name=value")
    body = b"".join(size % len(piece) + b"\r\n" + piece + b"\r\n" for size, piece in zip(sizes, pieces, strict=True))
    whole = HEAD + body + b"0\r\nX-Trailer: yes\r\n\r\n"
    ran = load(lambda call: call.send(whole), requests=2, concurrency=1)
    assert ran.failures == [None, None]
    assert ran.report.connections == 1


@pytest.mark.parametrize("as_ids", [True, False], ids=["ids", "text"])
def test_a_prompt_that_is_joined_of_two_has_the_length_of_both(as_ids: bool) -> None:
    """B3 27, inference-perf #490 #491: a shared prefix and what follows it, off by one."""
    prefix = RequestPlan.of([1], [1]).session + 1  # shared by all
    plan = RequestPlan.of([30, 12, 7], [1] * 3, prefix=prefix.repeat(3), prefix_tokens=(11,))
    maker = PromptMaker(plan, as_ids=as_ids, token_ids=(1000, 8000), prompt_seed=0, overhead_tokens=2)
    asked = [maker.spec(i).prompt for i in range(3)]
    prompts = [prompt.split() if isinstance(prompt, str) else list(prompt) for prompt in asked]
    assert [len(prompt) for prompt in prompts] == ([30, 12, 7] if as_ids else [28, 10, 5])
    assert prompts[0][:10] == prompts[1][:10]
    assert prompts[0][:5] == prompts[2][:5]
    assert prompts[0][:12] != prompts[1]
