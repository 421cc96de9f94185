"""A report as one HTML file that works offline: no network, no server, no other file."""

from __future__ import annotations

import json
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from reports.document import Block, Chart, Figures, Report, Section, Table, Text
from reports.render.palette import DARK, LIGHT, style


def html(report: Report) -> str:
    """The page as text. Only a report with charts needs the extra `charts`; CbbenchError says so."""
    names = {id(chart): f"chart-{at}" for at, chart in enumerate(report.charts())}
    specs, vega = _drawn(report.charts()) if names else ({}, "")
    return _filled(
        _asset("report.html"),
        title=escape(report.title),
        kind=escape(report.kind),
        subtitle=escape(report.subtitle),
        word=escape(report.word),
        tone=report.tone,
        style=_filled(_asset("report.css"), light=style(LIGHT), dark=style(DARK)),
        sections="\n".join(_section(one, names) for one in report.sections),
        footer=escape(f"cbbench {version('cbbench')}"),
        charts=_embedded(specs),
        vega=vega,
        script=_asset("report.js"),
    )


def _drawn(found: list[Chart]) -> tuple[dict[str, Any], str]:
    """(specifications by the id of their element, the script that draws them)"""
    from reports.render.charts.vega import javascript, spec

    specs = {f"chart-{at}": spec(chart) for at, chart in enumerate(found)}
    return specs, javascript().replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return files("reports.render").joinpath("assets", name).read_text(encoding="utf-8")


def _filled(template: str, **texts: str) -> str:
    """The template with every [[name]] replaced; [[ ]] inside a text that is put in stays as it is."""
    parts = template.split("[[")
    filled = [parts[0]]
    for part in parts[1:]:
        name, rest = part.split("]]", 1)
        filled += [texts[name], rest]
    return "".join(filled)


def _embedded(value: object) -> str:
    """JSON inside a script element: no < may end it or begin a comment."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _section(section: Section, names: dict[int, str]) -> str:
    parts: list[str] = []
    grid: list[Chart] = []
    for block in section.blocks:
        if isinstance(block, Chart):
            grid.append(block)
            continue
        if grid:
            parts.append(_grid(grid, names))
            grid = []
        parts.append(_block(block))
    parts += [_grid(grid, names)] if grid else []
    body = "\n".join(parts)
    if section.folded:
        return f"<details><summary>{escape(section.title)}</summary>\n{body}\n</details>"
    heading = f"<h2>{escape(section.title)}</h2>\n" if section.title else ""
    return f"<section>\n{heading}{body}\n</section>"


def _grid(charts: list[Chart], names: dict[int, str]) -> str:
    """Charts two or three in a line; a wide one has a line of its own."""
    kind = "grid three" if sum(not one.wide for one in charts) == 3 else "grid"
    drawn = "\n".join(_chart(one, names[id(one)]) for one in charts)
    return f'<div class="{kind}">\n{drawn}\n</div>'


def _chart(chart: Chart, name: str) -> str:
    caption = f"<figcaption>{escape(chart.caption)}</figcaption>" if chart.caption else ""
    wide = ' class="wide"' if chart.wide else ""
    label = escape(chart.title, quote=True)
    return (
        f"<figure{wide}><h3>{escape(chart.title)}</h3>{caption}"
        f'<div class="chart" id="{name}" role="img" aria-label="{label}"></div></figure>'
    )


def _block(block: Block) -> str:
    if isinstance(block, Text):
        kind = block.tone if block.tone != "plain" else "lead" if block.lead else ""
        return f'<p class="{kind}">{escape(block.text)}</p>' if kind else f"<p>{escape(block.text)}</p>"
    if isinstance(block, Figures):
        return _figures(block)
    assert isinstance(block, Table)
    return _table(block)


def _figures(block: Figures) -> str:
    cells = [
        f'<div class="figure"><dt>{escape(one.label)}</dt>'
        f'<dd class="value">{escape(one.value)} <span class="unit">{escape(one.unit)}</span></dd>'
        f'<dd class="detail">{escape(one.detail)}</dd></div>'
        for one in block.figures
    ]
    return '<dl class="figures">' + "".join(cells) + "</dl>"


def _table(table: Table) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        kinds = [' class="text"' if at == 0 or at in table.texts else "" for at in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    marked = ' class="marked"'
    rows = [
        f"<tr{marked if at == table.marked else ''}>{cells(tuple(row), 'td')}</tr>" for at, row in enumerate(table.rows)
    ]
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = f"<thead><tr>{cells(tuple(table.columns), 'th')}</tr></thead>"
    return f'<div class="scroll"><table>{caption}{head}<tbody>{"".join(rows)}</tbody></table></div>'
