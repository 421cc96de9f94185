"""The instances of a disaggregated run beside each other, and the KV that went between them."""

from __future__ import annotations

from rich.text import Text

from reports.render.fitting import Table
from reports.render.words import number, share
from reports.summary_schema import Summary, Transfers

COLUMNS = (
    "device\nbusy",
    "KV\nin use",
    "peak",
    "running",
    "waiting",
    "steps",
    "ms per\nstep",
    "idle\nseats",
    "evicted",
)


def instance_rows(summary: Summary) -> list[tuple[str, ...]]:
    """A name and a cell for each of COLUMNS, instance by instance."""
    return [
        (
            name,
            *(
                share(value)
                for value in (one.signals.device_busy, one.signals.kv_usage_mean, one.signals.kv_usage_peak)
            ),
            *(number(value) for value in (one.signals.running_mean, one.signals.waiting_mean, one.signals.steps)),
            number(one.signals.step_ms_mean),
            share(one.waste.idle_slot_steps / one.waste.slot_steps),
            number(one.signals.preemptions),
        )
        for name, one in summary.instances.items()
    ]


def instance_table(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("instance")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for row in instance_rows(summary):
        table.add_row(*row)
    return table


def transfer_text(found: Transfers) -> Text:
    return Text(transfer_sentence(found), "dim")


def transfer_sentence(found: Transfers) -> str:
    waits, moves = found.wait_ms, found.transfer_ms
    return (
        f"{found.requests:,} transfers of KV, {found.blocks:,} blocks: after the first token {number(waits.mean)} ms "
        f"(P99 {number(waits.p99)}) until the decode instance planned a step with room for them, then "
        f"{number(moves.mean)} ms (P99 {number(moves.p99)}) until the KV was there; the prefill instance kept up to "
        f"{found.kept_blocks_peak:,} blocks meanwhile."
    )
