"""Reports in a real Chromium: nothing goes wrong or is asked for, every chart is drawn, light, dark and narrow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from reports.document import Report
from reports.render.html import html
from tests.reports.browser import CHROMIUM, Page, browser
from tests.reports.test_pages import page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]

LOOKS = ((False, 1200), (True, 1200), (False, 390))
MARKS = "[...document.querySelectorAll('.chart')].map(one => one.querySelectorAll('svg path[d]').length)"
PAPER = "getComputedStyle(document.body).backgroundColor"
# The colour of every mark, as the page resolves it: none may be left for want of a variable.
COLOURS = "[...document.querySelectorAll('.chart svg path[fill^=var]')].map(one => getComputedStyle(one).fill)"
LABELS = """[...document.querySelectorAll('.chart svg')].map(chart => {
  const boxes = [...chart.querySelectorAll('.role-axis-label text')].filter(one => getComputedStyle(one).opacity > 0)
    .map(one => one.getBoundingClientRect());
  let over = 0;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
    if (a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2) over += 1;
  }));
  return over;
})"""

# Legend entries that lie over each other or are cut by the chart's edge.
LEGENDS = """[...document.querySelectorAll('.chart svg')].map(chart => {
  const edge = chart.getBoundingClientRect();
  const boxes = [...chart.querySelectorAll('.role-legend-label text, .role-legend-title text')]
    .map(one => one.getBoundingClientRect());
  const cut = boxes.filter(one => one.left < edge.left - 1 || one.right > edge.right + 1 || one.top < edge.top - 1);
  let over = 0;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
    if (a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2) over += 1;
  }));
  return cut.length + over;
})"""


def drive(folder: Path, script: Callable[[Page], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with browser(folder / "profile") as tab:
            await script(tab)

    asyncio.run(run())


def written(folder: Path, name: str, report: Report) -> Path:
    path = folder / f"{name}.html"
    path.write_text(html(report), encoding="utf-8")
    return path


def test_reports_in_light_in_dark_and_on_a_phone(tmp_path: Path) -> None:
    files = {kind: written(tmp_path, kind, page(kind)) for kind in ("run", "pair", "sweep", "grid")}

    async def look(tab: Page) -> None:
        for kind, path in files.items():
            for dark, width in LOOKS:
                await tab.open(path, dark=dark, width=width)
                seen = (kind, dark, width)
                assert tab.errors == [], seen
                assert tab.requests == [path.as_uri()], seen
                marks = await tab.value(MARKS)
                assert len(marks) == len(page(kind).charts())
                assert min(marks) >= 4, seen
                assert await tab.value("document.documentElement.scrollWidth") <= width, seen
                assert await tab.value(PAPER) == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)"), seen
                colours = await tab.value(COLOURS)
                assert colours, seen
                assert not {"", "none", "rgb(0, 0, 0)"} & set(colours), seen
                assert sum(await tab.value(LABELS)) == 0, seen
                assert sum(await tab.value(LEGENDS)) == 0, seen

    drive(tmp_path, look)


def test_the_toggle_turns_the_page_and_its_charts_over(tmp_path: Path) -> None:
    path = written(tmp_path, "run", page("run"))

    async def toggle(tab: Page) -> None:
        await tab.open(path)
        light = (await tab.value(PAPER), await tab.value(COLOURS))
        await tab.value("document.getElementById('theme').click()")
        dark = (await tab.value(PAPER), await tab.value(COLOURS))
        assert dark[0] == "rgb(20, 23, 27)"
        assert dark[1] != light[1]
        await tab.value("document.getElementById('theme').click()")
        assert (await tab.value(PAPER), await tab.value(COLOURS)) == light

    drive(tmp_path, toggle)


def test_a_point_tells_why_when_pointed_at(tmp_path: Path) -> None:
    path = written(tmp_path, "sweep", page("sweep"))

    async def point(tab: Page) -> None:
        await tab.open(path)
        place = await tab.value(
            "(() => { const chart = document.querySelector('.chart'); chart.scrollIntoView({block: 'center'});"
            "const box = chart.querySelector('.mark-symbol path').getBoundingClientRect();"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        for x in (place["x"] - 3, place["x"]):
            await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=place["y"])
        await asyncio.sleep(0.2)
        told = await tab.value("document.getElementById('vg-tooltip-element').innerText")
        assert "limit" in told
        assert "max-num-seqs" in told

    drive(tmp_path, point)


def test_on_paper_everything_is_there(tmp_path: Path) -> None:
    path = written(tmp_path, "pair", page("pair"))

    async def paper(tab: Page) -> None:
        await tab.open(path, dark=True)
        await tab.call("Emulation.setEmulatedMedia", media="print")
        assert await tab.value(PAPER) == "rgb(255, 255, 255)"
        await tab.pdf(tmp_path / "pair.pdf")
        assert (tmp_path / "pair.pdf").read_bytes().startswith(b"%PDF")
        assert tab.errors == []

    drive(tmp_path, paper)
