"""Shapes of models: the well-known ones by their published sizes, and any config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.reference.model.config import SHAPES
from engines.simulated.shapes import find_shape, known_shapes
from workloads.errors import CbbenchError

# Billions of parameters, as the model cards say.
PUBLISHED = {
    "smollm2-135m": 0.135, "llama-2-70b": 69.0, "llama-3.1-8b": 8.03, "llama-3.1-405b": 405.9, "llama-3.2-1b": 1.24,
    "qwen2.5-72b": 72.7, "qwen3-8b": 8.19, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235.0, "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 141.0, "gemma-3-27b": 27.0, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8, "deepseek-v3": 671.0,
    "phi-4": 14.7,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_shape_has_the_published_size(name: str) -> None:
    assert find_shape(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_agree_with_those_of_our_own_engine(name: str) -> None:
    ours, shape = SHAPES[name], find_shape(name)
    assert shape.parameters == pytest.approx(ours.parameters, rel=4e-3), "norms and biases are left out"
    assert shape.kv_elements_per_token == ours.kv_elements_per_token
    assert shape.max_position == ours.max_position


def test_names_are_taken_as_on_the_hub() -> None:
    assert find_shape("Meta-Llama/Llama-3.1-8B") is find_shape("LLAMA-3.1-8b") is known_shapes()["llama-3.1-8b"]


def test_a_config_or_its_folder_gives_the_same_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    shape = find_shape(str(tmp_path))
    assert shape == find_shape(str(tmp_path / "config.json"))
    assert shape.parameters == find_shape("llama-3.1-8b").parameters


def test_experts_windows_and_latent_attention_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}))
    assert find_shape(str(path)).experts == 8
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    path.write_text(json.dumps(LLAMA | {"sliding_window": 1024, "layer_types": kinds * 8}))
    shape = find_shape(str(path))
    assert (shape.window, shape.windowed_layers, shape.full_layers) == (1024, 24, 8)
    latent = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    path.write_text(json.dumps(LLAMA | latent | {"v_head_dim": 128}))
    assert find_shape(str(path)).kv_elements_per_layer == 512 + 64


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"vocab_size": None}, "describes no decoder"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"num_attention_heads": 0}, "describes no decoder"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9 of 8 experts"),
    ],
)
def test_a_config_that_describes_no_decoder_is_refused(tmp_path: Path, changed: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changed))
    with pytest.raises(CbbenchError, match=complaint) as raised:
        find_shape(str(path))
    assert raised.value.field == "model"


def test_a_config_without_a_number_names_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in LLAMA.items() if name != "hidden_size"}))
    with pytest.raises(CbbenchError, match="key 'hidden_size' is missing"):
        find_shape(str(path))
