"""Checkpoint: where a decoder's numbers come from, whatever the file format; and the random one, without a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engines.reference.model.config import ModelConfig

# Hugging Face names are the canonical ones: `model.layers.3.self_attn.q_proj.weight`.
ReadTensor = Callable[[str, tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    config: ModelConfig
    read: ReadTensor  # (canonical name, expected shape) -> tensor; CbbenchError if it is missing or has another shape
    eos_ids: tuple[int, ...]  # any of them ends a request that does not ignore EOS
    prompt_ids: NDArray[np.int32]  # ids a random prompt may use: no special or added token
    source: str  # for people: which file, or which seed


def ordinary_ids(vocab: int, special: set[int]) -> NDArray[np.int32]:
    """All ids of the vocabulary that are not special. int32[<= vocab]"""
    keep = np.ones(vocab, dtype=np.bool_)
    keep[[token for token in special if 0 <= token < vocab]] = False
    return np.flatnonzero(keep).astype(np.int32)


def random_checkpoint(config: ModelConfig, *, device: torch.device, dtype: torch.dtype, seed: int) -> Checkpoint:
    """Seeded weights, drawn on the device in the order the decoder asks: the same seed, the same model per device.

    The scale is fan_in ** -0.5: activations keep their size, and the next token depends on the context rather than on
    the last token alone, as it would with tied weights and the usual small scale.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.empty(shape, device=device, dtype=dtype)
        if "norm" in name:
            return tensor.fill_(1.0)
        if name.endswith(".bias"):
            return tensor.zero_()
        return tensor.normal_(0.0, float(shape[-1]) ** -0.5, generator=generator)

    special = {0, 1, 2}  # by the custom of Llama tokenizers: unknown, begin, end
    return Checkpoint(config, read, (2,), ordinary_ids(config.vocab, special), f"random weights, seed {seed}")
