"""Conversations and shared prefixes, from --tenants to what a prefix cache is spared: in our engine, and over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engines.reference import load_model
from engines.scheduling.config import SchedulerConfig
from engines.serve.server import reference_server
from reports.folder import read_record, read_run
from tests.cbbench.conftest import Outcome
from tests.engines.serve.serving import Running, serving
from workloads.plan import RequestPlan
from workloads.tenant_plan import build_tenant_plan

Call = Callable[..., Outcome]
BLOCK = 16
WORKLOAD = "prompt=uniform(20,60);output=uniform(2,6)"
TENANTS = "chat:sessions=2;system:prefix=40"
REQUESTS, CONTEXT = 24, 400
WORK = ("--workload", WORKLOAD, "--tenants", TENANTS, "--num-requests", REQUESTS, "--concurrency", 1)
LIMITS = ("--max-model-len", CONTEXT)
OURS = ("--model", "tiny", "--device", "cpu", "--block-size", BLOCK, "--kv-blocks", 600)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    threads = torch.get_num_threads()
    config = SchedulerConfig(
        kv_blocks=600, max_model_len=CONTEXT, max_num_seqs=4, block_size=BLOCK, prefix_caching=True
    )
    model = load_model("tiny", dtype="fp32")  # turns torch to one thread
    with serving(reference_server(model, config, name="tiny", random_weights=True)) as running:
        yield running
    torch.set_num_threads(threads)


def plan() -> RequestPlan:
    return build_tenant_plan(
        TENANTS, workload=WORKLOAD, num_requests=REQUESTS, seed=0, arrival="poisson", max_model_len=CONTEXT
    )


def expected_hits(plan: RequestPlan) -> int:
    """One request at a time, and a cache that forgets nothing: of a turn's prompt the whole blocks that are in the
    prompt of the turn before; of any later prompt of `system` those in the prefix. One token is always computed."""
    hits, longest = 0, {-1: 0}
    shared_before = 0
    for i in range(len(plan)):
        session, prompt = int(plan.session[i]), int(plan.prompt_tokens[i])
        if session >= 0:
            hits += longest.get(session, 0) // BLOCK * BLOCK
            longest[session] = prompt
        else:
            shared = min(plan.prefix_tokens[0], prompt)
            hits += min(shared_before // BLOCK, shared // BLOCK, (prompt - 1) // BLOCK) * BLOCK
            shared_before = max(shared_before, shared)
    return hits


def test_turns_hit_the_prompts_of_the_turns_before(cbbench: Call) -> None:
    assert expected_hits(plan()) > 1000
    assert cbbench("run", *OURS, *LIMITS, *WORK, "--prefix-caching", "-o", "cached").code == 0
    assert cbbench("run", *OURS, *LIMITS, *WORK, "-o", "plain").code == 0
    cached, plain = (read_record(Path(name)).steps for name in ("cached", "plain"))
    assert cached["prefix_hit_tokens"].sum() == expected_hits(plan())
    assert plain["prefix_hit_tokens"].sum() == 0
    assert plain["useful_tokens"].sum() - cached["useful_tokens"].sum() == expected_hits(plan())


def test_the_simulator_predicts_the_same_hits(cbbench: Call) -> None:
    simulated = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", *OURS[4:])
    outcome = cbbench("run", *simulated, *LIMITS, *WORK, "--prefix-caching", "-o", "out")
    assert outcome.code == 0
    assert f"prefix hits, tokens {expected_hits(plan()):,}" in outcome.out
    assert read_record(Path("out")).steps["prefix_hit_tokens"].sum() == expected_hits(plan())


def test_a_server_sees_the_same_sharing(cbbench: Call, server: Running) -> None:
    """Its counters, which the client reads, say so; and prompts of ids below its vocabulary have the planned length."""
    before = server.metric("vllm:prefix_cache_hits_total")
    outcome = cbbench("run", "--url", server.url, *WORK, "--warmup", 1, "-o", "out")
    assert outcome.code == 0, outcome.err
    client = read_run(Path("out")).client
    assert client is not None
    assert client.scrape is not None
    assert client.prompt_mismatch_share == 0
    assert client.scrape.prefixes_shared
    assert client.scrape.prefix_hit_rate == pytest.approx(expected_hits(plan()) / plan().prompt_tokens.sum())
    assert server.metric("vllm:prefix_cache_hits_total") - before == expected_hits(plan())
    assert read_run(Path("out")).workload.sha256 == plan().sha256
