"""The least time a decode step can take on a device, operator by operator. Pure arithmetic.

    floor = sum over operators of max(bytes / bandwidth, FLOPs / matmul rate)

Bytes are those that must be read from memory, each once: weights, the KV of the context, the new KV and the embedding's
rows. Activations and logits are taken to stay in the cache, and norms, rotations and sampling to be free, so the floor
errs low and a ratio to it errs high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Shape(Protocol):
    """The shape of a decoder, a part of engines.reference.model.config.ModelConfig."""

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int


@dataclass(frozen=True)
class Operator:
    name: str
    count: int  # of them in a step
    bytes: int  # from memory, each
    flops: int  # a multiplication and an addition are two; each


def products(shape: Shape) -> dict[str, tuple[int, int]]:
    """Operator -> (inner, outer): x[rows, inner] times a weight of [outer, inner]"""
    q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "qkv": (shape.d_model, q_width + 2 * kv_width),
        "o": (q_width, shape.d_model),
        "gate_up": (shape.d_model, 2 * shape.ffn),
        "down": (shape.ffn, shape.d_model),
        "head": (shape.d_model, shape.vocab),
    }


def decode_operators(shape: Shape, *, rows: int, context: int, item_bytes: int) -> list[Operator]:
    """A step in which `rows` requests attend to `context` positions each, the new one included.

    item_bytes: of a weight, and of a number in the KV cache.
    """
    q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def product(name: str) -> Operator:
        inner, outer = products(shape)[name]
        count = 1 if name == "head" else shape.layers
        return Operator(name, count, inner * outer * item_bytes, 2 * rows * inner * outer)

    return [
        Operator("embedding", 1, rows * shape.d_model * item_bytes, 0),
        product("qkv"),
        # K and V of the context are read, and the new position is written; QK and PV are two products each.
        Operator(
            "attention",
            shape.layers,
            rows * (context + 1) * 2 * kv_width * item_bytes,
            rows * context * 4 * q_width,
        ),
        product("o"),
        product("gate_up"),
        product("down"),
        product("head"),
    ]


def floor_s(operators: Sequence[Operator], *, bytes_per_s: float, flop_per_s: float) -> float:
    return sum(one.count * max(one.bytes / bytes_per_s, one.flops / flop_per_s) for one in operators)
