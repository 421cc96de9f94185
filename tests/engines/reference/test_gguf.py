"""GGUF files: names, row order, metadata, quantisation, and broken files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gguf", reason="gguf is not installed")

import gguf

from engines.reference import load_model
from engines.reference.model.checkpoint import Checkpoint
from engines.reference.model.config import ModelConfig
from engines.reference.model.gguf_file import gguf_name, halves_from_pairs, open_gguf
from engines.reference.model.llama import Llama
from workloads.errors import CbbenchError

SHAPE = ModelConfig(
    layers=2, d_model=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=80, max_position=128, rope_theta=5000.0
)


def _pairs_from_halves(weight: np.ndarray) -> np.ndarray:
    """What llama.cpp's converter does to q and k, head by head."""
    return weight.reshape(-1, 2, SHAPE.head_dim // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Canonical names and values of every tensor of SHAPE, in the order the decoder asks for them."""
    asked: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(seed)

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        asked[name] = rng.normal(0, 0.2, shape).astype(np.float32)
        return torch.from_numpy(asked[name])

    Llama(Checkpoint(SHAPE, read, (), np.zeros(0, np.int32), ""), dtype=torch.float32, device=torch.device("cpu"))
    return asked


def _write(
    path: Path,
    *,
    architecture: str = "llama",
    leave_out: tuple[str, ...] = (),
    quantised: gguf.GGMLQuantizationType | None = None,
    **metadata: Any,
) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(path, architecture)
    values = {
        "block_count": SHAPE.layers,
        "context_length": SHAPE.max_position,
        "embedding_length": SHAPE.d_model,
        "feed_forward_length": SHAPE.ffn,
        "attention.head_count": SHAPE.heads,
        "attention.head_count_kv": SHAPE.kv_heads,
    } | metadata
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", SHAPE.rope_theta)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", SHAPE.eps)
    writer.add_token_list([f"t{i}" for i in range(SHAPE.vocab)])
    writer.add_token_types([3, 3] + [1] * (SHAPE.vocab - 3) + [4])
    writer.add_eos_token_id(5)
    tensors = _tensors()
    for name, tensor in tensors.items():
        if gguf_name(name) in leave_out:
            continue
        permute = architecture == "llama" and ("q_proj" in name or "k_proj" in name)
        stored = _pairs_from_halves(tensor) if permute else tensor
        if quantised is not None and tensor.ndim == 2:
            writer.add_tensor(gguf_name(name), gguf.quantize(stored, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(gguf_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_every_tensor_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    tensors = _write(path)
    checkpoint = open_gguf(path)
    assert replace(checkpoint.config, eps=SHAPE.eps) == SHAPE  # the file holds eps in float32
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.read(name, tensor.shape), torch.from_numpy(tensor)), name
    assert checkpoint.eos_ids == (5,)
    assert sorted(set(range(80)) - set(checkpoint.prompt_ids.tolist())) == [0, 1, 5, 79]
    assert load_model(str(path)).checkpoint.source == "small.gguf (GGUF)"


def test_quantised_tensors_are_dequantised(tmp_path: Path) -> None:
    path = tmp_path / "q8.gguf"
    tensors = _write(path, quantised=gguf.GGMLQuantizationType.Q8_0)
    checkpoint = open_gguf(path)
    for name, tensor in tensors.items():
        torch.testing.assert_close(
            checkpoint.read(name, tensor.shape), torch.from_numpy(tensor), rtol=0, atol=0.2 * 5 / 127
        )


def test_only_llama_files_have_their_rows_reordered(tmp_path: Path) -> None:
    path = tmp_path / "qwen2.gguf"
    tensors = _write(path, architecture="qwen2")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(open_gguf(path).read(name, tensors[name].shape), torch.from_numpy(tensors[name]))


def test_reordering_undoes_the_converters() -> None:
    weight = np.arange(2 * SHAPE.head_dim * 3, dtype=np.float32).reshape(2 * SHAPE.head_dim, 3)
    assert np.array_equal(halves_from_pairs(_pairs_from_halves(weight), SHAPE.head_dim), weight)
    assert not np.array_equal(_pairs_from_halves(weight), weight)


def test_a_file_without_a_head_ties_it_to_the_embedding(tmp_path: Path) -> None:
    path = tmp_path / "tied.gguf"
    _write(path, leave_out=("output.weight",))
    assert open_gguf(path).config.tied


def _cut(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


BROKEN = {
    "empty": (lambda path: path.write_bytes(b""), "broken or truncated GGUF file"),
    "not a GGUF": (lambda path: path.write_bytes(b"hello, world" * 100), "broken or truncated GGUF file"),
    "cut in the header": (lambda path: _cut(path, 0.01), "broken or truncated GGUF file"),
    "cut in the tensors": (lambda path: _cut(path, 0.7), "broken or truncated GGUF file"),
    "another architecture": (lambda path: _write(path, architecture="gptneox"), "'gptneox' is not supported"),
    "a missing tensor": (
        lambda path: _write(path, leave_out=("blk.1.ffn_up.weight",)),
        "tensor blk.1.ffn_up.weight is missing",
    ),
    "a shape that does not fit": (lambda path: _write(path, feed_forward_length=128), "expected [128, 64]"),
    "no heads": (lambda path: _write(path, **{"attention.head_count": 0}), "the metadata describes no model"),
    "partial rotation": (lambda path: _write(path, **{"rope.dimension_count": 8}), "a part of the head"),
    "an unknown RoPE": (lambda path: _write(path, **{"rope.scaling.type": "yarn"}), "'yarn' is not supported"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "broken.gguf"
    _write(path)
    damage, message = BROKEN[kind]
    damage(path)
    with pytest.raises(CbbenchError) as caught:
        load_model(str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file_is_an_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match="is neither a file or folder here nor one of"):
        load_model(str(tmp_path / "nowhere.gguf"))
