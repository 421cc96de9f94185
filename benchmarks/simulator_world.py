"""How far the uncalibrated step-time model is from what others measured, table by table.

    python benchmarks/simulator_world.py FOLDER

FOLDER holds public tables as CSV, named as below (docs/simulation.md says where they are from). A table with a bound
that is missed ends in exit code 1; the others are shown only. Errors are predicted / measured - 1. The table by GPU is
what a prediction says of itself (`checked` in engines/simulated/kernel_efficiency.py).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord, SilentObserver
from engines.scheduling.config import SchedulerConfig
from engines.simulated.analytical import AnalyticalStepTimes, narrow_pairs
from engines.simulated.data_sheet import Deployment, kv_bytes_per_token, parameters_bytes, step_times_of
from engines.simulated.engine import SimulatedEngine
from engines.simulated.hardware import find_hardware
from engines.simulated.kernel_efficiency import ALL_REDUCE, BY_HARDWARE, AllReduce
from engines.simulated.power import blend
from engines.simulated.shapes import find_shape
from engines.simulated.step_time import StepShape
from workloads.pacing import Pacing
from workloads.spec import build_plan

Row = dict[str, str]
NO_COMMUNICATION = AllReduce(0.0, float("inf"))
GPUS = {"a100-80gb": "a100", "h100-80gb": "h100", "a100_sxm": "a100", "h100_sxm": "h100"}
TRT_LLM = replace(BY_HARDWARE["h100"], fp8_compute=0.75, fp8_kv=0.8)  # its FP8 kernels reach more than vLLM's
FULL_KERNEL = 32 << 20  # elements of KV below which the launch of a kernel takes longer than reading them
MOST_ROWS = 2048  # TensorRT-LLM's default for the largest batch


@dataclass(frozen=True)
class Point:
    name: str
    predicted: float
    measured: float
    kind: str = ""  # GPU and what is compared, over several tables; "": of a table that is shown only

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Table:
    title: str
    unit: str
    points: Callable[[Path], Iterator[Point]]
    bound: float | None = None  # of the mean absolute error; None: shown only


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def hardware_of(row: Row) -> str:
    gpu = row["gpu"].lower()
    return GPUS.get(gpu, gpu)


def kind_of(row: Row, what: str) -> str:
    return f"{hardware_of(row)}, {'FP8' if row['dtype'] == 'fp8' else 'bf16'} {what}"


def model_of(row: Row, joined: AllReduce | None = None, *, host: float | Literal["eager"] = 0.0) -> AnalyticalStepTimes:
    hardware = hardware_of(row)
    fp8 = row["dtype"] == "fp8"
    deployment = Deployment(
        hardware=hardware,
        gpus=int(row["tp"]),
        weights="fp8" if fp8 else "bf16",
        kv="fp8" if fp8 else "bf16",
        host_floor_ms=host,
    )
    name = row["model"].replace("llama2-", "llama-2-")
    reached = TRT_LLM if fp8 else None
    return step_times_of(name, find_shape(name), find_hardware(hardware), deployment, reached=reached, joined=joined)


# -- steps of kernels measured one by one ------------------------------------------------------------------------


def steps(file: str, *, mixed: bool) -> Callable[[Path], Iterator[Point]]:
    """LLMServingSim: a step as the sum of its kernels, on one rank."""

    def points(folder: Path) -> Iterator[Point]:
        for row in read(folder / file):
            rows, kv = int(row["decode_rows"]), int(row["kv_tokens_total"])
            chunk, before = int(row["prefill_chunk_tokens"]), int(row["kv_before_chunk"])
            if bool(chunk) is not mixed:
                continue
            shape = step_shape(rows, kv, [(chunk, before)] if chunk else [])
            ms = model_of(row, NO_COMMUNICATION).duration_ns(shape) / 1e6
            name = f"TP {row['tp']}, {rows} rows of {row['context_each']}"
            name = f"{name}, chunk of {chunk} after {before}" if chunk else name
            yield Point(name, ms, float(row["step_ms"]), kind_of(row, "steps"))

    return points


def layers(file: str) -> Callable[[Path], Iterator[Point]]:
    """vidur: all layers without attention, head and communication."""

    def points(folder: Path) -> Iterator[Point]:
        for row in read(folder / file):
            model, tokens = model_of(row, NO_COMMUNICATION), int(row["tokens"])
            ms = (model.duration_ns(StepShape(tokens, 1, 0, 0, 0)) - max(model.head, model.head_row)) / 1e6
            name = f"TP {row['tp']}, {tokens} tokens"
            yield Point(name, ms, float(row["all_layers_ms"]), kind_of(row, "layers"))

    return points


def step_shape(rows: int, kv: int, chunks: Sequence[tuple[int, int]]) -> StepShape:
    """rows: single-token rows, which read `kv` positions in all. chunks: (tokens, tokens in KV before them)."""
    tokens = np.array([tokens for tokens, _ in chunks], dtype=np.int64)
    pairs = tokens * np.array([before for _, before in chunks], dtype=np.int64) + tokens * (tokens + 1) // 2
    return StepShape(
        tokens=rows + int(tokens.sum()),
        rows=rows + len(chunks),
        kv=kv,
        prefill_kv=sum(before for _, before in chunks),
        prefill_pairs=int(pairs.sum()),
        narrow_pairs=narrow_pairs(tokens, pairs),
    )


# -- whole runs --------------------------------------------------------------------------------------------------


def offline(model: str) -> Callable[[Path], Iterator[Point]]:
    """TensorRT-LLM v0.17: requests of one length, all there at the start. Predicted for a full batch in a steady state:
    as many rows as KV memory holds, spread evenly over their outputs, and prompts that keep the batch full."""

    def points(folder: Path) -> Iterator[Point]:
        for row in read(folder / "trtllm_v0.17_offline.csv"):
            if not row["model"].endswith(model):
                continue
            prompt, output = int(row["prompt_tokens"]), int(row["output_tokens"])
            step_time = model_of(row)
            rows = batch(row, prompt + output / 2)
            tokens = round(rows * (1 + prompt / output))
            pairs = round(rows / output * prompt * prompt / 2)
            kv = round(rows * (prompt + output / 2))
            # One step in which everything above happens, with the head of the decoding rows.
            decode = step_time.duration_ns(StepShape(tokens, round(rows), 0, 0, 0)) + step_time.kv * kv
            step_s = (decode + step_time.pair * pairs) / 1e9
            name = f"{row['gpu']} {row['dtype']} TP {row['tp']}, {prompt} + {output}"
            measured = float(row["output_tokens_per_s"])
            yield Point(name, rows / step_s, measured, kind_of(row, "runs of TensorRT-LLM"))

    return points


def batch(row: Row, tokens_each: float) -> float:
    """Rows of `tokens_each` positions in 95 % of what the weights leave of 80 GB, less 2 GB.

    A card has 85 GB. TensorRT-LLM keeps some of it, the table does not say how much; this is what its A100 rows at TP 2
    agree with, which depend on it most."""
    hardware, fp8, gpus = hardware_of(row), row["dtype"] == "fp8", int(row["tp"])
    deployment = Deployment(hardware=hardware, gpus=gpus, weights="fp8" if fp8 else "bf16", kv="fp8" if fp8 else "bf16")
    shape = find_shape(row["model"])
    room = 0.95 * (80e9 * gpus - parameters_bytes(shape, deployment)) - 2e9 * gpus
    return min(MOST_ROWS, int(row["requests"]), room / kv_bytes_per_token(shape, deployment) / tokens_each)


def splitwise(*, eager: bool) -> Callable[[Path], Iterator[Point]]:
    """Whole decode steps of an engine of 2023 without CUDA graphs: bound by its host."""

    def points(folder: Path) -> Iterator[Point]:
        for row in read(folder / "splitwise_steps.csv"):
            rows = int(row["batch"])
            shape = step_shape(rows, round(rows * float(row["mean_context"])), [])
            name = f"{row['gpu']} TP {row['tp']}, {rows} rows of {row['mean_context']}"
            model = model_of(row, host="eager" if eager else 0.0)
            yield Point(name, model.duration_ns(shape) / 1e6, float(row["decode_step_ms"]))

    return points


# -- kernels alone -----------------------------------------------------------------------------------------------


def routed_experts(file: str, routing: str | None = None) -> Callable[[Path], Iterator[Point]]:
    """One layer's routed experts: those that the tokens touch, or as many as the table says, without the layer's fixed
    cost."""

    def points(folder: Path) -> Iterator[Point]:
        for row in read(folder / file):
            if routing is not None and row["routing"] != routing:
                continue
            model, tokens = model_of(row, NO_COMMUNICATION), int(row["tokens"])
            experts = model.experts
            assert experts is not None
            activated = row.get("activated_experts")
            touched = experts.touched(tokens) if activated is None else float(activated)
            both = blend(experts.expert * touched, experts.token * tokens, model.blend)
            name = f"{row['model']} {row['gpu']} {row['dtype']} TP {row['tp']}, {tokens} tokens"
            name = name if activated is None else f"{name} to {activated} experts"
            measured = float(row["layer_ms" if activated else "ms_per_layer"])
            yield Point(name, both / find_shape(row["model"]).expert_layers / 1e6, measured)

    return points


def decode_attention(folder: Path) -> Iterator[Point]:
    """One layer's attention of rows that decode, without the layer's fixed cost: the KV it reads."""
    for row in read(folder / "aiconfigurator_decode_attention.csv"):
        hardware, fp8, rows = hardware_of(row), row["kv_dtype"] == "fp8", int(row["rows"])
        reached = BY_HARDWARE[hardware]
        elements = rows * int(row["context"]) * 2 * int(row["kv_heads"]) * int(row["head_dim"])
        share = reached.fp8_kv if fp8 else reached.kv
        ms = 1e3 * elements * (1 if fp8 else 2) / (share * find_hardware(hardware).bytes_per_s)
        name = f"{row['gpu']} {row['heads']}/{row['kv_heads']} heads {row['kv_dtype']}, {rows} rows of {row['context']}"
        if elements >= FULL_KERNEL:
            yield Point(name, ms, float(row["ms_per_layer"]))


def all_reduces(folder: Path) -> Iterator[Point]:
    """vLLM's custom kernel in a CUDA graph, which the constants were fitted to."""
    for row in read(folder / "aiconfigurator_allreduce.csv"):
        if not row["kind"].startswith("vllm custom"):
            continue
        one = ALL_REDUCE[(hardware_of(row), int(row["gpus"]))]
        ms = 1e3 * (one.latency_s + int(row["bytes"]) / one.bytes_per_s)
        yield Point(f"{row['gpus']} x {row['gpu']}, {int(row['bytes']):,} bytes", ms, float(row["ms"]))


def serving(folder: Path) -> Iterator[Point]:
    """TensorRT-LLM v0.14 under a rate: the mean ITL, by Little's law from the rows that the rate keeps running."""
    for row in read(folder / "trtllm_v0.14_serving_bf16.csv"):
        if row["offered_qps"] == "inf" or float(row["offered_qps"]) > 16:
            continue
        model, output = model_of(row), int(row["mean_output_tokens"])
        prompt, rate = int(row["mean_prompt_tokens"]), float(row["requests_per_s"])
        itl_s = 0.01
        for _ in range(50):  # a fixed point: more rows make longer steps, which make more rows
            rows = max(1.0, rate * output * itl_s)
            tokens = rows + rate * itl_s * prompt
            kv = rows * (prompt + output / 2)
            itl_s = (model.duration_ns(StepShape(round(tokens), round(rows), 0, 0, 0)) + model.kv * kv) / 1e9
        name = f"{row['model']} {row['gpu']} TP {row['tp']}, {prompt} + {output} at {row['offered_qps']}/s"
        yield Point(name, itl_s * 1e3, float(row["mean_itl_ms"]))


def vllm_run(folder: Path) -> Iterator[tuple[Point, float]]:
    """A run of vLLM 0.19 on an RTX 4090, 300 ShareGPT requests, replayed by the simulator: (point, bound)."""
    rows = [row for part in (1, 2) for row in read(folder / f"llmservingsim_vllm_rtx4090_llama8b_part{part}.csv")]
    queued_ms, first_ms, last_ms = (
        np.array([float(row[name]) for row in rows]) for name in ("queued_ms", "first_token_ms", "last_token_ms")
    )
    output = np.array([int(row["output_tokens"]) for row in rows])
    record = replay(rows, queued_ms)
    order = np.argsort(record.column("i"))
    sent, first, last = (record.column_ns(name)[order] / 1e6 for name in ("scheduled", "first", "last"))
    several = output > 1
    seconds, measured_s = (last.max() - sent.min()) / 1e3, (last_ms.max() - queued_ms.min()) / 1e3
    yield Point("output tok/s", output.sum() / seconds, output.sum() / measured_s), 0.05
    yield Point("mean TTFT, ms", (first - sent).mean(), (first_ms - queued_ms).mean()), 0.05
    tpot = ((last - first)[several] / (output - 1)[several]).mean()
    measured_tpot = ((last_ms - first_ms)[several] / (output - 1)[several]).mean()
    yield Point("mean TPOT, ms", tpot, measured_tpot), 0.07


def replay(rows: Sequence[Row], queued_ms: NDArray[np.float64]) -> RunRecord:
    model = step_times_of(
        "llama-3.1-8b", find_shape("llama-3.1-8b"), find_hardware("rtx4090"), Deployment(hardware="rtx4090")
    )
    config = SchedulerConfig(
        kv_blocks=2588, max_model_len=8192, max_num_seqs=256, max_num_batched_tokens=2048, watermark=0.0
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "requests.csv"
        lines = [
            f"{ms / 1e3},{row['prompt_tokens']},{row['output_tokens']}" for ms, row in zip(queued_ms, rows, strict=True)
        ]
        path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]))
        plan = build_plan(str(path), num_requests=len(rows), seed=0, arrival="trace", max_model_len=8192)
    pacing = Pacing(plan.arrivals_ugap, rate_per_s=(len(rows) - 1) / (queued_ms[-1] - queued_ms[0]) * 1e3)
    return SimulatedEngine(config, model).run(plan, pacing, SilentObserver())


TABLES = (
    Table("LLMServingSim, RTX 4090, decode steps", "ms", steps("llmservingsim_rtx4090_steps.csv", mixed=False), 0.05),
    Table("LLMServingSim, RTX 4090, mixed steps", "ms", steps("llmservingsim_rtx4090_steps.csv", mixed=True), 0.09),
    Table(
        "LLMServingSim, RTX PRO 6000, decode steps", "ms",
        steps("llmservingsim_rtxpro6000_llama8b_steps.csv", mixed=False), 0.05,
    ),
    Table(
        "LLMServingSim, RTX PRO 6000, mixed steps", "ms",
        steps("llmservingsim_rtxpro6000_llama8b_steps.csv", mixed=True), 0.09,
    ),
    Table("vidur, A100, Llama 2 70B, layers", "ms", layers("vidur_a100_llama2_70b_layers.csv"), 0.06),
    Table("vidur, A100, Llama 3 8B, layers", "ms", layers("vidur_a100_llama3_8b_layers.csv"), 0.06),
    Table("vidur, H100, Llama 2 7B, layers", "ms", layers("vidur_h100_llama2_7b_layers.csv"), 0.06),
    Table("TensorRT-LLM v0.17 offline, Llama 3.1 8B", "output tok/s", offline("8b"), 0.08),
    Table("TensorRT-LLM v0.17 offline, Llama 3.1 70B", "output tok/s", offline("70b"), 0.15),
    Table("Splitwise, Llama 2 70B, decode steps", "ms", splitwise(eager=False)),
    Table("Splitwise, Llama 2 70B, decode steps, host floor `eager`", "ms", splitwise(eager=True), 0.1),
    Table("aiconfigurator, routed experts, even routing", "ms", routed_experts("aiconfigurator_moe.csv", "balanced")),
    Table("aiconfigurator, routed experts, skewed routing", "ms",
          routed_experts("aiconfigurator_moe.csv", "power_law_1.2")),
    Table("LLMServingSim, RTX PRO 6000, routed experts", "ms",
          routed_experts("llmservingsim_rtxpro6000_moe_layer.csv")),
    Table("aiconfigurator, decode attention from 32 M elements on", "ms", decode_attention),
    Table("aiconfigurator, all-reduces", "ms", all_reduces),
    Table("TensorRT-LLM v0.14 serving, mean ITL", "ms", serving),
)  # fmt: skip


def mean_error(points: Sequence[Point]) -> float:
    return float(np.mean([abs(point.error) for point in points]))


def show_summary(compared: Sequence[tuple[Table, Sequence[Point]]]) -> bool:
    """Prints a line for each table, worst first; True where all are within their bounds."""
    print("| table | rows | mean error | at worst | bias | bound |\n|---|---:|---:|---:|---:|---:|")
    all_kept = True
    for table, points in sorted(compared, key=lambda one: -mean_error(one[1])):
        errors = np.array([point.error for point in points])
        kept = table.bound is None or mean_error(points) <= table.bound
        bound = "shown only" if table.bound is None else f"{table.bound:.0%}{'' if kept else ': MISSED'}"
        print(f"| {table.title} | {len(points)} | {mean_error(points):.1%} | {np.abs(errors).max():.1%} | "
              f"{errors.mean():+.1%} | {bound} |")  # fmt: skip
        all_kept &= kept
    return all_kept


def show_by_gpu(compared: Sequence[tuple[Table, Sequence[Point]]]) -> None:
    points = [point for _, points in compared for point in points if point.kind]
    print("\n| GPU and what is compared | rows | mean error |\n|---|---:|---:|")
    for kind in sorted({point.kind for point in points}):
        of_kind = [point for point in points if point.kind == kind]
        print(f"| {kind} | {len(of_kind)} | {mean_error(of_kind):.1%} |")


def show_worst(compared: Sequence[tuple[Table, Sequence[Point]]], worst: int = 3) -> None:
    print("\n| worst rows | predicted | measured | error |\n|---|---:|---:|---:|")
    for table, points in sorted(compared, key=lambda one: -mean_error(one[1])):
        for point in sorted(points, key=lambda one: -abs(one.error))[:worst]:
            print(f"| {table.title}: {point.name} ({table.unit}) | {point.predicted:,.5g} | {point.measured:,.5g} | "
                  f"{point.error:+.1%} |")  # fmt: skip


def main(folder: Path) -> int:
    compared = [(table, list(table.points(folder))) for table in TABLES]
    kept = show_summary(compared)
    show_by_gpu(compared)
    show_worst(compared)
    print("\nvLLM 0.19 on an RTX 4090, Llama 3.1 8B, 300 ShareGPT requests, replayed by the simulator\n")
    print("| | predicted | measured | error | bound |\n|---|---:|---:|---:|---:|")
    for point, bound in vllm_run(folder):
        kept &= abs(point.error) <= bound
        print(f"| {point.name} | {point.predicted:,.5g} | {point.measured:,.5g} | {point.error:+.1%} | {bound:.0%} |")
    return 0 if kept else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: simulator_world.py FOLDER")
    sys.exit(main(Path(sys.argv[1])))
