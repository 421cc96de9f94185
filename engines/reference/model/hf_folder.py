"""A Hugging Face folder: config.json, model.safetensors or a sharded index, and what tokenizer.json calls special."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engines.reference.model.checkpoint import Checkpoint, ordinary_ids
from engines.reference.model.config import from_hf
from workloads.errors import CbbenchError


def open_folder(folder: Path) -> Checkpoint:
    raw = read_json(folder / "config.json")
    config = from_hf(raw, str(folder))
    files = _file_of_each_tensor(folder)

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in files:
            raise CbbenchError("model", f"{folder}: tensor {name} is missing")
        tensor: torch.Tensor = _open(files[name]).get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise CbbenchError("model", f"{folder}: tensor {name} is {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    eos_ids = _eos_ids(folder, raw)
    special = set(eos_ids) | _added_ids(folder)
    return Checkpoint(config, read, eos_ids, ordinary_ids(config.vocab, special), f"{folder.name} (safetensors)")


def _file_of_each_tensor(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = read_json(index).get("weight_map", {})
        missing = sorted({shard for shard in shards.values() if not (folder / shard).exists()})
        if missing:
            raise CbbenchError("model", f"{folder}: {missing[0]} is missing (named by {index.name})")
        return {name: folder / shard for name, shard in shards.items()}
    single = folder / "model.safetensors"
    if not single.exists():
        raise CbbenchError("model", f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")
    return dict.fromkeys(_open(single).keys(), single)


def _open(path: Path) -> Any:
    # Opening reads the header only (the data is memory-mapped), so a handle per tensor costs little.
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CbbenchError("model", f"{path}: not a readable safetensors file ({_one_line(error)})") from None


def _eos_ids(folder: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)


def _added_ids(folder: Path) -> set[int]:
    path = folder / "tokenizer.json"
    if not path.exists():
        return {0, 1, 2}  # by the custom of Llama tokenizers: unknown, begin, end
    return {int(token["id"]) for token in read_json(path).get("added_tokens", [])}


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file. CbbenchError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CbbenchError("model", f"{path}: not readable JSON ({_one_line(error)})") from None
    if not isinstance(content, dict):
        raise CbbenchError("model", f"{path}: expected a JSON object")
    return content


def _one_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
