"""Settings of what runs the requests: an engine of ours, or a server over HTTP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, field

from cbbench.settings.facts import ONCE, OPENAI, OURS, REFERENCE, SERVER, SET, SHOWN, SIMULATED, setting

if TYPE_CHECKING:
    from cbbench.settings.values import ExtraBody, FailuresAllowed, Header
else:
    ExtraBody = FailuresAllowed = Header = object  # their module loads NumPy

_of_engine = partial(setting, panel="Engine")
_of_model = partial(setting, panel="Engine", unswept=ONCE, loaded_once=True, served=True)
_of_hardware = partial(
    setting, panel="Engine", engines=SIMULATED, unswept=ONCE, loaded_once=True, hashed="if-set", needs={"hardware": SET}
)
_of_speculation = partial(
    setting,
    panel="Engine",
    engines=SIMULATED,
    unswept=ONCE,
    loaded_once=True,
    hashed="if-set",
    needs={"speculative_tokens": SET},
)
_of_server = partial(setting, panel="Server over HTTP", engines=OPENAI)


class EngineSettings(Struct, frozen=True, kw_only=True):
    """What runs the requests. None: the default depends on something else."""

    kind: Annotated[
        Literal["reference", "openai", "simulated"],
        Meta(
            description="What runs the requests. reference: cbbench's own engine, in this process. openai: a server at "
            "`url`. simulated: the same scheduler on a virtual clock. Default: reference.",
            extra=_of_engine("KIND", unswept=ONCE, loaded_once=True),
        ),
    ] = field(default="reference", name="engine")
    step_time_model: Annotated[
        str | None,
        Meta(
            description="With `engine` simulated: the step times, as `cbbench calibrate RUN` fitted them; a RUN or its "
            "step_time_model.json. Default: none.",
            extra=_of_engine("RUN", engines=SIMULATED, unswept=ONCE, loaded_once=True, old_name="law"),
        ),
    ] = None
    hardware: Annotated[
        str | None,
        Meta(
            description="With `engine` simulated, instead of `step_time_model`: uncalibrated step times of a GPU: "
            "h100, h200, b200, a100, l40s, rtx4090, mi300x, ... Beside it: those of the run, moved to this GPU by the "
            "data sheets. Default: none.",
            extra=_of_engine("NAME", engines=SIMULATED, unswept=ONCE, loaded_once=True),
        ),
    ] = None
    tensor_parallel: Annotated[
        int,
        Meta(
            ge=1,
            le=8,
            description="With `hardware`: GPUs that share every layer. Default: 1.",
            extra=_of_hardware("N"),
        ),
    ] = 1
    weights_dtype: Annotated[
        Literal["bf16", "fp8", "int4"],
        Meta(
            description="With `hardware`: precision of the layers' weights. fp8 computes in FP8, int4 in bf16. "
            "Default: bf16.",
            extra=_of_hardware("TYPE"),
        ),
    ] = "bf16"
    kv_dtype: Annotated[
        Literal["bf16", "fp8"],
        Meta(
            description="With `hardware`: precision of the KV cache. Default: bf16.",
            extra=_of_hardware("TYPE"),
        ),
    ] = "bf16"
    host_floor_ms: Annotated[
        float | Literal["eager"],
        Meta(
            description="With `hardware`: the least time of a step, in which the host plans and launches it; or eager, "
            "for what servers without CUDA graphs were measured to take. Default: 0, as the host keeps up.",
            extra=_of_hardware("MS|eager", given=str | float, parse="cbbench.settings.values:parse_host_floor_ms"),
        ),
    ] = 0.0
    speculative_tokens: Annotated[
        int | None,
        Meta(
            ge=1,
            le=64,
            description="With `hardware`: tokens that speculative decoding drafts for a row in a step. Default: none.",
            extra=_of_hardware("N"),
        ),
    ] = None
    acceptance: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="With `speculative_tokens`: the probability that a drafted token is accepted. Default: 0.7.",
            extra=_of_speculation("SHARE"),
        ),
    ] = 0.7
    draft_cost: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="With `speculative_tokens`: the time of drafting one token, as a share of a decode step's. "
            "Default: 0, as for n-grams.",
            extra=_of_speculation("SHARE"),
        ),
    ] = 0.0
    model: Annotated[
        str,
        Meta(
            description="A known shape (smollm2-135m, llama-3.1-8b, tiny, ...), a GGUF file or a Hugging Face "
            "folder; with `hardware` also a config.json or any of some forty names, as qwen3-30b-a3b. "
            "Default: smollm2-135m; tiny is a small random model.",
            extra=_of_model("NAME"),
        ),
    ] = "smollm2-135m"
    weights: Annotated[
        Literal["auto", "random"],
        Meta(
            description="random: seeded random weights of that shape; a config.json is enough. "
            "Default: auto, the real ones.",
            extra=_of_model("KIND", engines=REFERENCE),
        ),
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Meta(
            description="Where the model runs: cpu or cuda. Default: auto, a GPU if there is one.",
            extra=_of_model("NAME", engines=REFERENCE),
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"],
        Meta(
            description="Precision of weights and KV cache: bf16, fp16 or fp32. Default: auto, bf16 where the hardware "
            "is fast at it, else fp32.",
            extra=_of_model("TYPE", engines=REFERENCE),
        ),
    ] = "auto"
    attention: Annotated[
        Literal["auto", "torch", "triton", "triton-pdl", "flashinfer"],
        Meta(
            description="Kernels of a step: torch, or on a GPU triton; triton-pdl: each starts while the one before it "
            "ends (Hopper on); flashinfer: triton, with attention by FlashInfer and without CUDA graphs. Default: "
            "auto, triton where it can run.",
            extra=_of_engine("KIND", engines=REFERENCE, served=True),
        ),
    ] = "auto"
    cuda_graphs: Annotated[
        bool | None,
        Meta(
            description="Replay steps from CUDA graphs: those that only decode, one per number of rows, and those of "
            "up to 1,024 tokens. Default: on a GPU with triton.",
            extra=_of_engine(engines=REFERENCE, served=True),
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        Meta(
            gt=0,
            le=1,
            description="On a GPU: the share of the memory left beside the weights and the largest step that the KV "
            "cache takes. With `hardware`: the share of the whole card, as vLLM counts. `kv_blocks` wins. Default: "
            "0.9, and on a GPU no more than all slots need.",
            extra=_of_engine("SHARE", engines=OURS, served=True),
        ),
    ] = None


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The server that is loaded, and how."""

    url: Annotated[
        str | tuple[str, ...] | None,
        Meta(
            description="Load this server over HTTP, as in http://127.0.0.1:8000; a path that ends in the API's, and a "
            "query string, are used as they stand. Repeat it to split the load evenly over several. Default: none. The "
            "key, if it wants one, is taken from OPENAI_API_KEY.",
            extra=setting(
                "URL",
                panel="Server over HTTP",
                unswept=SERVER,
                loaded_once=True,
                given=list[str],
                parse="cbbench.settings.values:parse_urls",
            ),
        ),
    ] = None
    api: Annotated[
        Literal["completions", "chat", "tgi"],
        Meta(
            description="What to speak: completions, chat, or tgi (its own /generate_stream). Default: completions.",
            extra=_of_server("WORD"),
        ),
    ] = "completions"
    prompt_form: Annotated[
        Literal["auto", "ids", "text"],
        Meta(
            description="Send prompts as token ids, exact in length, or as text. Default: auto, ids where the server "
            "takes them.",
            extra=_of_server("WORD"),
        ),
    ] = "auto"
    warmup: Annotated[
        int,
        Meta(
            ge=0,
            description="Requests sent before the run, with other prompts. Default: 4.",
            extra=_of_server("N"),
        ),
    ] = 4
    workers: Annotated[
        int | Literal["auto"],
        Meta(
            description="Processes that send: a number, or auto: by the load and the cores. Default: 1.",
            extra=_of_server("N", hashed="never", given=str | int, parse="cbbench.settings.values:parse_workers"),
        ),
    ] = 1
    extra_body: Annotated[
        ExtraBody | None,
        Meta(
            description="JSON object merged into every request; {i}, {tenant} and {output_tokens} in its texts become "
            "those of the request. Default: none.",
            extra=_of_server("JSON", given=str, parse="cbbench.settings.values:parse_extra_body"),
        ),
    ] = None
    stream: Annotated[
        bool,
        Meta(
            description="Ask for a stream of tokens. Without it answers come whole, so that E2EL is measured and TTFT, "
            "TPOT and ITL are not. Default: on.",
            extra=_of_server(hashed="if-set"),
        ),
    ] = True
    omit: Annotated[
        tuple[str, ...],
        Meta(
            description="Field that cbbench leaves out of every request, as temperature or stream_options; repeat for "
            "more. A field that the server refuses in the warm-up is left out without this. Default: none.",
            extra=_of_server(
                "FIELD",
                hashed="if-set",
                unswept="takes several values; what a server refuses is left out anyway",
                given=list[str],
                parse="cbbench.settings.values:parse_omit",
            ),
        ),
    ] = ()
    header: Annotated[
        tuple[Header, ...],
        Meta(
            description="Header of every request, as in 'X-Tenant: a'; repeat for more. Results have its name, never "
            "its value. Default: none.",
            extra=_of_server(
                "'N: V'",
                secret=True,
                unswept="goes with every request of every point; a sweep's files would tell its values",
                given=list[str],
                parse="cbbench.settings.values:parse_headers",
            ),
        ),
    ] = ()
    session_header: Annotated[
        str | None,
        Meta(
            description="Name of a header that has the session's number in its requests, as X-Session-Id, so that a "
            "router can keep them together. Default: none.",
            extra=_of_server("NAME", hashed="if-set", parse="cbbench.settings.values:parse_header_name", given=str),
        ),
    ] = None
    connections: Annotated[
        int | Literal["reuse", "new"],
        Meta(
            description="reuse: a connection is opened when a request has none to use; new: one for every request; a "
            "number: so many are opened before the run and kept. Default: reuse.",
            extra=_of_server(
                "WORD|N", hashed="if-set", given=str | int, parse="cbbench.settings.values:parse_connections"
            ),
        ),
    ] = "reuse"
    idle_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=1e9,
            description="Seconds after which an idle connection is closed. Default: 50, as common load balancers "
            "forget it after 60.",
            extra=_of_server("S", hashed="if-set"),
        ),
    ] = 50.0
    read_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=1e9,
            description="Seconds without a byte of an answer after which it failed. Default: 600.",
            extra=_of_server("S"),
        ),
    ] = 600.0
    request_timeout: Annotated[
        float | None,
        Meta(
            gt=0,
            le=1e9,
            description="Seconds from sending a request to the end of its answer after which it failed, whatever "
            "comes. Default: none.",
            extra=_of_server("S", hashed="if-set"),
        ),
    ] = None
    ca_file: Annotated[
        str | None,
        Meta(
            description="Certificates to trust instead of the system's. Default: none.",
            extra=_of_server("FILE", unswept=SERVER),
        ),
    ] = None
    insecure: Annotated[
        bool,
        Meta(
            description="Do not verify the server's certificate. Default: verified.",
            extra=_of_server(hashed="if-set", unswept=SERVER, switch=True),
        ),
    ] = False
    cert: Annotated[
        str | None,
        Meta(
            description="Client certificate, for a server that wants one: a PEM file. Default: none.",
            extra=_of_server("FILE", hashed="if-set", unswept=SERVER),
        ),
    ] = None
    key: Annotated[
        str | None,
        Meta(
            description="Its key, if that is not in the file of `cert`. Default: there.",
            extra=_of_server("FILE", hashed="if-set", unswept=SERVER, needs={"cert": SET}),
        ),
    ] = None
    max_failures: Annotated[
        FailuresAllowed | None,
        Meta(
            description="Stop the run once more requests than this have failed: a number, or a share of those that "
            "have ended (of at least 20), as in 5%. Default: it goes on.",
            extra=_of_server(
                "N|P%",
                hashed="never",
                unswept=SHOWN,
                given=str | int,
                parse="cbbench.settings.values:parse_max_failures",
            ),
        ),
    ] = None
    retry_429: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Send a request again up to N times where the server answers 429, after its Retry-After, else "
            "after 1, 2, 4, ... s. Default: 0, a 429 is a failure.",
            extra=_of_server("N", hashed="if-set"),
        ),
    ] = 0
    scrape: Annotated[
        bool,
        Meta(
            description="Read the server's /metrics four times a second: its queue, KV usage and preemptions. "
            "Default: on.",
            extra=_of_server(hashed="never", unswept=SHOWN),
        ),
    ] = True
    metrics_url: Annotated[
        str | None,
        Meta(
            description="Where its metrics are, if not at /metrics of `url`. Default: there.",
            extra=_of_server("URL", hashed="never", unswept=SHOWN, needs={"scrape": True}),
        ),
    ] = None
    launch: Annotated[
        str | None,
        Meta(
            description="Instead of `url`: start this server, load it and end it, as in 'vllm serve MODEL --port "
            "{port}'. A sweep starts one per setting, its values in place of {value} or {PARAM}. Default: none.",
            extra=setting("COMMAND", panel="Server over HTTP", unswept=SERVER),
        ),
    ] = None
    ready_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=1e9,
            description="Seconds a launched server has to become ready. Default: 600.",
            extra=setting("S", panel="Server over HTTP", hashed="never", unswept=SHOWN, needs={"launch": SET}),
        ),
    ] = 600.0
