"""The reference engine's runtime, and the text of its model."""

from __future__ import annotations

from engines.reference.engine import ReferenceEngine
from engines.reference.model.weights import LoadedModel
from engines.scheduling.config import SchedulerConfig
from engines.serve.app import Served
from engines.serve.load_text import files_of, load_text
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
    text = load_text(None if random_weights else files_of(model.name))
    return Server(engine.runtime(), engine.clock, text, served, kv_blocks=config.kv_blocks)
