"""What the event-stream parser costs, in us of CPU per event, for the ways in which a token stream comes in.

python benchmarks/sse.py
"""

from __future__ import annotations

import time

from engines.remote.sse import SseParser

EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" hello"},"logprobs":null,"finish_reason":null}]}\n\n'
)
EVENTS = 20_000
ROUNDS = 7


def us_per_event(pieces: list[bytes], events: int) -> float:
    best_s = float("inf")
    for _ in range(ROUNDS):
        parser = SseParser()
        began = time.process_time()
        seen = sum(len(parser.feed(piece)) for piece in pieces)
        best_s = min(best_s, time.process_time() - began)
        assert seen == events
    return best_s / events * 1e6


def cut(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def main() -> None:
    named = EVENT.replace(b"data:", b"event: message\nid: 7\ndata:")
    shapes = {
        "one event a read": [EVENT] * EVENTS,
        "the same with CRLF": [EVENT.replace(b"\n", b"\r\n")] * EVENTS,
        "with event and id lines": [named] * EVENTS,
        "64 KiB reads": cut(EVENT * EVENTS, 65536),
        "reads that cut events": cut(EVENT * EVENTS, 97),
        "byte by byte (1/20 of the events)": cut(EVENT * (EVENTS // 20), 1),
    }
    for name, pieces in shapes.items():
        events = EVENTS // 20 if "1/20" in name else EVENTS
        print(f"{name:36} {us_per_event(pieces, events):8.2f} us per event")


if __name__ == "__main__":
    main()
