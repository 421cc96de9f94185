"""A report before it becomes HTML or Markdown: sections of texts, figures, tables and charts.

A chart here is its data and what they mean; render/charts/ draws it. Every text is plain and is escaped by whoever
prints it.
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
    lead: bool = False  # the sentence to read if only one is read


@dataclass(frozen=True)
class Figure:
    """A number to be read from afar."""

    label: str
    value: str
    unit: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Figures:
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Table:
    """Cells as they are printed. The first column is text, the others are aligned right unless named in `texts`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None  # the row that matters
    texts: frozenset[int] = frozenset()  # columns that read from the left
    caption: str = ""


@dataclass(frozen=True)
class Axis:
    title: str
    log: bool = False
    domain: tuple[float, float] | None = None
    ticks: Sequence[float] = ()  # where the numbers stand; (): wherever they fit
    percent: bool = False
    whole: bool = False  # it counts something: no halves
    quiet: bool = False  # another chart below has the same axis and its title


@dataclass(frozen=True)
class Rule:
    """A line across the chart, as an SLA is."""

    value: float
    label: str  # "": the line alone
    along: Literal["x", "y"] = "y"
    quiet: bool = False  # no bound, but where something begins; its label is beside it, to the right


@dataclass(frozen=True)
class Spot:
    """One point of a curve. `details` are shown when it is pointed at; `label` stands beside it."""

    x: float
    y: float
    label: str
    series: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    y_interval: tuple[float, float] | None = None
    x_interval: tuple[float, float] | None = None
    marks: Sequence[Mark] = ()  # each is drawn around the point, in a shape of its own


@dataclass(frozen=True)
class Curve:
    """Points; those of a series are joined in the order given."""

    x: Axis
    y: Axis
    spots: Sequence[Spot]
    rules: Sequence[Rule] = ()
    frontier: Sequence[tuple[float, float]] = ()  # drawn as a line of its own
    legend: str = ""  # what the names of the series are values of
    joined: bool = True  # not where the points go over words: there is nothing between two of them


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
    stacked: bool = False  # areas upon each other


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, each cut into parts."""

    x: Axis
    parts: Sequence[tuple[str, str, float]]  # bar, part, value
    colours: Mapping[str, str]  # of each part: a name in the palette; its order is that of the legend


@dataclass(frozen=True)
class SlotTimeline:
    """A Gantt chart of slots: what happened in each from one place on the x axis to another."""

    x: Axis
    slots: int
    end: float  # of the run; behind it there is nothing, not even an idle seat
    spans: Sequence[tuple[int, str, float, float]]  # slot, state, from, to
    colours: Mapping[str, str]


Plot = Curve | Lines | Bars | SlotTimeline


@dataclass(frozen=True)
class Chart:
    name: str  # of its file
    title: str
    plot: Plot
    caption: str = ""
    wide: bool = False  # takes the whole width of the page


Block = Text | Figures | Table | Chart


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]
    folded: bool = False  # detail that is there when it is asked for
    leads: bool = False  # what a reader with little time needs


@dataclass(frozen=True)
class Report:
    kind: str  # of what: a run, ...
    title: str
    subtitle: str
    word: str  # the verdict: PASS, FAIL, ...
    tone: Tone
    sections: Sequence[Section]

    def titled(self, title: str) -> Report:
        """Under a title of somebody's own; what it says of itself stays below it."""
        return replace(self, title=title, subtitle=" · ".join(one for one in (self.title, self.subtitle) if one))

    def without_charts(self) -> Report:
        """The texts, figures and tables. A section with texts alone spoke of its charts, unless it leads."""
        kept = []
        for section in self.sections:
            blocks = [block for block in section.blocks if not isinstance(block, Chart)]
            if blocks and (section.leads or any(isinstance(block, Table | Figures) for block in blocks)):
                kept.append(replace(section, blocks=blocks))
        return replace(self, sections=kept)

    def charts(self) -> list[Chart]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Chart)]
