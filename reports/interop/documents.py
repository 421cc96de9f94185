"""The documents of a result file: JSON, JSON lines (the tools append), or YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from workloads.errors import CbbenchError

Document = dict[str, Any]


def read_documents(path: Path) -> list[Document]:
    """One document or more, else CbbenchError. Read by Python's json, as SGLang writes Infinity, which is not JSON. NaN
    is read as null: the value is not known."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        found = _yaml(text) if path.suffix in (".yaml", ".yml") else _json(text)
    except (OSError, UnicodeDecodeError, ValueError, msgspec.DecodeError) as error:
        raise CbbenchError(None, f"{path}: not a result of vLLM, SGLang, guidellm or aiperf: {error}") from None
    except ImportError:
        raise CbbenchError(None, f"{path}: to read YAML, pip install pyyaml; or let guidellm write JSON") from None
    if not found or not all(isinstance(one, dict) for one in found):
        raise CbbenchError(None, f"{path}: not a result of vLLM, SGLang, guidellm or aiperf: not an object")
    return found


def _json(text: str) -> list[Any]:
    try:
        return [json.loads(text, parse_constant=_constant)]
    except json.JSONDecodeError:
        if "\n" not in text:
            raise
        return [json.loads(line, parse_constant=_constant) for line in text.splitlines() if line.strip()]


def _constant(name: str) -> float | None:
    return None if name == "NaN" else float(name)


def _yaml(text: str) -> list[Any]:
    return [msgspec.yaml.decode(text)]
