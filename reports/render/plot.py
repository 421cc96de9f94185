"""Curves in a terminal, in braille dots."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text


def curve(
    xs: Sequence[float],
    ys: Sequence[float],
    labels: Sequence[str],
    *,
    x_name: str,
    y_name: str,
    width: int = 72,
    height: int = 14,
) -> Text:
    """Points joined in the order given, each with its label. The y axis is logarithmic when it spans more than 10x."""
    raise NotImplementedError
