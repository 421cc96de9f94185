"""Settings of our scheduler: batching, KV cache, order, fairness and prefill; and of two instances, one for prefill."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from cbbench.settings.facts import OURS, SET, SIMULATED, setting

if TYPE_CHECKING:
    from cbbench.settings.values import PromptBuckets, TenantQuota, TenantWeight
else:
    PromptBuckets = TenantQuota = TenantWeight = object  # their module loads NumPy

_of_scheduler = partial(setting, panel="Scheduler", engines=OURS, served=True)
_of_order = partial(setting, panel="Order and fairness", engines=OURS, served=True)
_of_prefill = partial(setting, panel="Prefill", engines=OURS, served=True)
_of_instances = partial(setting, panel="Disaggregation", engines=OURS, needs={"disaggregate": True})


class SchedulerSettings(Struct, frozen=True, kw_only=True):
    """What our scheduler does. None: the default depends on something else."""

    like: Annotated[
        Literal["vllm-v1"] | None,
        Meta(
            description="Schedule as another system does: sets the policies that it has, and refuses those it lacks. "
            "docs/scheduling.md says what is not imitated. Default: none.",
            extra=_of_scheduler("SYSTEM", hashed="never"),
        ),
    ] = None
    mode: Annotated[
        Literal["continuous", "static"],
        Meta(
            description="continuous: a request joins and leaves the batch at any step. static: a batch is filled, then "
            "runs until its last request ends. Default: continuous.",
            extra=_of_scheduler("WORD"),
        ),
    ] = "continuous"
    static: Annotated[
        Literal["padded", "compact-held", "compact-freed"] | None,
        Meta(
            description="What static means. padded: padding and finished rows are computed too. compact-held: they are "
            "not, but KV is freed when the batch ends. compact-freed: each request frees its own. Default: padded.",
            extra=_of_scheduler("KIND", mode="static"),
        ),
    ] = None
    max_num_seqs: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="Slots in the batch: more raise throughput and the time per token. Default: 32.",
            extra=_of_scheduler("N"),
        ),
    ] = 32
    max_num_batched_tokens: Annotated[
        int | None,
        Meta(
            ge=1,
            le=100_000_000,
            description="Tokens computed per step, prompts and outputs together: more speed prompts up and stall "
            "running outputs longer. Default: 512 on a CPU, 8192 on a GPU.",
            extra=_of_scheduler("N"),
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Meta(
            ge=1,
            le=100_000_000,
            description="Longest prompt + output in tokens. Default: the model's own context.",
            extra=setting("N", panel="Scheduler", served=True, plan=True),
        ),
    ] = None
    kv_blocks: Annotated[
        int | None,
        Meta(
            ge=1,
            le=10_000_000,
            description="Usable blocks of KV cache: too few delay or preempt requests. Default: what all slots need, "
            "within memory.",
            extra=_of_scheduler("N"),
        ),
    ] = None
    block_size: Annotated[
        int, Meta(ge=1, le=65_536, description="Tokens per KV block. Default: 16.", extra=_of_scheduler("N"))
    ] = 16
    admission: Annotated[
        Literal["full-reserve", "full-prompt", "optimistic", "prompt-fits", "peak"] | None,
        Meta(
            description="KV blocks that must be free to admit. full-prompt: the prompt's. full-reserve: those of "
            "prompt and full output, so that nothing is preempted. optimistic: the first chunk's. prompt-fits: the "
            "prompt's, of which only the first chunk's are reserved. peak: full-prompt, if the predicted peak of all "
            "fits. Default: full-prompt; full-reserve in static mode.",
            extra=_of_scheduler("WORD", mode="continuous", other_mode=("full-reserve",)),
        ),
    ] = None
    watermark: Annotated[
        float,
        Meta(
            ge=0,
            lt=100,
            description="Share of KV blocks, in percent, that full-prompt admission leaves free. Default: 1.",
            extra=_of_scheduler("PCT"),
        ),
    ] = 1.0
    on_kv_pressure: Annotated[
        Literal["delay", "recompute", "swap", "reject"],
        Meta(
            description="When KV blocks run out: delay admits full-reserve so that it cannot happen, recompute "
            "preempts a request and computes it again, swap moves its blocks to the host and back, reject fails it. "
            "Default: recompute.",
            extra=_of_scheduler("WORD"),
        ),
    ] = "recompute"
    victim: Annotated[
        Literal["newest", "last", "least-computed", "lowest-priority"],
        Meta(
            description="Which request is preempted. newest: the last one admitted, prompts before outputs. last: the "
            "last, whatever it computes. least-computed: the cheapest to compute again. lowest-priority: the least "
            "urgent. Default: newest.",
            extra=_of_scheduler("WORD"),
        ),
    ] = "newest"
    swap_blocks: Annotated[
        int | None,
        Meta(
            ge=1,
            le=10_000_000,
            description="KV blocks kept on the host for swap; when they run out, swap recomputes. Default: as many as "
            "the KV cache has, within a quarter of the host's memory.",
            extra=_of_scheduler("N", needs={"on_kv_pressure": "swap"}),
        ),
    ] = None
    prefix_caching: Annotated[
        bool,
        Meta(
            description="Reuse the KV blocks of prompts that begin alike, within a tenant. Default: off.",
            extra=_of_scheduler(),
        ),
    ] = False
    static_patience: Annotated[
        float | None,
        Meta(
            ge=0,
            le=1e7,
            description="Seconds a static batch waits for its slots to fill. Default: 0.",
            extra=_of_scheduler("S", mode="static"),
        ),
    ] = None

    order: Annotated[
        Literal["fcfs", "shortest-prompt", "shortest-known", "shortest-predicted", "priority", "fair"],
        Meta(
            description="Which waiting request is admitted next. fcfs: first come. shortest-prompt, shortest-known "
            "(true length, an oracle), shortest-predicted (learnt): the least work. priority: the most urgent. fair: "
            "the tenant served least. Default: fcfs.",
            extra=_of_order("WORD"),
        ),
    ] = "fcfs"
    ageing: Annotated[
        float | None,
        Meta(
            ge=0,
            le=1e9,
            description="Advantage per second waited, in tokens (levels under priority), so that no request starves "
            "under `order`. Default: none.",
            extra=_of_order("RATE"),
        ),
    ] = None
    skip_ahead: Annotated[
        int,
        Meta(
            ge=0,
            description="Requests that may pass a head of the queue that waits for KV, before blocks are kept for it. "
            "Default: 0, none.",
            extra=_of_order("K"),
        ),
    ] = 0
    preempt_for_priority: Annotated[
        bool,
        Meta(
            description="With `order` priority: a running request is preempted for a more urgent one. Default: off.",
            extra=_of_order(),
        ),
    ] = False
    quota: Annotated[
        tuple[TenantQuota, ...],
        Meta(
            description="Limits of one tenant, as in 'a:max-num-seqs=4,kv-blocks=100,tokens-per-s=500'; repeat for "
            "more tenants. Default: none.",
            extra=_of_order(
                "SPEC",
                unswept="is a list of limits; sweep it with one `cbbench run` for each",
                given=list[str],
                parse="cbbench.settings.values:parse_quotas",
            ),
        ),
    ] = ()

    tenant_weight: Annotated[
        tuple[TenantWeight, ...],
        Meta(
            description="With `order` fair: a tenant's share against the others', as in a:2; repeat for more tenants. "
            "Default: 1 for each.",
            extra=_of_order(
                "TENANT:W",
                needs={"order": "fair"},
                unswept="is a list of weights; sweep it with one `cbbench run` for each",
                hashed="if-set",
                given=list[str],
                parse="cbbench.settings.values:parse_weights",
            ),
        ),
    ] = ()

    chunked_prefill: Annotated[
        bool | None,
        Meta(
            description="Split long prompts over steps, so that running outputs go on. Default: on.",
            extra=_of_prefill(mode="continuous", other_mode=(True,)),
        ),
    ] = None
    prefill: Annotated[
        Literal["decode-first", "prefill-first", "in-order"] | None,
        Meta(
            description="What gets a step's tokens first. decode-first: running outputs. prefill-first: waiting "
            "prompts, for a sooner first token and stalls after it. in-order: the requests that came first. Default: "
            "decode-first.",
            extra=_of_prefill("WORD", mode="continuous"),
        ),
    ] = None
    max_prompt_chunk: Annotated[
        int | None,
        Meta(
            ge=1,
            le=100_000_000,
            description="Tokens one prompt may take of a step, so that a long one leaves room for short ones (vLLM's "
            "--long-prefill-token-threshold, which is taken too). Default: no limit but the step's.",
            extra=_of_prefill("N", mode="continuous", also="long_prefill_token_threshold"),
        ),
    ] = None
    max_num_partial_prefills: Annotated[
        int | None,
        Meta(
            ge=1,
            le=1_000_000,
            description="Prompts that may be partly computed at a time; another waits, unless a step computes all of "
            "it. Default: no limit.",
            extra=_of_prefill("N", mode="continuous", hashed="if-set"),
        ),
    ] = None
    max_long_partial_prefills: Annotated[
        int | None,
        Meta(
            ge=1,
            le=1_000_000,
            description="Of these, prompts longer than `max_prompt_chunk`; shorter ones behind them go first. Default: "
            "no limit.",
            extra=_of_prefill("N", mode="continuous", hashed="if-set", needs={"max_prompt_chunk": SET}),
        ),
    ] = None
    prompt_buckets: Annotated[
        PromptBuckets | None,
        Meta(
            description="Batch prompts of different length apart: ascending limits, as in 512,4096. Default: together.",
            extra=_of_prefill("N,N", given=str, parse="cbbench.settings.values:parse_buckets"),
        ),
    ] = None


class DisaggregationSettings(Struct, frozen=True, kw_only=True):
    """Two instances: one computes prompts, the other outputs. The scheduler's settings are the decode instance's."""

    disaggregate: Annotated[
        bool,
        Meta(
            description="Compute prompts on one instance of the engine and outputs on another, each with slots and KV "
            "cache of its own; `max_num_seqs` and `kv_blocks` are the decode instance's. Default: off.",
            extra=setting(panel="Disaggregation", engines=OURS),
        ),
    ] = False
    prefill_max_num_seqs: Annotated[
        int | None,
        Meta(
            ge=1,
            le=65_536,
            description="Slots of the prefill instance. Default: as `max_num_seqs`.",
            extra=_of_instances("N"),
        ),
    ] = None
    prefill_max_num_batched_tokens: Annotated[
        int | None,
        Meta(
            ge=1,
            le=100_000_000,
            description="Tokens it computes per step. Default: as `max_num_batched_tokens`.",
            extra=_of_instances("N"),
        ),
    ] = None
    prefill_kv_blocks: Annotated[
        int | None,
        Meta(
            ge=1,
            le=10_000_000,
            description="Its blocks of KV cache, which hold a prompt until the decode instance has fetched it. "
            "Default: as `kv_blocks`.",
            extra=_of_instances("N"),
        ),
    ] = None
    kv_link_gb_per_s: Annotated[
        float | None,
        Meta(
            ge=1e-3,
            le=1e9,
            description="With `engine` simulated: GB a second (10^9 bytes) between the two. Default: the device's PCIe "
            "link, 50 on an H100.",
            extra=_of_instances("GB/S", engines=SIMULATED),
        ),
    ] = None
