"""The reference engine's runtime, and the text of its model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from engines.reference.engine import ReferenceEngine
from engines.reference.model.config import SHAPES
from engines.reference.model.weights import SMOLLM2_FILE, SMOLLM2_PACKAGE, LoadedModel
from engines.scheduling.config import SchedulerConfig
from engines.serve.app import Served
from engines.serve.load_text import load_text
from engines.serve.server import Server


def reference_server(
    model: LoadedModel,
    config: SchedulerConfig,
    *,
    name: str,
    random_weights: bool,
    attention: str = "auto",
    cuda_graphs: bool | None = None,
) -> Server:
    engine = ReferenceEngine(model, config, attention=attention, cuda_graphs=cuda_graphs)
    served = Served(name, model.llama.config.vocab, config.max_model_len, config.kv_blocks * config.block_size)
    text = load_text(None if random_weights else _path(model.name))
    return Server(engine.runtime(), engine.clock, text, served, kv_blocks=config.kv_blocks)


def _path(name: str) -> Path | None:
    """Where the model's files are; None for a shape without any."""
    if name not in SHAPES:
        return Path(name)
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE) if name == "smollm2-135m" else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(folder) / SMOLLM2_FILE for folder in folders), None)
