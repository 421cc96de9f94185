"""A log replayed: its pace, and the reuse that its hash_ids allow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cbbench.conftest import Outcome

SIMULATED = ("--engine", "simulated", "--hardware", "h100")


def test_speed_and_reuse(cbbench: Callable[..., Outcome]) -> None:
    rows = ({"timestamp": 400 * i, "input_length": 700, "output_length": 5, "hash_ids": [0, i + 1]} for i in range(40))
    Path("m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ("--workload", "m.jsonl", "--arrival", "trace", "--speed", "2", "--prefix-caching")
    outcome = cbbench("run", *SIMULATED, *arguments, "-o", "out")
    assert outcome.code == 0, outcome.err
    run = json.loads(Path("out/run.json").read_text())
    assert run["workload"]["pacing"]["rate_per_s"] == 5, "a gap of 400 ms, twice as fast"
    assert run["workload"]["realised"]["reusable_prompt_tokens"] == 39 * 512
    assert run["summary"]["signals"]["prefix_hit_tokens"] == 39 * 512, "the cache is large enough for all of it"


def test_rows_at_the_same_time_cannot_have_a_rate(cbbench: Callable[..., Outcome]) -> None:
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "5,10,2\n" * 4)
    assert cbbench("run", *SIMULATED, "--workload", "t.csv", "--arrival", "trace", "-o", "out").code == 0
    outcome = cbbench("run", *SIMULATED, "--workload", "t.csv", "--arrival", "trace", "--rate", "4", "-o", "other")
    assert outcome.code == 2
    assert "--rate: all 4 rows arrive at the same time" in outcome.err
