"""A GGUF file of any quantisation the gguf package can undo, of the Llama family."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from engines.reference.model.checkpoint import Checkpoint, ordinary_ids
from engines.reference.model.config import ModelConfig
from workloads.errors import CbbenchError

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral and SmolLM files call themselves llama
NORMAL_TOKEN = 1  # tokenizer.ggml.token_type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte

OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def open_gguf(path: Path) -> Checkpoint:
    reader = _reader(path)
    architecture = _value(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise CbbenchError("model", f"{path}: architecture {architecture!r} is not supported (supported: {supported})")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    try:
        config = _config(path, reader, architecture, tensors)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CbbenchError("model", f"{path}: the metadata describes no model ({error})") from None

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = _dequantised(path, tensors, gguf_name(name))
        if values.shape != shape:
            raise CbbenchError(
                "model", f"{path}: tensor {gguf_name(name)} is {list(values.shape)}, expected {list(shape)}"
            )
        if architecture == "llama" and re.search(r"self_attn\.[qk]_proj\.", name):
            values = halves_from_pairs(values, config.head_dim)
        return torch.tensor(values)  # a copy: the file is mapped read-only

    eos = _value(reader, "tokenizer.ggml.eos_token_id")
    eos_ids = () if eos is None else (int(eos),)
    types = np.asarray(_value(reader, "tokenizer.ggml.token_type") or [NORMAL_TOKEN] * config.vocab)
    special = {*np.flatnonzero(types != NORMAL_TOKEN).tolist(), *eos_ids}
    return Checkpoint(config, read, eos_ids, ordinary_ids(config.vocab, special), f"{path.name} (GGUF)")


def gguf_name(name: str) -> str:
    """The GGUF name of a canonical one: `model.layers.3.self_attn.q_proj.weight` is `blk.3.attn_q.weight`."""
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{IN_LAYER[module]}.{kind}"


def halves_from_pairs(weight: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Undo the row order of llama files: they rotate pairs (0, 1), (2, 3), ...; we rotate halves (0, d/2), ...

    weight: [heads * head_dim] or [heads * head_dim, d_model]
    """
    pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _config(path: Path, reader: gguf.GGUFReader, architecture: str, tensors: dict[str, Any]) -> ModelConfig:
    def number(key: str, default: float | None = None) -> float:
        value = _value(reader, f"{architecture}.{key}")
        if value is None and default is None:
            raise CbbenchError("model", f"{path}: key {architecture}.{key} is missing")
        return float(value if value is not None else default)  # type: ignore[arg-type]

    heads, d_model = int(number("attention.head_count")), int(number("embedding_length"))
    head_dim = int(number("attention.key_length", d_model // heads))
    if int(number("rope.dimension_count", head_dim)) != head_dim:
        raise CbbenchError("model", f"{path}: RoPE over a part of the head is not supported")
    if "token_embd.weight" not in tensors:
        raise CbbenchError("model", f"{path}: tensor token_embd.weight is missing")
    context, window = int(number("context_length")), int(number("attention.sliding_window", 0))
    return ModelConfig(
        layers=int(number("block_count")),
        d_model=d_model,
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=head_dim,
        ffn=int(number("feed_forward_length")),
        vocab=int(tensors["token_embd.weight"].shape[-1]),
        max_position=min(context, window) if window else context,
        rope_theta=number("rope.freq_base", 10_000.0),
        rope_divisors=_rope_divisors(path, reader, architecture, head_dim, tensors),
        eps=number("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
    )


def _rope_divisors(
    path: Path, reader: gguf.GGUFReader, architecture: str, head_dim: int, tensors: dict[str, Any]
) -> tuple[float, ...]:
    """Files converted from Llama 3.1 carry the divisors themselves, as a tensor."""
    if "rope_freqs.weight" in tensors:
        return tuple(_dequantised(path, tensors, "rope_freqs.weight").tolist())
    kind = _value(reader, f"{architecture}.rope.scaling.type") or "none"
    if kind == "none":
        return ()
    if kind == "linear":
        return (float(_value(reader, f"{architecture}.rope.scaling.factor") or 1.0),) * (head_dim // 2)
    raise CbbenchError("model", f"{path}: RoPE scaling {kind!r} is not supported")


class _Reader(gguf.GGUFReader):
    """The package slices its numpy.memmap half a million times, and a plain array over it is three times as fast."""

    @property
    def data(self) -> Any:
        return self._plain

    @data.setter
    def data(self, mapped: Any) -> None:
        self._plain = np.asarray(mapped)


def _reader(path: Path) -> gguf.GGUFReader:
    try:
        return _Reader(path)
    except OSError as error:
        raise CbbenchError("model", f"{path}: {error.strerror or 'cannot be read'}") from None
    except Exception:
        # The package does not check the file: a truncated or damaged one raises any kind of error.
        raise CbbenchError("model", f"{path}: broken or truncated GGUF file") from None


def _value(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _dequantised(path: Path, tensors: dict[str, Any], name: str) -> NDArray[np.float32]:
    if name not in tensors:
        raise CbbenchError("model", f"{path}: tensor {name} is missing")
    tensor = tensors[name]
    try:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        kind = tensor.tensor_type.name
        raise CbbenchError("model", f"{path}: tensor {name} is quantised as {kind}, which gguf cannot undo") from None
    return np.asarray(values, dtype=np.float32)
