"""What each scheduling policy costs, on one bursty, memory-tight load: the tables of docs/scheduling.md.

    python benchmarks/policies.py

The scheduler is the real one; the clock is virtual, and step times are uncalibrated, of one GPU and model. So
steps, preemptions and their order are exact and the same on any machine, and milliseconds are those of that model.
"""

from __future__ import annotations

from typing import Any

from cbbench.experiment.bench import Bench, criteria_of, describe_workload
from cbbench.settings.build import build_settings
from engines.base import SilentObserver
from reports.schema import RunFile
from reports.summary import completed_run
from workloads.pacing import Pacing

BASE: dict[str, Any] = {"engine": "simulated", "hardware": "h100", "model": "llama-3.1-8b", "seed": 1}
TIGHT = BASE | {
    "workload": "azure-conv",
    "num_requests": 1500,
    "rate": 7.0,
    "arrival": "gamma:3",
    "kv_blocks": 1200,
    "max_num_seqs": 64,
    "max_model_len": 8192,
}
# The priority only names the two kinds of prompts in the report; no order looks at it here.
SHORT_AND_LONG = BASE | {
    "tenants": "short:weight=9,workload=(prompt=lognormal(median=60,sigma=0.6,max=400);output=uniform(8,64));"
    "long:weight=1,priority=1,workload=(prompt=uniform(6000,12000);output=uniform(8,64))",
    "num_requests": 1500,
    "rate": 12.0,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "max_model_len": 16384,
}
FLOOD = BASE | {
    "tenants": "quiet:workload=(prompt=uniform(64,512);output=uniform(32,128));"
    "noisy:weight=0,burst=50:600,workload=(prompt=uniform(64,512);output=uniform(32,128))",
    "num_requests": 1200,
    "rate": 20.0,
    "max_num_seqs": 32,
    "max_model_len": 4096,
}
BATCHES = BASE | {"num_requests": 640, "max_num_seqs": 32, "max_model_len": 8192}


def run(settings: dict[str, Any], **changes: Any) -> RunFile:
    config = build_settings(settings | changes)
    bench = Bench(config)
    plan = bench.plan(config)
    engine, info = bench.engine(config, plan)
    record = engine.run(plan, Pacing(plan.arrivals_ugap, rate_per_s=config.load.rate), SilentObserver())
    header = RunFile(
        engine=info, workload=describe_workload(config, plan), event_unit="step", criteria=criteria_of(config)
    )
    return completed_run(record, header)


def table(title: str, columns: list[str], rows: list[list[object]]) -> None:
    print(f"\n{title}\n")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(f"{cell:,.0f}" if isinstance(cell, int | float) else str(cell) for cell in row) + " |")


def common(result: RunFile) -> list[object]:
    summary = result.summary
    assert summary is not None
    latency = summary.latency
    return [
        summary.throughput.output_token_per_s,
        latency.ttft_sched_ms.p50,
        latency.ttft_sched_ms.p99,
        f"{latency.tpot_ms.p50:.1f}",
        f"{latency.tpot_ms.p99:.1f}",
    ]


COMMON = ["output tok/s", "TTFT P50 ms", "TTFT P99 ms", "TPOT P50 ms", "TPOT P99 ms"]


def memory_pressure() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("recompute, watermark 0", {"watermark": 0.0}),
        ("recompute, watermark 1 %", {"watermark": 1.0}),
        ("recompute, watermark 2 %", {"watermark": 2.0}),
        ("recompute, watermark 5 %", {"watermark": 5.0}),
        ("recompute, watermark 10 %", {"watermark": 10.0}),
        ("recompute, least computed", {"victim": "least-computed"}),
        ("swap", {"on_kv_pressure": "swap"}),
        ("reject", {"on_kv_pressure": "reject"}),
        ("delay (full-reserve)", {"on_kv_pressure": "delay"}),
        ("optimistic admission", {"admission": "optimistic"}),
        ("peak admission", {"admission": "peak"}),
    ]
    rows = []
    for name, changes in cases:
        result = run(TIGHT, **changes)
        assert result.summary is not None
        assert result.summary.waste is not None
        signals, waste = result.summary.signals, result.summary.waste
        rows.append(
            [name, signals.preemptions, waste.recomputed_tokens, result.summary.requests.failed, *common(result)]
        )
    table("Memory pressure", ["policy", "preemptions", "recomputed tokens", "rejected", *COMMON], rows)


def long_prompts() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("decode first, chunked", {}),
        ("prefill first", {"prefill": "prefill-first"}),
        ("chunk cap 512", {"max_prompt_chunk": 512}),
        ("the same, one long prompt at a time", {"max_prompt_chunk": 512, "max_long_partial_prefills": 1}),
        ("buckets 512", {"prompt_buckets": "512"}),
    ]
    rows = []
    for name, changes in cases:
        summary = run(SHORT_AND_LONG, **changes).summary
        assert summary is not None
        short, long = summary.by_priority["0"].latency.ttft_sched_ms, summary.by_priority["1"].latency.ttft_sched_ms
        latency = summary.latency
        rows.append([name, short.p50, short.p99, long.p50, long.p99, latency.itl_ms.p99, latency.itl_ms.max])
    columns = ["policy", *(f"{kind} TTFT {p} ms" for kind in ("short", "long") for p in ("P50", "P99"))]
    table("Long prompts among short ones", [*columns, "ITL P99 ms", "ITL max ms"], rows)


def starvation() -> None:
    rows = []
    for name, changes in (
        ("fcfs", {}),
        ("shortest prompt", {"order": "shortest-prompt"}),
        ("shortest prompt, ageing 1,000", {"order": "shortest-prompt", "ageing": 1000.0}),
        ("shortest prompt, ageing 4,000", {"order": "shortest-prompt", "ageing": 4000.0}),
    ):
        summary = run(SHORT_AND_LONG, rate=24.0, max_num_seqs=8, **changes).summary
        assert summary is not None
        short, long = summary.by_priority["0"], summary.by_priority["1"]
        sched = short.latency.ttft_sched_ms, long.latency.ttft_sched_ms
        rows.append([name, sched[0].p50, sched[0].p99, sched[1].p50, sched[1].p99, long.max_wait_ms])
    columns = [*(f"{kind} TTFT {p} ms" for kind in ("short", "long") for p in ("P50", "P99")), "long, longest wait ms"]
    table("More work than eight slots can take", ["order", *columns], rows)


def one_tenant_floods() -> None:
    rows = []
    for name, changes in (
        ("fcfs", {}),
        ("fair", {"order": "fair"}),
        ("fcfs, noisy: 8 slots", {"quota": ("noisy:max-num-seqs=8",)}),
    ):
        result = run(FLOOD, **changes)
        assert result.summary is not None
        quiet, noisy = result.summary.by_tenant["quiet"], result.summary.by_tenant["noisy"]
        rows.append(
            [
                name,
                quiet.latency.ttft_sched_ms.p99,
                noisy.latency.ttft_sched_ms.p99,
                quiet.max_wait_ms,
                result.summary.service_gap_tokens,
                result.summary.throughput.output_token_per_s,
            ]
        )
    columns = [
        "policy",
        "quiet TTFT P99 ms",
        "noisy TTFT P99 ms",
        "quiet longest wait ms",
        "service gap",
        "output tok/s",
    ]
    table(
        "One tenant floods",
        columns,
        [["" if c is None else float(c) if isinstance(c, int | float) else c for c in row] for row in rows],
    )


def static_and_continuous() -> None:
    rows = []
    for outputs in ("fixed(128)", "uniform(8,248)", "exponential(mean=128,max=2000)"):
        spec = f"prompt=fixed(64);output={outputs}"
        results = {
            name: run(BATCHES | {"workload": spec}, **changes)
            for name, changes in (
                ("continuous", {}),
                ("static", {"mode": "static"}),
                ("sorted static", {"mode": "static", "order": "shortest-known"}),
            )
        }
        per_s = {
            name: result.summary.throughput.output_token_per_s for name, result in results.items() if result.summary
        }
        rows.append([outputs, *per_s.values(), f"{per_s['continuous'] / per_s['static']:.2f}"])
    columns = ["outputs", "continuous tok/s", "static tok/s", "sorted static tok/s", "continuous over static"]
    table("Static and continuous", columns, rows)


if __name__ == "__main__":
    memory_pressure()
    long_prompts()
    starvation()
    one_tenant_floods()
    static_and_continuous()
