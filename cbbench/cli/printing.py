"""Prints lines, tables and JSON on stdout. Rich loads inside, so that help is instant."""

from __future__ import annotations

from typing import Any

import typer


def print_lines(*lines: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))


def print_json(value: Any) -> None:
    from reports.files import json_bytes

    typer.echo(json_bytes(value).decode(), nl=False)
