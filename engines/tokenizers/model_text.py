"""ModelText: a model's tokenizer and chat template, loaded from the files of its weights."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from engines.reference.model.config import SHAPES, SMOLLM2_FILE, SMOLLM2_PACKAGE
from engines.tokenizers.chat_template import PLAIN, ChatTemplate, TemplateError
from engines.tokenizers.gguf_header import read_header
from engines.tokenizers.gguf_tokenizer import build_tokenizer
from engines.tokenizers.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer
from workloads.errors import CbbenchError

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class ModelText:
    """Tokenizer and chat template of a model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the model has none


def model_files(model: str) -> Path | None:
    """Where a model's files are; None for a shape without any."""
    if model not in SHAPES:
        return Path(model)
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE) if model == "smollm2-135m" else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(folder) / SMOLLM2_FILE for folder in folders), None)


def load_model_text(path: Path | None) -> ModelText:
    """path: a GGUF file or a Hugging Face folder; None for random weights. CbbenchError where they cannot be read."""
    if path is None:
        return ModelText(ByteTokenizer(), ChatTemplate(PLAIN))
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _from_gguf(path: Path) -> ModelText:
    header = read_header(path)
    pieces = header.get("tokenizer.ggml.tokens")
    if pieces is None:
        raise CbbenchError("model", f"{path}: the file holds no tokenizer")
    source = header.get("tokenizer.chat_template")
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    special = {
        name: pieces[header[f"tokenizer.ggml.{key}"]]
        for name, key in named.items()
        if f"tokenizer.ggml.{key}" in header
    }
    template = _template(path, source, special)
    return ModelText(FileTokenizer(build_tokenizer(path, header)), template)


def _from_folder(folder: Path) -> ModelText:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise CbbenchError("model", f"{folder}: tokenizer.json is missing, and encoding text needs it")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise CbbenchError("model", f"{file}: not a readable tokenizer ({str(error).splitlines()[0]})") from None
    settings = _settings(folder / "tokenizer_config.json")
    source = _template_source(folder, settings)
    special = {name: _content(settings[name]) for name in SPECIAL_NAMES if settings.get(name)}
    return ModelText(FileTokenizer(tokenizer), _template(folder, source, special))


def _template(path: Path, source: str | None, special: dict[str, str]) -> ChatTemplate | None:
    try:
        return ChatTemplate(source, special) if source else None
    except TemplateError as error:
        raise CbbenchError("model", f"{path}: {error}") from None


def _settings(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise CbbenchError("model", f"{file}: not readable JSON")
    return settings


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    """From chat_template.jinja, or from the settings: one template, or a list of named ones."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text(encoding="utf-8")
    source = settings.get("chat_template")
    if isinstance(source, list):
        source = next((one.get("template") for one in source if one.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _content(token: Any) -> str:
    """The text of a special token in the settings, given as text or as an object."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)
