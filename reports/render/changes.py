"""Two runs in detail: what was set differently, what changed by how much, and for which requests most."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from engines.base import RequestRow
from reports.changes import Changed, most_changed, took_ns
from reports.regression import Measured
from reports.render.fitting import Table
from reports.render.gate import change_text
from reports.render.words import MISSING, number
from reports.scenarios import Pair, setting_differences
from reports.schema import RunFile

PLACE = ("cpu", "cores", "platform", "cbbench", "git_commit", "torch", "numpy")  # of the environment


def changes_view(pair: Pair, measured: Sequence[Measured], names: tuple[str, str]) -> RenderableType:
    """For runs of different work only the settings: their requests have nothing to do with each other. Where nobody
    knows what the work was, the metrics as well, but not request by request."""
    parts: list[RenderableType] = [Text(), _settings(pair)]
    if pair.differences and not pair.unsaid:
        return Group(*parts)
    parts += [Text(), _metrics(measured, names)]
    if pair.unsaid or pair.baseline.record is None or pair.candidate.record is None:
        return Group(*parts)
    if changed := most_changed(pair.baseline.record, pair.candidate.record):
        parts += [Text(), Text("Requests that changed most", "bold"), _requests(changed)]
    return Group(*parts)


def _settings(pair: Pair) -> Text:
    before, after = pair.baseline.run, pair.candidate.run
    lines = (
        ("settings", setting_differences(_engine(before), _engine(after))),
        ("machine and versions", setting_differences(*({name: run.environment.get(name) for name in PLACE}
                                                       for run in (before, after)))),
        ("work", [pair.differences] if pair.differences else []),
    )  # fmt: skip
    text = Text()
    for name, found in lines:
        text.append(f"{name}: ", "bold").append(("; ".join(found) or "the same") + "\n")
    text.rstrip()
    return text


def _engine(run: RunFile) -> dict[str, object]:
    """Settings by name; a simulated engine's law is told by its label, not by all its numbers."""
    fields = {name: value for name, value in msgspec.structs.asdict(run.engine).items() if name != "config"}
    return fields | {name: value for name, value in run.engine.config.items() if name != "law"}


def _metrics(measured: Sequence[Measured], names: tuple[str, str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for at, name in enumerate(("metric", *names, "change (95 % interval of these requests)")):
        table.add_column(name, justify="left" if at == 0 else "right", no_wrap=True)
    for one in measured:
        interval = one.spread.interval(0.05) if one.spread is not None else None
        check = one.check("", "regression", "pass", "", "", interval)
        table.add_row(one.budget.metric, number(one.before), number(one.after), change_text(check))
    return table


def _requests(changed: Sequence[Changed]) -> Table:
    table = Table(spare=[-1, -2], box=None, header_style="bold", pad_edge=False)
    for name in ("request", "prompt", "output", "TTFT, ms", "E2EL, ms", "preempted", "end"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in changed:
        before, after = one.before, one.after
        table.add_row(
            str(before.i),
            str(before.prompt_tokens),
            _both(str(before.output_tokens), str(after.output_tokens)),
            _both(number(_ttft_ms(before)), number(_ttft_ms(after))),
            _both(number(took_ns(before) / 1e6), number(took_ns(after) / 1e6)),
            _both(str(before.preemptions), str(after.preemptions)),
            _both(before.finish_reason or MISSING, after.finish_reason or MISSING),
        )
    return table


def _both(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _ttft_ms(row: RequestRow) -> float | None:
    return None if row.first is None else (row.first - row.scheduled) / 1e6
