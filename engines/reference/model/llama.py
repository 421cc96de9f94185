"""The decoder: Llama, SmolLM, Mistral, Qwen2 and Qwen3, on flat tokens and a paged KV pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engines.reference.kernels import Attend
from engines.reference.kv_pool import KVPool, write_kv
from engines.reference.model.checkpoint import Checkpoint
from engines.reference.model.config import ModelConfig
from engines.reference.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one step, flat, and where their KV is. [tokens] unless said otherwise."""

    ids: torch.Tensor
    positions: torch.Tensor
    kv_index: torch.Tensor  # [tokens * 2 * kv_heads] where their own KV goes: KVPool.vector_index
    attend: Attend  # what they attend to


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Llama:
    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config = checkpoint.config
        self.dtype = dtype
        self.device = device

        def read(name: str, *shape: int) -> torch.Tensor:
            return checkpoint.read(name, shape).to(device=device, dtype=torch.float32 if "norm" in name else dtype)

        self.embedding = read("model.embed_tokens.weight", config.vocab, config.d_model)
        self.layers = [_read_layer(config, read, f"model.layers.{i}") for i in range(config.layers)]
        self.norm = read("model.norm.weight", config.d_model)
        head = self.embedding if config.tied else read("lm_head.weight", config.vocab, config.d_model)
        self.head = Linear(head)
        self.frequencies = rope_frequencies(config).to(device)

    def forward(self, tokens: Tokens, pool: KVPool) -> torch.Tensor:
        """Run the layers, writing the tokens' KV into the pool. Returns the hidden states, [tokens, d_model]."""
        x = F.embedding(tokens.ids, self.embedding)
        rotation = self._rotation(tokens.positions)
        for layer, kv in zip(self.layers, pool.layers, strict=True):
            x = self._attend(layer, x, rotation, tokens, kv)
            x = self._mlp(layer, x)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, d_model] -> [rows, vocab]. Give it only the rows that sample: the head is the widest matrix of all."""
        return self.head(self._normed(hidden, self.norm))

    def _attend(
        self,
        layer: Layer,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        tokens: Tokens,
        kv: torch.Tensor,
    ) -> torch.Tensor:
        c = self.config
        qkv = layer.qkv(self._normed(x, layer.attention_norm)).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
        q, k = qkv[:, : c.heads], qkv[:, c.heads : c.heads + c.kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            q.copy_(self._normed(q, layer.q_norm))
            k.copy_(self._normed(k, layer.k_norm))
        rotate_(qkv[:, : c.heads + c.kv_heads], *rotation)
        write_kv(kv, qkv[:, c.heads :], tokens.kv_index)
        attended = tokens.attend(q, kv)
        return layer.o(attended.flatten(1), residual=x)

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up), residual=x)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # By way of float32: on a CPU torch norms 512 rows of bfloat16 twelve times slower than of float32.
        return F.rms_norm(x.float(), weight.shape, weight, self.config.eps).to(x.dtype)

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of every token's angles, each [tokens, 1, head_dim / 2], made in float32 like transformers."""
        angles = positions[:, None, None].float() * self.frequencies
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _read_layer(config: ModelConfig, read: Callable[..., torch.Tensor], at: str) -> Layer:
    d, q_width, kv_width = config.d_model, config.heads * config.head_dim, config.kv_heads * config.head_dim
    widths = {"q": q_width, "k": kv_width, "v": kv_width}
    bias = [read(f"{at}.self_attn.{name}_proj.bias", width) for name, width in widths.items() if config.qkv_bias]
    return Layer(
        attention_norm=read(f"{at}.input_layernorm.weight", d),
        qkv=Linear(
            torch.cat([read(f"{at}.self_attn.{name}_proj.weight", width, d) for name, width in widths.items()]),
            torch.cat(bias) if bias else None,
        ),
        q_norm=read(f"{at}.self_attn.q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=read(f"{at}.self_attn.k_norm.weight", config.head_dim) if config.qk_norm else None,
        o=Linear(read(f"{at}.self_attn.o_proj.weight", d, q_width)),
        mlp_norm=read(f"{at}.post_attention_layernorm.weight", d),
        gate_up=Linear(torch.cat([read(f"{at}.mlp.{name}_proj.weight", config.ffn, d) for name in ("gate", "up")])),
        down=Linear(read(f"{at}.mlp.down_proj.weight", d, config.ffn)),
    )


def rope_frequencies(config: ModelConfig) -> torch.Tensor:
    """float32[head_dim / 2], radians per position: theta ** (-2i / head_dim), slowed where the model says so."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    return frequencies / torch.tensor(config.rope_divisors) if config.rope_divisors else frequencies


def rotate_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """RoPE in place on [tokens, n, head_dim]: the halves (a, b) of a head become (a cos - b sin, b cos + a sin)."""
    a, b = heads.chunk(2, dim=-1)
    a_sin = a * sin
    a.mul_(cos).addcmul_(b, sin, value=-1.0)
    b.mul_(cos).add_(a_sin)
