"""RunConfig: every setting of a run. Flags win over cbbench.toml, which wins over what the workload suggests.

A new flag is a field here and a line in cli/options.py; a test checks that the two agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engines.remote.headers import is_credential, parse_headers
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.resource_gate import Quota
from workloads.errors import CbbenchError

# The upper ends are far beyond what anybody measures; they keep a slip of the keyboard from filling the memory.
MOST_REQUESTS = 10_000_000
Positive = Annotated[int, Meta(ge=1, le=100_000_000)]
Blocks = Annotated[int, Meta(ge=1, le=10_000_000)]
Seats = Annotated[int, Meta(ge=1, le=65_536)]
Natural = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1e9)]
Rate = Annotated[float, Meta(ge=1e-6, le=1e6)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Share = Annotated[float, Meta(ge=0, le=1)]


class UsageError(CbbenchError):
    """Retired: raise CbbenchError. It stays until no room raises it."""

    def __init__(self, message: str) -> None:
        super().__init__(None, message)


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. Made by `validation.build_config`; None means that the default depends on something else."""

    engine: Literal["reference", "openai", "simulated"] = "reference"
    url: str | None = None
    model: str = "smollm2-135m"
    weights: Literal["auto", "random"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    attention: Literal["auto", "torch", "triton", "flashinfer"] = "auto"
    cuda_graphs: bool | None = None  # None: where they can be
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] | None = None  # None: 0.9, and no more than is needed
    gpu_telemetry: bool | None = None  # None: where our own engine runs on a GPU

    law: str | None = None  # simulated: a run's folder with law.json, or that file
    hardware: str | None = None  # simulated, uncalibrated
    api: Literal["completions", "chat", "tgi"] = "completions"
    ca_file: str | None = None
    prompt_form: Literal["auto", "ids", "text"] = "auto"
    extra_body: str | None = None  # a JSON object
    header: tuple[str, ...] = ()  # "Name: value"
    warmup: Natural = 4  # requests
    workers: str = "1"  # or auto
    read_timeout: PositiveFloat = 600.0  # s
    scrape: bool = True
    metrics_url: str | None = None  # None: /metrics at the url
    launch: str | None = None  # a command with {port}, and in a sweep {value}
    ready_timeout: PositiveFloat = 600.0  # s

    workload: str = "azure-conv"
    tenants: str | None = None
    num_requests: Annotated[int, Meta(ge=1, le=MOST_REQUESTS)] = 64  # under a rate and a duration: what those hold
    rate: Rate | str | None = None  # requests/s, or stages of them, as rates.py reads; None: no schedule
    arrival: str | None = None  # poisson, under a rate
    concurrency: Positive | None = None
    duration: Annotated[float, Meta(gt=0, le=1e7)] | None = None  # s
    drain: Seconds = 30.0  # s
    seed: Natural = 0
    prompt_seed: Natural = 0
    misfit: Literal["error", "reject"] = "error"
    ignore_eos: bool = True
    temperature: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    top_k: Natural = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0

    mode: Literal["continuous", "static"] = "continuous"
    static: Literal["padded", "compact-held", "compact-freed"] | None = None
    max_num_seqs: Seats = 32
    max_num_batched_tokens: Positive | None = None  # None: by device
    max_model_len: Positive | None = None  # None: the model's own
    kv_blocks: Blocks | None = None  # None: enough for every seat
    block_size: Seats = 16  # tokens
    chunked_prefill: bool | None = None
    prefill: Literal["decode-first", "prefill-first"] | None = None
    max_prompt_chunk: Positive | None = None  # tokens of a step
    prompt_buckets: str | None = None  # ascending prompt lengths, "512,4096"
    static_patience: Seconds | None = None  # s
    order: Literal["fcfs", "shortest-prompt", "shortest-known", "shortest-predicted", "priority", "fair"] = "fcfs"
    admission: Literal["full-reserve", "full-prompt", "optimistic", "peak"] | None = None
    watermark: Annotated[float, Meta(ge=0, lt=100)] = 1.0  # percent of the KV blocks
    on_kv_pressure: Literal["delay", "recompute", "swap", "reject"] = "recompute"
    victim: Literal["newest", "least-computed", "lowest-priority"] = "newest"
    swap_blocks: Blocks | None = None  # None: as many as the pool has, under swap
    ageing: Annotated[float, Meta(ge=0, le=1e9)] | None = None  # tokens (or levels of priority) per second waited
    skip_ahead: Natural = 0
    preempt_for_priority: bool = False
    prefix_caching: bool = False
    disaggregate: bool = False
    prefill_max_num_seqs: Seats | None = None  # of the prefill instance; None: as the decode instance's, also below
    prefill_max_num_batched_tokens: Positive | None = None
    prefill_kv_blocks: Blocks | None = None
    # 10^9 bytes a second, simulated; None: by hardware
    kv_link_gb_per_s: Annotated[float, Meta(ge=1e-3, le=1e9)] | None = None
    quota: tuple[str, ...] = ()

    sla: tuple[str, ...] = ()
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    max_failure_rate: Share = 0.01

    output: str | None = None
    json: bool = False
    timeline: bool | None = None  # None: where it is small enough to read

    def config_hash(self) -> str:
        """Identity of the work: equal for two runs that measure the same thing, however judged or shown."""
        judged = ("sla", "confidence", "max_failure_rate")
        watched = ("scrape", "metrics_url", "gpu_telemetry")
        shown = (*judged, *watched, "output", "json", "timeline", "workers", "ready_timeout")
        work = {key: value for key, value in msgspec.structs.asdict(self).items() if key not in (*shown, "header")}
        # A key that was renewed is no other work; another route is.
        if routes := [one for one in parse_headers(self.header) if not is_credential(one[0])]:
            work["header"] = routes
        return hashlib.sha256(msgspec.json.encode(work, order="sorted")).hexdigest()[:16]

    def scheduler(self, *, kv_blocks: int, max_model_len: int, max_num_batched_tokens: int) -> SchedulerConfig:
        """What the scheduler needs to know, once the model and the plan have said the rest. EngineError on conflict."""
        return SchedulerConfig(
            kv_blocks=kv_blocks,
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=self.block_size,
            mode=self.mode,
            chunked_prefill=self.chunked_prefill is not False,
            prefill=self.prefill or "decode-first",
            static=self.static or "padded",
            max_prompt_chunk=self.max_prompt_chunk,
            prompt_buckets=parse_buckets(self.prompt_buckets),
            static_patience_s=self.static_patience or 0.0,
            order=self.order,
            ageing=self.ageing,
            skip_ahead=self.skip_ahead,
            preempt_for_priority=self.preempt_for_priority,
            admission=self.admission,
            watermark=self.watermark / 100,
            on_kv_pressure=self.on_kv_pressure,
            victim=self.victim,
            swap_blocks=self.swap_blocks or (kv_blocks if self.on_kv_pressure == "swap" else 0),
            prefix_caching=self.prefix_caching,
            quotas=parse_quotas(self.quota),
        )


FIELDS = RunConfig.__struct_fields__
# Settings of an engine of ours: a server at --url has its own, so giving them beside it is a mistake.
ENGINE_SETTINGS = (
    "weights", "device", "dtype", "attention", "cuda_graphs", "gpu_memory_utilization", "mode", "static",
    "static_patience", "max_num_seqs",
    "max_num_batched_tokens", "kv_blocks", "block_size", "chunked_prefill", "prefill", "max_prompt_chunk",
    "prompt_buckets", "order", "ageing", "skip_ahead", "preempt_for_priority", "quota", "admission", "watermark",
    "on_kv_pressure", "victim", "swap_blocks", "prefix_caching", "timeline", "disaggregate", "prefill_max_num_seqs",
    "prefill_max_num_batched_tokens", "prefill_kv_blocks", "kv_link_gb_per_s",
)  # fmt: skip
SERVER_SETTINGS = (
    "api", "ca_file", "prompt_form", "extra_body", "header", "warmup", "workers", "read_timeout", "scrape",
    "metrics_url",
)  # fmt: skip
PAIR_SETTINGS = ("prefill_max_num_seqs", "prefill_max_num_batched_tokens", "prefill_kv_blocks", "kv_link_gb_per_s")


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def parse_buckets(text: str | None) -> tuple[int, ...]:
    """Ascending prompt lengths out of "512,4096"."""
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--prompt-buckets: want ascending prompt lengths like 512,4096, got {text!r}") from None


class _QuotaLimits(msgspec.Struct, forbid_unknown_fields=True):
    rows: Positive | None = None
    kv_blocks: Positive | None = None
    tokens_per_s: PositiveFloat | None = None


def parse_quotas(texts: Sequence[str]) -> dict[str, Quota]:
    """{tenant: quota} out of "a:rows=4,kv-blocks=100,tokens-per-s=500", one text a tenant."""
    quotas: dict[str, Quota] = {}
    for text in texts:
        tenant, _, limits = text.partition(":")
        pairs = [part.partition("=")[::2] for part in limits.replace("-", "_").split(",")]
        try:
            if not tenant or tenant in quotas or len(dict(pairs)) != len(pairs):
                raise ValueError(text)
            given = msgspec.convert(dict(pairs), _QuotaLimits, strict=False)
        except (ValueError, msgspec.ValidationError):
            raise UsageError(
                "--quota: want TENANT:LIMIT=N,... once a tenant, each limit (rows, kv-blocks, tokens-per-s) once and "
                f"above 0, got {text!r}"
            ) from None
        quotas[tenant] = Quota(given.rows, given.kv_blocks, given.tokens_per_s)
    return quotas
