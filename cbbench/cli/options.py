"""The options `run` and `sweep` share, declared once. Each is a field of RunConfig, which holds its default and range.

Only Typer and the standard library are imported here: `cbbench --help` must stay quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

ENGINE, SERVER, WORKLOAD, SCHEDULER, PAIR, FAIRNESS, PREFILL, JUDGEMENT, OUTPUT = (
    "Engine",
    "Server over HTTP",
    "Workload",
    "Scheduler",
    "Disaggregation",
    "Order and fairness",
    "Prefill",
    "Judgement",
    "Output",
)
ON_OFF = ", on or off"


def option(field: str, kind: Any, panel: str, text: str, *flags: str, metavar: str | None = None) -> inspect.Parameter:
    """None means not given: then cbbench.toml, the workload or RunConfig decides."""
    declaration = typer.Option(
        *(flags or ("--" + field.replace("_", "-"),)),
        help=text,
        rich_help_panel=panel,
        metavar=metavar,
        show_default=False,
    )
    return inspect.Parameter(
        field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declaration]
    )


def on_off(field: str, panel: str, text: str) -> inspect.Parameter:
    """In a panel of their own: beside their two names the help of other options would have no room in 80 columns."""
    name = field.replace("_", "-")
    return option(field, bool, f"{panel}{ON_OFF}", text, f"--{name}/--no-{name}", metavar=" ")


RUN_OPTIONS = (
    option("engine", str, ENGINE, "What runs the requests. reference: cbbench's own engine, in this process. openai: a "
           "server at --url. simulated: the same scheduler on a virtual clock. Default: reference.", metavar="KIND"),
    option("law", str, ENGINE, "With --engine simulated: the step times, as `cbbench calibrate RUN` fitted them; a "
           "RUN or its law.json. Default: none.", metavar="RUN"),
    option("hardware", str, ENGINE, "With --engine simulated, instead of --law: uncalibrated step times of a device: "
           "h200, h100, a100, l40s, ... Default: none.", metavar="NAME"),
    option("model", str, ENGINE, "A known shape (smollm2-135m, qwen3-0.6b, llama-3.1-8b, tiny), a GGUF file or a "
           "Hugging Face folder. Default: smollm2-135m; tiny is a small random model.", metavar="NAME"),
    option("weights", str, ENGINE, "random: seeded random weights of that shape, with no file. Default: auto, the real "
           "ones.", metavar="KIND"),
    option("device", str, ENGINE, "Where the model runs: cpu or cuda. Default: auto, a GPU if there is one.",
           metavar="NAME"),
    option("dtype", str, ENGINE, "Precision of weights and KV cache: bf16, fp16 or fp32. Default: auto, bf16 where the "
           "hardware is fast at it, else fp32.", metavar="TYPE"),

    option("attention", str, ENGINE, "Kernels of a step: torch, or on a GPU triton; flashinfer: triton, with attention "
           "by FlashInfer and without CUDA graphs. Default: auto, triton where it can run.", metavar="KIND"),
    on_off("cuda_graphs", ENGINE, "Replay steps that only decode from CUDA graphs, one per number of rows. Default: on "
           "a GPU with triton."),
    option("gpu_memory_utilization", float, ENGINE, "On a GPU, or with --hardware: the share of the memory left beside "
           "the weights (and, on a GPU, the largest step) that the KV cache takes; --kv-blocks wins. Default: 0.9, and "
           "on a GPU no more than all seats need.", metavar="SHARE"),

    option("url", str, SERVER, "Load this server over HTTP, as in http://127.0.0.1:8000. Default: none. The key, if "
           "it wants one, is taken from OPENAI_API_KEY.", metavar="URL"),
    option("api", str, SERVER, "What to speak: completions, chat, or tgi (its own /generate_stream). Default: "
           "completions.", metavar="WORD"),
    option("prompt_form", str, SERVER, "Send prompts as token ids, exact in length, or as text. Default: auto, ids "
           "where the server takes them.", metavar="WORD"),
    option("warmup", int, SERVER, "Requests sent before the run, with other prompts. Default: 4.", metavar="N"),
    option("workers", str, SERVER, "Processes that send: a number or auto. Default: 1.", metavar="N"),
    option("extra_body", str, SERVER, "JSON object merged into every request. Default: none.", metavar="JSON"),
    option("header", list[str], SERVER, "Header of every request, as in 'X-Tenant: a'; repeat for more. Results have "
           "its name, never its value. Default: none.", metavar="'N: V'"),
    option("read_timeout", float, SERVER, "Seconds without a byte of an answer after which it failed. Default: 600.",
           metavar="S"),
    option("ca_file", str, SERVER, "Certificates to trust instead of the system's. Default: none.", metavar="FILE"),
    on_off("scrape", SERVER, "Read the server's /metrics four times a second: its queue, KV usage and preemptions. "
           "Default: on."),
    option("metrics_url", str, SERVER, "Where its metrics are, if not at /metrics of --url. Default: there.",
           metavar="URL"),
    option("launch", str, SERVER, "Instead of --url: start this server, load it and end it, as in 'vllm serve MODEL "
           "--port {port}'. A sweep starts one per setting, its values in place of {value} or {PARAM}. Default: none.",
           metavar="COMMAND"),
    option("ready_timeout", float, SERVER, "Seconds a launched server has to become ready. Default: 600.",
           metavar="S"),

    option("workload", str, WORKLOAD, "What to ask: a preset (cbbench workload list), lengths by "
           "'prompt=LAW;output=LAW', or a file of lengths or of prompts. Default: azure-conv.", metavar="SPEC"),
    option("tenants", str, WORKLOAD, "A mix instead of one workload, as in 'a:weight=3;b:weight=1,priority=1'; "
           "see docs/workloads.md. Default: none.", metavar="SPEC"),
    option("num_requests", int, WORKLOAD, "Requests in the plan. Default: 64; what --duration holds under --rate; the "
           "rows of a file.", metavar="N"),
    option("rate", str, WORKLOAD, "Open loop: requests per second, whether or not the engine keeps up. Or stages of "
           "them: '2 for 60s, 8 for 60s, 2', '2..20 for 2m'. Default: none, all at t = 0.", metavar="R"),
    option("arrival", str, WORKLOAD, "Shape of the arrivals under --rate: constant, poisson, gamma:CV (burstier above "
           "CV 1) or trace, which without --rate keeps its own pace. Default: poisson.", metavar="LAW"),
    option("concurrency", int, WORKLOAD, "Closed loop: keep N requests in flight; with --rate, the most in flight. "
           "Default: no limit.", metavar="N"),
    option("duration", float, WORKLOAD, "Stop sending after this many seconds; with --rate, the plan is as long. "
           "Default: send the whole plan.",
           metavar="S"),
    option("drain", float, WORKLOAD, "With --duration: let what runs end for this many seconds, then cancel it. "
           "Default: 30.", metavar="S"),
    option("seed", int, WORKLOAD, "Seed of lengths and arrivals: the same seed gives the same plan anywhere. "
           "Default: 0.", metavar="N"),
    option("prompt_seed", int, WORKLOAD, "Seed of the prompts' content, which changes no length; those of a file "
           "have none. Default: 0.", metavar="N"),
    option("misfit", str, WORKLOAD, "When prompt + output exceeds the context in a file or trace: error stops before "
           "the run, reject runs and counts it as failed. Default: error.", metavar="WORD"),
    on_off("ignore_eos", WORKLOAD, "Force the planned output length even past an end-of-text token. Default: on."),
    option("temperature", float, WORKLOAD, "Sampling temperature. Default: 0, greedy.", metavar="T"),
    option("top_k", int, WORKLOAD, "Sample among the K likeliest tokens. Default: 0, all.", metavar="K"),
    option("top_p", float, WORKLOAD, "Sample among the likeliest tokens that hold this share of probability. "
           "Default: 1, all.", metavar="P"),

    option("mode", str, SCHEDULER, "continuous: a request joins and leaves the batch at any step. static: a batch is "
           "filled, then runs until its last request ends. Default: continuous.", metavar="WORD"),
    option("static", str, SCHEDULER, "What static means. padded: padding and finished rows are computed too. "
           "compact-held: they are not, but KV is freed when the batch ends. compact-freed: each request frees its "
           "own. Default: padded.", metavar="KIND"),
    option("max_num_seqs", int, SCHEDULER, "Seats in the batch: more raise throughput and the time per token. "
           "Default: 32.", metavar="N"),
    option("max_num_batched_tokens", int, SCHEDULER, "Tokens computed per step, prompts and outputs together: more "
           "speed prompts up and stall running outputs longer. Default: 512 on a CPU, 8192 on a GPU.", metavar="N"),
    option("max_model_len", int, SCHEDULER, "Longest prompt + output in tokens. Default: the model's own context.",
           metavar="N"),
    option("kv_blocks", int, SCHEDULER, "Usable blocks of KV cache: too few delay or preempt requests. Default: what "
           "all seats need, within memory.", metavar="N"),
    option("block_size", int, SCHEDULER, "Tokens per KV block. Default: 16.", metavar="N"),
    option("admission", str, SCHEDULER, "KV blocks that must be free to admit. full-prompt: the prompt's. "
           "full-reserve: those of prompt and full output, so that nothing is preempted. optimistic: the first "
           "chunk's. peak: full-prompt, if the predicted peak of all fits. Default: full-prompt; full-reserve in "
           "static mode.", metavar="WORD"),
    option("watermark", float, SCHEDULER, "Share of KV blocks, in percent, that full-prompt admission leaves free. "
           "Default: 1.", metavar="PCT"),
    option("on_kv_pressure", str, SCHEDULER, "When KV blocks run out: delay admits full-reserve so that it cannot "
           "happen, recompute preempts a request and computes it again, swap moves its blocks to the host and back, "
           "reject fails it. Default: recompute.", metavar="WORD"),
    option("victim", str, SCHEDULER, "Who is preempted. newest: the last one in. least-computed: the cheapest to "
           "compute again. lowest-priority: the least urgent. Default: newest.", metavar="WORD"),
    option("swap_blocks", int, SCHEDULER, "KV blocks kept on the host for swap; when they run out, swap recomputes. "
           "Default: as many as the KV cache has, within a quarter of the host's memory.", metavar="N"),
    on_off("prefix_caching", SCHEDULER, "Reuse the KV blocks of prompts that begin alike, within a tenant. Default: "
           "off."),
    option("static_patience", float, SCHEDULER, "Seconds a static batch waits for its seats to fill. Default: 0.",
           metavar="S"),

    on_off("disaggregate", PAIR, "Compute prompts on one instance of the engine and outputs on another, each with "
           "seats and KV cache of its own; --max-num-seqs and --kv-blocks are the decode instance's. Default: off."),
    option("prefill_max_num_seqs", int, PAIR, "Seats of the prefill instance. Default: as --max-num-seqs.",
           metavar="N"),
    option("prefill_max_num_batched_tokens", int, PAIR, "Tokens it computes per step. Default: as "
           "--max-num-batched-tokens.", metavar="N"),
    option("prefill_kv_blocks", int, PAIR, "Its blocks of KV cache, which hold a prompt until the decode instance has "
           "fetched it. Default: as --kv-blocks.", metavar="N"),
    option("kv_link_gb_per_s", float, PAIR, "With --engine simulated: GB a second (10^9 bytes) between the two. "
           "Default: the device's PCIe link, 50 on an H100.", metavar="GB/S"),

    option("order", str, FAIRNESS, "Who is admitted next. fcfs: first come. shortest-prompt, shortest-known (true "
           "length, an oracle), shortest-predicted (learnt): the least work. priority: the most urgent. fair: the "
           "tenant served least. Default: fcfs.", metavar="WORD"),
    option("ageing", float, FAIRNESS, "Advantage per second waited, in tokens (levels under priority), so that nobody "
           "starves under --order. Default: none.", metavar="RATE"),
    option("skip_ahead", int, FAIRNESS, "Requests that may pass a head that waits for KV, before blocks are kept for "
           "it. Default: 0, none.", metavar="K"),
    on_off("preempt_for_priority", FAIRNESS, "With --order priority: a running request makes way for a more urgent "
           "one. Default: off."),
    option("quota", list[str], FAIRNESS, "Limits of one tenant, as in 'a:rows=4,kv-blocks=100,tokens-per-s=500'; "
           "repeat for more tenants. Default: none.", metavar="SPEC"),

    on_off("chunked_prefill", PREFILL, "Split long prompts over steps, so that running outputs go on. Default: on."),
    option("prefill", str, PREFILL, "Who gets a step's tokens first. decode-first: running outputs. prefill-first: "
           "waiting prompts, for a sooner first token and stalls after it. Default: decode-first.", metavar="WORD"),
    option("max_prompt_chunk", int, PREFILL, "Tokens one prompt may take of a step, so that a long one leaves room for "
           "short ones. Default: no limit but the step's.", metavar="N"),
    option("prompt_buckets", str, PREFILL, "Batch prompts of different length apart: ascending limits, as in 512,4096. "
           "Default: together.", metavar="N,N"),

    option("sla", list[str], JUDGEMENT, "A bound to judge by, as in 'p99_ttft_ms<=500', or on a part of the load, as "
           "in 'p99_ttft_ms\\[tenant=quiet]<=500' or \\[stage=3]; repeat for more. Exit code 3 if one fails, 5 if "
           "it cannot be told (too few requests, or not measured). Default: none.", metavar="EXPR"),
    option("confidence", float, JUDGEMENT, "Confidence for SLA verdicts and intervals. Default: 0.95.", metavar="P"),
    option("max_failure_rate", float, JUDGEMENT, "Share of failed requests above which the load is invalid, exit code "
           "7. Default: 0.01.", metavar="R"),

    option("output", str, OUTPUT, "New or empty folder for the results. Default: runs/TIME-MODE-WORKLOAD.",
           "--output", "-o", metavar="DIR"),
    option("json", bool, OUTPUT, "Print the result as JSON and nothing else on stdout. Default: off.", "--json"),
    on_off("gpu_telemetry", OUTPUT, "Read the first GPU of this machine four times a second into signals.jsonl: use, "
           "memory, clocks, power. Default: on where cbbench's own engine runs on it; off beside --url."),
    on_off("timeline", OUTPUT, "Show who sat in which seat at which step. Default: on up to 4 seats."),
)  # fmt: skip

CONFIG_FILE = option("config", list[Path], OUTPUT, "Read settings from this file; flags win. Repeat to lay one over "
                     "another: later files win. Default: cbbench.toml here, if there is one.",
                     metavar="FILE")  # fmt: skip
DEBUG = option("debug", bool, OUTPUT, "Show the traceback of an error. Default: off.", "--debug")


def takes(*parameters: inspect.Parameter) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command these options beside the parameters it names itself; they reach it through its **given."""

    def add(command: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(command, eval_str=True)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = own.replace(parameters=[*named, *parameters])  # type: ignore[attr-defined]
        return command

    return add
