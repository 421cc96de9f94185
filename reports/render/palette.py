"""Colours by meaning, for light and for dark backgrounds.

Series are Okabe and Ito's colours, which colour-blind readers tell apart, darkened or lightened for contrast. States of
slots and parts of a latency: blue is work, warm colours are waste or waiting, grey is idle.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#ffffff",
    "panel": "#f6f7f9",
    "ink": "#1b1f24",
    "muted": "#5c6570",
    "grid": "#e3e6ea",
    "good": "#11734b",
    "bad": "#b3261e",
    "unsure": "#8a5a00",
    "series-0": "#0b66a8",
    "series-1": "#c8500a",
    "series-2": "#0a7f5f",
    "series-3": "#a8488a",
    "series-4": "#8a6d00",
    "series-5": "#5b6470",
    "decode": "#2f74b5",
    "prefill": "#8cc4e8",
    "padding": "#f0b840",
    "dead": "#d2613a",
    "held": "#b79a78",
    "preempted": "#8a4fa3",
    "swapped": "#c39bd3",
    "idle": "#e8ebef",
    "other": "#9aa3ad",
}
DARK = LIGHT | {
    "paper": "#14171b",
    "panel": "#1c2026",
    "ink": "#e8eaed",
    "muted": "#a2abb6",
    "grid": "#2e343c",
    "good": "#5fcf9b",
    "bad": "#ff8a80",
    "unsure": "#f0b84d",
    "series-0": "#5cb3f0",
    "series-1": "#f28c4b",
    "series-2": "#3fc79d",
    "series-3": "#dd8fc4",
    "series-4": "#d9bd45",
    "series-5": "#aab3be",
    "decode": "#4d96d9",
    "prefill": "#a9d6f2",
    "idle": "#2a3038",
    "other": "#7d8792",
}
SERIES = 6


def series(number: int) -> str:
    return f"series-{number % SERIES}"


def style(colours: dict[str, str]) -> str:
    """As CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())
