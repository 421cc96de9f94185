"""The decoder: Llama, SmolLM, Mistral, Qwen2 and Qwen3, on flat tokens and a paged KV pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engines.reference.kernels import Attend, Kernels
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.checkpoint import Checkpoint
from engines.reference.model.config import ModelConfig
from engines.reference.model.linear import Linear

TORCH = TorchKernels()


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one step, flat, and where their KV is. [tokens] unless noted."""

    ids: torch.Tensor  # below 0, where last_token is given: -1 - slot, for the token sampled last in that slot
    positions: torch.Tensor
    slot_mapping: torch.Tensor  # where their KV is written: block * block_size + offset
    attend: Attend
    last_token: torch.Tensor | None = None  # [slots + 1]


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
        self._rotations = _rotations(config, device).to(dtype)

    def forward(self, tokens: Tokens, pool: KVPool, kernels: Kernels = TORCH) -> torch.Tensor:
        """Run the layers, writing the tokens' KV into the pool. Returns the hidden states, [tokens, d_model]."""
        eps = self.config.eps
        x, normed = kernels.embed(tokens.ids, tokens.last_token, self.embedding, self.layers[0].attention_norm, eps)
        rotation = self.rotation(tokens.positions)
        kv_index = kernels.kv_index(tokens.slot_mapping, pool)
        next_norms = [*(layer.attention_norm for layer in self.layers[1:]), None]
        for layer, kv, next_norm in zip(self.layers, pool.layers, next_norms, strict=True):
            attended = self._attend(layer, normed, rotation, kv_index, tokens.attend, kv, kernels)
            x, normed = kernels.project_and_norm(layer.o, attended, x, layer.mlp_norm, eps)
            gated = kernels.silu_mul(layer.gate_up(normed))
            if next_norm is None:  # `logits` applies the last norm, to the sampled tokens alone
                x = layer.down(gated, residual=x)
            else:
                x, normed = kernels.project_and_norm(layer.down, gated, x, next_norm, eps)
            del attended, gated  # the next layer reuses the memory while it is in the cache
        return x

    def _attend(
        self,
        layer: Layer,
        normed: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        kv_index: torch.Tensor,
        attend: Attend,
        kv: torch.Tensor,
        kernels: Kernels,
    ) -> torch.Tensor:
        """[tokens, d_model] -> [tokens, heads * head_dim], before the projection"""
        c = self.config
        qkv = layer.qkv(normed).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
        kernels.rope_and_write(qkv, kv, kv_index, *rotation, layer.q_norm, layer.k_norm, c.eps)
        return attend(qkv[:, : c.heads], kv).flatten(1)

    def logits(self, hidden: torch.Tensor, kernels: Kernels = TORCH) -> torch.Tensor:
        """[rows, d_model] -> [rows, vocab]. Pass only the sampled rows: the head is the largest matrix."""
        return self.head(kernels.rms_norm(hidden, self.norm, self.config.eps))

    def rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of every token's angles, each [tokens, 1, head_dim / 2]"""
        cos, sin = self._rotations.index_select(0, positions)[:, None].chunk(2, dim=-1)
        return cos, sin


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


def _rotations(config: ModelConfig, device: torch.device) -> torch.Tensor:
    """[max_position, head_dim]: cos, then sin, of each position's angles, made in float32 like transformers."""
    positions = torch.arange(config.max_position, dtype=torch.float32, device=device)
    angles = positions[:, None] * rope_frequencies(config).to(device)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rope_frequencies(config: ModelConfig) -> torch.Tensor:
    """float32[head_dim / 2], radians per position: theta ** (-2i / head_dim), over `rope_divisors`, if any."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    return frequencies / torch.tensor(config.rope_divisors) if config.rope_divisors else frequencies
