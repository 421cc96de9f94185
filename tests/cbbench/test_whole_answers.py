"""--no-stream through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cbbench.conftest import Outcome
from tests.wire.fake import Call, FakeServer, plain

TEXT = {
    "choices": [{"text": " a b c d e", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 8, "completion_tokens": 5},
}


async def whole(call: Call) -> None:
    await call.send(plain("200 OK", json.dumps(TEXT).encode()))


def test_the_report_shows_e2el_alone(cbbench: Callable[..., Outcome]) -> None:
    with FakeServer(whole) as server:
        asked = ("--url", server.url, "--workload", "prompt=fixed(8);output=fixed(5)", "--num-requests", 3)
        outcome = cbbench("run", *asked, "--no-stream", "--sla", "max_e2el_ms<=5000", "-o", "out")
    assert outcome.code in (0, 5), outcome.err
    latency = json.loads(Path("out/run.json").read_text())["summary"]["latency"]
    assert latency["e2el_ms"]["count"] == 3
    assert (latency["ttft_ms"]["count"], latency["tpot_ms"]["count"], latency["itl_ms"]["count"]) == (0, 0, 0)
    assert "the answers came whole, not as a stream: TTFT, TPOT and ITL are not measured" in outcome.err + outcome.out


def test_a_bound_on_what_a_whole_answer_does_not_show_is_refused(cbbench: Callable[..., Outcome]) -> None:
    outcome = cbbench("run", "--url", "http://127.0.0.1:9", "--no-stream", "--sla", "p99_ttft_ms<=500")
    assert outcome.code == 2
    said = " ".join(outcome.err.split())
    assert 'error: --sla: "p99_ttft_ms<=500": without --stream only E2EL is measured; want an e2el_ms' in said
