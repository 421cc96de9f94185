"""A report before it becomes HTML or Markdown: sections of texts, figures, tables and charts.

A chart here is data with their meaning; render/charts/ draws it. Every text is plain; each format escapes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Tone = Literal["good", "bad", "unsure", "plain"]
Mark = Literal["recommended", "knee"]


@dataclass(frozen=True)
class Text:
    text: str
    tone: Tone = "plain"
    lead: bool = False  # the one sentence to read


@dataclass(frozen=True)
class Figure:
    """A number in large type."""

    label: str
    value: str
    unit: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Figures:
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Table:
    """Cells as printed. The first column and those in `texts` are aligned left, the others right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None  # index of the highlighted row
    texts: frozenset[int] = frozenset()  # indices of columns
    caption: str = ""


@dataclass(frozen=True)
class Axis:
    title: str
    log: bool = False
    domain: tuple[float, float] | None = None
    ticks: Sequence[float] = ()  # values with a label; (): chosen by the chart
    percent: bool = False
    whole: bool = False  # counts: no fractions on the axis
    quiet: bool = False  # without title, as the chart below shares the axis


@dataclass(frozen=True)
class Rule:
    """A line across the chart, such as an SLA."""

    value: float
    label: str  # "": a line without label
    along: Literal["x", "y"] = "y"
    quiet: bool = False  # marks where something begins and is no bound; its label stands to the right


@dataclass(frozen=True)
class Spot:
    """One point of a curve. details: in the tooltip; label: beside the point."""

    x: float
    y: float
    label: str
    series: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    y_interval: tuple[float, float] | None = None
    x_interval: tuple[float, float] | None = None
    marks: Sequence[Mark] = ()  # shapes around the point


@dataclass(frozen=True)
class Curve:
    """Points; those of a series are joined in the order given."""

    x: Axis
    y: Axis
    spots: Sequence[Spot]
    rules: Sequence[Rule] = ()
    frontier: Sequence[tuple[float, float]] = ()  # a separate line
    legend: str = ""  # title: the parameter whose values name the series
    joined: bool = True  # False where the points are of words, which have nothing between them


@dataclass(frozen=True)
class Line:
    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]  # None: a gap
    colour: str = "series-0"  # a name in the palette


@dataclass(frozen=True)
class Lines:
    x: Axis
    y: Axis
    lines: Sequence[Line]
    rules: Sequence[Rule] = ()
    stacked: bool = False  # areas on top of each other


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, each cut into parts."""

    x: Axis
    parts: Sequence[tuple[str, str, float]]  # bar, part, value
    colours: Mapping[str, str]  # part -> name in the palette, in the order of the legend


@dataclass(frozen=True)
class SlotTimeline:
    """A Gantt chart of the states of slots, over steps or seconds."""

    x: Axis
    slots: int
    end: float  # of the run; beyond it slots are not drawn as idle
    spans: Sequence[tuple[int, str, float, float]]  # slot, state, from, to
    colours: Mapping[str, str]


Plot = Curve | Lines | Bars | SlotTimeline


@dataclass(frozen=True)
class Chart:
    name: str  # of its file
    title: str
    plot: Plot
    caption: str = ""
    wide: bool = False  # as wide as the page


Block = Text | Figures | Table | Chart


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]
    folded: bool = False  # closed until the reader opens it
    leads: bool = False  # stays open and complete in short formats


@dataclass(frozen=True)
class Report:
    kind: str  # of what: a run, ...
    title: str
    subtitle: str
    word: str  # the verdict: PASS, FAIL, ...
    tone: Tone
    sections: Sequence[Section]

    def titled(self, title: str) -> Report:
        """The report under another title; its own title moves to the subtitle."""
        return replace(self, title=title, subtitle=" · ".join(one for one in (self.title, self.subtitle) if one))

    def without_charts(self) -> Report:
        """The report without charts, and without sections whose texts explain charts alone."""
        kept = []
        for section in self.sections:
            blocks = [block for block in section.blocks if not isinstance(block, Chart)]
            if blocks and (section.leads or any(isinstance(block, Table | Figures) for block in blocks)):
                kept.append(replace(section, blocks=blocks))
        return replace(self, sections=kept)

    def charts(self) -> list[Chart]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Chart)]
