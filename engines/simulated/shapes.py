"""DecoderShape: the numbers of a model that decide its step times, of a well-known name or of a config.json on disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from workloads.errors import CbbenchError


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """DeepSeek's multi-head latent attention: KV is one vector of kv_rank + rope_dim elements for all heads."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


class DecoderShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # of layers without experts
    vocab: int
    max_position: int  # longest context, in tokens
    tied: bool = False  # the head shares the embedding's weight
    window: int | None = None  # positions a row sees in layers with a sliding window
    full_every: int = 0  # one layer in so many sees all; 0: all have the window
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # of experts that every token goes to, together
    first_dense: int = 0  # layers before the first with experts
    mla: LatentAttention | None = None
    hub: str = ""  # where the numbers are from; empty: our own

    @property
    def windowed_layers(self) -> int:
        if self.window is None:
            return 0
        return self.layers - (self.layers // self.full_every if self.full_every else 0)

    @property
    def full_layers(self) -> int:
        return self.layers - self.windowed_layers

    @property
    def expert_layers(self) -> int:
        return self.layers - self.first_dense if self.experts else 0

    @property
    def attention_parameters_per_layer(self) -> int:
        if self.mla is None:
            return self.d_model * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mla = self.mla
        queries = self.d_model * mla.q_rank + mla.q_rank * self.heads * (mla.nope_dim + mla.rope_dim)
        keys_values = self.d_model * (mla.kv_rank + mla.rope_dim)
        keys_values += mla.kv_rank * self.heads * (mla.nope_dim + mla.value_dim)
        return queries + keys_values + self.heads * mla.value_dim * self.d_model

    @property
    def dense_parameters(self) -> int:
        """Weights of the layers that every step reads: all but routed experts, embedding and head."""
        dense_layers = self.layers - self.expert_layers
        shared = self.expert_layers * (3 * self.d_model * self.shared_ffn + self.d_model * self.experts)
        return self.layers * self.attention_parameters_per_layer + dense_layers * 3 * self.d_model * self.ffn + shared

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert in all layers that have experts."""
        return self.expert_layers * 3 * self.d_model * self.expert_ffn

    @property
    def parameters(self) -> int:
        """All weights; norms and biases, below 0.1 %, are left out."""
        embedding = self.vocab * self.d_model * (1 if self.tied else 2)
        return self.dense_parameters + self.experts * self.expert_parameters + embedding

    @property
    def active_ffn(self) -> int:
        """Width of what one token passes in a layer, on average over the layers."""
        routed = self.expert_layers * (self.experts_per_token * self.expert_ffn + self.shared_ffn)
        return ((self.layers - self.expert_layers) * self.ffn + routed) // self.layers

    @property
    def kv_elements_per_layer(self) -> int:
        """Numbers that a token leaves in the KV cache of a layer."""
        return 2 * self.kv_heads * self.head_dim if self.mla is None else self.mla.kv_rank + self.mla.rope_dim

    @property
    def kv_elements_per_token(self) -> int:
        return self.layers * self.kv_elements_per_layer

    @property
    def pair_flop_per_layer(self) -> int:
        """Of one (query, key) pair over all heads: QK and PV, a multiply and an add each."""
        if self.mla is None:
            return 4 * self.heads * self.head_dim
        return 2 * self.heads * (self.mla.nope_dim + self.mla.rope_dim + self.mla.value_dim)


@cache
def known_shapes() -> Mapping[str, DecoderShape]:
    """The well-known names, in the order of the file."""
    text = (files("engines.simulated") / "model_shapes.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, DecoderShape])


def find_shape(model: str) -> DecoderShape:
    """Of a well-known name (also as on the Hub, OWNER/NAME), a config.json or a folder that holds one."""
    shapes = known_shapes()
    if (shape := shapes.get(model.lower())) is not None:
        return shape
    for shape in shapes.values():
        if shape.hub and shape.hub.lower() == model.lower():
            return shape
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" and path.is_file():
        return read_config(path)
    raise CbbenchError(
        "model", f"the simulator knows no shape of {model!r}: give a config.json, or one of {', '.join(shapes)}"
    )


def read_config(path: Path) -> DecoderShape:
    """The shape that a Hugging Face config.json describes. CbbenchError names the key that is missing or wrong."""
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CbbenchError("model", f"{path}: not a config.json: {error}") from None
    try:
        return shape_of_config(raw.get("text_config") or raw)
    except KeyError as missing:
        raise CbbenchError("model", f"{path}: key {missing} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CbbenchError("model", f"{path}: describes no decoder: {error}") from None


def shape_of_config(raw: Mapping[str, Any]) -> DecoderShape:
    """KeyError, TypeError or ValueError where the numbers are not there or describe no decoder."""
    heads, d_model = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    experts = int(raw.get("num_local_experts") or raw.get("num_experts") or raw.get("n_routed_experts") or 0)
    ffn = int(raw["intermediate_size"])
    expert_ffn = int(raw.get("moe_intermediate_size") or ffn) if experts else 0
    window, full_every = _window(raw)
    shape = DecoderShape(
        layers=int(raw["num_hidden_layers"]),
        d_model=d_model,
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or d_model // heads),
        ffn=ffn,
        vocab=int(raw["vocab_size"]),
        max_position=int(raw["max_position_embeddings"]),
        tied=bool(raw.get("tie_word_embeddings", "gemma" in str(raw.get("model_type")))),
        window=window,
        full_every=full_every,
        experts=experts,
        experts_per_token=int(raw.get("num_experts_per_tok") or 0) if experts else 0,
        expert_ffn=expert_ffn,
        shared_ffn=_shared_ffn(raw, expert_ffn),
        first_dense=int(raw.get("first_k_dense_replace") or 0) if experts else 0,
        mla=_latent(raw),
    )
    for name in ("layers", "d_model", "heads", "kv_heads", "head_dim", "vocab", "max_position"):
        if getattr(shape, name) < 1:
            raise ValueError(f"{name} is {getattr(shape, name)}")
    if experts and not 1 <= shape.experts_per_token <= experts:
        raise ValueError(f"num_experts_per_tok is {shape.experts_per_token} of {experts} experts")
    return shape


def _window(raw: Mapping[str, Any]) -> tuple[int | None, int]:
    """(window, one full layer in so many)"""
    window = raw.get("sliding_window")
    if not window or raw.get("use_sliding_window") is False:
        return None, 0
    if kinds := raw.get("layer_types"):
        full = sum(kind == "full_attention" for kind in kinds)
        return (int(window), len(kinds) // full if full else 0) if full < len(kinds) else (None, 0)
    return int(window), int(raw.get("sliding_window_pattern") or 0)


def _shared_ffn(raw: Mapping[str, Any], expert_ffn: int) -> int:
    if raw.get("shared_expert_intermediate_size"):
        return int(raw["shared_expert_intermediate_size"])
    return int(raw.get("n_shared_experts") or 0) * expert_ffn


def _latent(raw: Mapping[str, Any]) -> LatentAttention | None:
    if not raw.get("kv_lora_rank"):
        return None
    return LatentAttention(
        q_rank=int(raw.get("q_lora_rank") or raw["hidden_size"]),
        kv_rank=int(raw["kv_lora_rank"]),
        nope_dim=int(raw["qk_nope_head_dim"]),
        rope_dim=int(raw["qk_rope_head_dim"]),
        value_dim=int(raw["v_head_dim"]),
    )
