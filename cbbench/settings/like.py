"""Other systems as settings of our scheduler: `like` sets the policies a system has, and refuses those it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cbbench.settings.run import RunSettings
from workloads.errors import CbbenchError


class System(NamedTuple):
    """A system's policies, by flat name of the setting."""

    policies: dict[str, tuple[Any, ...]]  # what it can do; the first value is its default
    defaults: dict[str, Any]  # of settings that it has too, of any value


def _without(*names: str) -> dict[str, tuple[Any, ...]]:
    """Policies that a system lacks: only our defaults of them, which are none."""
    return {name: (RunSettings.all()[name].default,) for name in names}


# What is not imitated is in docs/scheduling.md. tests/oracles/test_vllm_v1.py compares the schedules.
SYSTEMS = {
    # vllm/v1/core/sched/scheduler.py with `--scheduling-policy fcfs`
    "vllm-v1": System(
        policies={
            "mode": ("continuous",),
            "chunked_prefill": (True,),
            "prefill": ("in-order",),
            "admission": ("prompt-fits", "optimistic"),  # optimistic: its scheduler_reserve_full_isl off
            "on_kv_pressure": ("recompute",),
            "victim": ("last",),
            "order": ("fcfs",),
            # v1 refuses a limit on partial prefills; its threshold is our max_prompt_chunk.
            **_without("max_num_partial_prefills", "max_long_partial_prefills", "prompt_buckets", "ageing"),
            **_without("skip_ahead", "preempt_for_priority", "quota", "disaggregate"),
        },
        defaults={"watermark": 0.0},
    ),
}


def imitated(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, by flat name, with the policies of a system. Raises CbbenchError where one contradicts them."""
    system = SYSTEMS[name]
    chosen = system.defaults | dict(values)
    for setting, can in system.policies.items():
        if chosen.setdefault(setting, can[0]) not in can:
            has = "has it on" if can == (True,) else f"has {' or '.join(can)}" if can[0] else "has none"
            raise CbbenchError(setting, f"`like` {name} {has}; drop `{setting}` or `like`")
    return chosen
