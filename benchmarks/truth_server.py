"""A streaming server that records when it sent each event, to measure a client against.

    python benchmarks/truth_server.py [--port 8100] [--ttft-ms 50] [--tpot-ms 20] [--tick-ms 0] [--stall-at-s S] ...

The first token of a request leaves ttft-ms after the request came in, the others tpot-ms apart, in one event each; with
--tick-ms all streams send at the same ticks, as an engine's steps do. During a stall nothing is sent, but requests are
accepted. `GET /metrics` is a page as long as vLLM's. `GET /truth` gives, per request, the time at which it came in (the
kernel's stamp where there is one), and the time just before each event's send(), so that its own lateness is part of
the truth. `GET /truth/reset` forgets.
"""

from __future__ import annotations

import argparse
import heapq
import socket
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec

from engines.remote import kernel_stamps
from engines.remote.socket_poller import EVENT_READ, EVENT_WRITE, SocketPoller

_BEGIN = b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"truth",'
EVENT = _BEGIN + b'"choices":[{"index":0,"text":" hello","logprobs":null,"finish_reason":%b,"stop_reason":null}]}\n\n'
USAGE = _BEGIN + b'"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"truth","object":"model","max_model_len":131072}]}'
LABELS = 'engine="0",model_name="truth"'
OTHER_METRICS = "".join(
    f'vllm:request_{name}_seconds_bucket{{engine="0",le="{bound / 100}",model_name="truth"}} 0.0\n'
    for name in ("queue_time", "inference_time", "prefill_time", "decode_time", "time_per_output_token")
    for bound in range(1, 130)
)  # vLLM's page of 0.32 has 650 lines and 53 kB
KEY_IDS = 4  # prompt tokens that identify a request


class Truth(msgspec.Struct):
    """One request, in ns of time.monotonic_ns()."""

    key: tuple[int, ...]  # its first prompt tokens
    came_ns: int
    sent_ns: bytes = b""  # int64 per event


class CompletionRequest(msgspec.Struct):
    prompt: list[int] | str = ""
    max_tokens: int = 16


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


TOKEN = chunk(EVENT % b"null")
LAST_TOKEN = chunk(EVENT % b'"length"')


class Stream:
    """One connection, and the answer it is being given."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unread = b""
        self.unsent = b""
        self.truth: Truth | None = None
        self.sent_ns = array("q")
        self.tokens = 0
        self.prompt_tokens = 0


class Server:
    def __init__(self, args: argparse.Namespace) -> None:
        self.ttft_ns, self.tpot_ns, self.tick_ns = (
            round(ms * 1e6) for ms in (args.ttft_ms, args.tpot_ms, args.tick_ms)
        )
        self.stall_at_ns, self.stall_ns = round(args.stall_at_s * 1e9), round(args.stall_s * 1e9)
        self.first_came_ns = 0
        self.tokens_sent = self.answered = 0
        self.log: list[Truth] = []
        self.due: list[tuple[int, int, Stream]] = []
        self.order = count()
        self.poller = SocketPoller()
        self.listener = socket.create_server(("127.0.0.1", args.port), backlog=4096)
        self.listener.setblocking(False)
        self.poller.watch(self.listener.fileno(), EVENT_READ, self.accept)
        self.decode = msgspec.json.Decoder(CompletionRequest).decode

    def serve(self) -> None:
        print(f"listening on {self.listener.getsockname()[1]}", flush=True)
        while True:
            until_ns = self.due[0][0] if self.due else time.monotonic_ns() + 1_000_000_000
            for on_ready, events in self.poller.ready(until_ns):
                on_ready(events)
                self.send_due()
            self.send_due()

    def send_due(self) -> None:
        while self.due and self.due[0][0] <= time.monotonic_ns():
            planned_ns, _, stream = heapq.heappop(self.due)
            if stream.truth is not None:
                self.send_token(stream, planned_ns)

    def send_token(self, stream: Stream, planned_ns: int) -> None:
        left = stream.tokens - len(stream.sent_ns) - 1
        data = TOKEN if left else LAST_TOKEN
        if not stream.sent_ns:
            data = HEAD + data
        self.tokens_sent += 1
        stream.sent_ns.append(time.monotonic_ns())
        self.send(stream, data)
        if left:
            heapq.heappush(self.due, (self.after(planned_ns, self.tpot_ns), next(self.order), stream))
            return
        usage = USAGE % (stream.prompt_tokens, stream.prompt_tokens + stream.tokens, stream.tokens)
        self.send(stream, chunk(usage) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        if stream.truth is None:  # the client has gone
            return
        stream.truth.sent_ns = stream.sent_ns.tobytes()
        stream.truth = None
        self.answered += 1

    def after(self, from_ns: int, delay_ns: int) -> int:
        when_ns = from_ns + delay_ns
        begin_ns = self.first_came_ns + self.stall_at_ns
        end_ns = begin_ns + self.stall_ns
        if from_ns < end_ns and when_ns > begin_ns:
            when_ns += end_ns - max(from_ns, begin_ns)
        return -(-when_ns // self.tick_ns) * self.tick_ns if self.tick_ns else when_ns

    def send(self, stream: Stream, data: bytes) -> None:
        data = stream.unsent + data
        try:
            sent = stream.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(stream)
            return
        unsent = data[sent:]
        if bool(unsent) != bool(stream.unsent):
            self.poller.watch(
                stream.sock.fileno(), EVENT_READ | (EVENT_WRITE if unsent else 0), partial(self.handle, stream)
            )
        stream.unsent = unsent

    def accept(self, _: int) -> None:
        with suppress(BlockingIOError):
            while True:
                sock, _address = self.listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kernel_stamps.enable_stamps(sock)
                self.poller.watch(sock.fileno(), EVENT_READ, partial(self.handle, Stream(sock)))

    def handle(self, stream: Stream, events: int) -> None:
        if events & EVENT_WRITE and stream.unsent:
            self.send(stream, b"")
        if not events & EVENT_READ or stream.sock.fileno() < 0:
            return
        try:
            data, control, _, _ = stream.sock.recvmsg(65536, kernel_stamps.CONTROL_BYTES)
        except OSError:
            data, control = b"", []
        now_ns = time.monotonic_ns()
        if not data:
            self.drop(stream)
            return
        came_ns = kernel_stamps.arrival_ns(control, now_ns) or now_ns
        stream.unread += data
        head, found, rest = stream.unread.partition(b"\r\n\r\n")
        length = int((head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]) or 0)
        if found and len(rest) >= length:
            stream.unread = rest[length:]
            self.request(stream, head, rest[:length], came_ns)

    def request(self, stream: Stream, head: bytes, body: bytes, came_ns: int) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/v1/completions":
            ask = self.decode(body)
            prompt: Sequence[int] = ask.prompt if isinstance(ask.prompt, list) else [len(ask.prompt)]
            stream.prompt_tokens = len(prompt) if isinstance(ask.prompt, list) else len(ask.prompt.split())
            stream.truth = Truth(tuple(prompt[:KEY_IDS]), came_ns)
            stream.sent_ns, stream.tokens = array("q"), max(ask.max_tokens, 1)
            self.log.append(stream.truth)
            self.first_came_ns = self.first_came_ns or came_ns
            heapq.heappush(self.due, (self.after(came_ns, self.ttft_ns), next(self.order), stream))
        elif path == b"/metrics":
            self.plain(stream, self.metrics().encode())
        elif path == b"/truth":
            self.plain(stream, msgspec.msgpack.encode(self.log))
        elif path == b"/truth/reset":
            self.log, self.first_came_ns = [], 0
            self.plain(stream, b"")
        else:
            self.plain(stream, MODELS)

    def metrics(self) -> str:
        counts = {
            "num_requests_running": len(self.due),
            "generation_tokens_total": self.tokens_sent,
            "request_success_total": self.answered,
        }
        return OTHER_METRICS + "".join(f"vllm:{name}{{{LABELS}}} {value}\n" for name, value in counts.items())

    def plain(self, stream: Stream, body: bytes) -> None:
        self.send(stream, b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    def drop(self, stream: Stream) -> None:
        stream.truth = None
        if stream.sock.fileno() >= 0:
            self.poller.forget(stream.sock.fileno())
            stream.sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8100, help="0: any free one")
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--tpot-ms", type=float, default=20)
    parser.add_argument("--tick-ms", type=float, default=0)
    parser.add_argument("--stall-at-s", type=float, default=0, help="after the first request")
    parser.add_argument("--stall-s", type=float, default=0)
    Server(parser.parse_args()).serve()


if __name__ == "__main__":
    main()
