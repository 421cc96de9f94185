"""`--url` more than once: one load, with the results of each server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cbbench.conftest import Outcome
from tests.wire.fake import FakeServer


def test_results_for_each_url(cbbench: Callable[..., Outcome]) -> None:
    with FakeServer() as one, FakeServer() as two:
        urls = [f"http://127.0.0.1:{server.port}" for server in (one, two)]
        given = ["--url", urls[0], "--url", urls[1], "--workload", "prompt=fixed(8);output=fixed(2)"]
        outcome = cbbench("run", *given, "--num-requests", 12, "--concurrency", 4, "-o", "out")
        assert outcome.code in (0, 5, 7), outcome.err  # a busy machine makes the client late
        warmed = [len(server.bodies) - 6 for server in (one, two)]
    assert warmed[0] == warmed[1] > 0
    result = json.loads(Path("out/run.json").read_text())
    assert {url: part["completed"] for url, part in result["summary"]["by_url"].items()} == dict.fromkeys(urls, 6)
    assert result["engine"]["config"]["urls"] == urls
    assert all(url in outcome.out for url in urls)
    page = cbbench("report", "out", "--format", "md").out
    assert all(f"| {url} | 6 |" in page for url in urls)
