"""From what a user writes to a RequestPlan.

SPEC is the name of a preset, or `prompt=LAW;output=LAW` (see lengths.py), or a file (see traces.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from workloads.arrivals import TraceGaps, unit_arrivals
from workloads.errors import WorkloadError
from workloads.lengths import EXAMPLE, Law, parse_law
from workloads.pairs import Listed, Pairs, TwoLaws, check_fits, draw_fitting
from workloads.plan import RequestPlan
from workloads.presets import PRESETS, Preset
from workloads.traces import SUFFIXES, read_trace

__all__ = ["Workload", "WorkloadError", "build_plan", "open_workload", "suggestions"]

Misfit = Literal["error", "reject"]


@dataclass(frozen=True, eq=False)
class Workload:
    """What a SPEC means, before a number of requests and a seed make a plan of it.

    suggests  settings of a run that go well with it, by field name; flags win
    notes     provenance: source, licence, citation
    """

    spec: str
    kind: Literal["preset", "laws", "file"]
    pairs: Pairs
    gaps: TraceGaps | None = None
    preset: Preset | None = None
    suggests: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def plan(
        self, *, num_requests: int, seed: int, arrival: str, max_model_len: int | None, misfit: Misfit = "error"
    ) -> RequestPlan:
        """The first `num_requests` requests. Raises WorkloadError."""
        check_numbers(num_requests, seed, max_model_len)
        common: dict[str, Any] = {
            "arrivals_ugap": unit_arrivals(arrival, num_requests, seed, self.gaps),
            "spec": self.spec,
            "seed": seed,
            "notes": self.notes,
        }
        if arrival == "trace" and self.gaps is not None:
            common["notes"] = self.notes | {"trace_rate_per_s": f"{self.gaps.rate_per_s:.6g}"}
        if arrival != "trace" and self.kind == "file" and self.gaps is not None and self.gaps.rate_per_s:
            unused = f"{self.spec} has arrival times, which are not used: --arrival trace keeps them"
            common["notes"] = self.notes | {"arrivals": unused}
        if isinstance(self.pairs, Listed):
            return self._listed(self.pairs, num_requests, max_model_len, misfit, common)
        prompts, outputs, outside = draw_fitting(self.pairs, num_requests, seed, max_model_len, self.spec)
        return RequestPlan.of(prompts, outputs, outside_context=outside, **common)

    def _listed(
        self, listed: Listed, count: int, max_model_len: int | None, misfit: Misfit, common: dict[str, Any]
    ) -> RequestPlan:
        """Rows as they are: none is altered."""
        rows = listed.rows(count)
        if misfit == "error":
            check_fits(listed, rows, max_model_len, self.spec)
        if self.kind == "file" and count > len(listed):
            repeated = f"{self.spec} has {len(listed):,} rows, repeated from the top to make {count:,} requests"
            common["notes"] = common["notes"] | {"repeated": repeated}
        return RequestPlan.of(
            listed.prompt_tokens[rows],
            listed.output_tokens[rows],
            tenant=listed.tenant[rows],
            priority=listed.priority[rows],
            tenants=listed.tenants,
            **common,
        )


def build_plan(
    spec: str,
    *,
    num_requests: int,
    seed: int,
    arrival: str,
    max_model_len: int | None,
    misfit: Misfit = "error",
) -> RequestPlan:
    """The plan of `num_requests` requests that `spec` describes: the same arguments give the same plan on any machine.

    arrival        constant, poisson, gamma:CV or trace; see arrivals.py
    max_model_len  tokens of prompt + output that a request may have; None: no limit. Presets and laws draw a pair that
                   passes it again (`outside_context` is the share); files and fixed lengths are never altered:
                   with misfit "error" they raise, with "reject" they go into the plan for the engine to refuse
    Raises WorkloadError, in one line.
    """
    return open_workload(spec).plan(
        num_requests=num_requests, seed=seed, arrival=arrival, max_model_len=max_model_len, misfit=misfit
    )


def check_numbers(num_requests: int, seed: int, max_model_len: int | None) -> None:
    """Raises WorkloadError for a number that no plan can have."""
    if num_requests < 1:
        raise WorkloadError(f"--num-requests must be at least 1, got {num_requests}")
    if seed < 0:
        raise WorkloadError(f"--seed must be 0 or more, got {seed}")
    if max_model_len is not None and max_model_len < 2:
        raise WorkloadError(f"--max-model-len must be at least 2 (one token in, one out), got {max_model_len}")


def suggestions(spec: str) -> dict[str, Any]:
    """Settings of a run that go well with the workload, by field name: what its preset says; all rows of a file."""
    return open_workload(spec).suggests


def open_workload(spec: str) -> Workload:
    """What the SPEC means. Reads the file where it is one. Raises WorkloadError."""
    text = spec.strip()
    if text in PRESETS:
        return _from_preset(PRESETS[text])
    if ("=" in text and ";" in text) or text.startswith(("prompt=", "output=")):
        return _from_laws(text)
    if text.endswith(SUFFIXES) or Path(text).is_file():
        return _from_file(text)
    close = get_close_matches(text.lower(), PRESETS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise WorkloadError(
        f"unknown workload '{text}'; {hint}want a preset ({', '.join(PRESETS)}), "
        f"'prompt=LAW;output=LAW' or a file ({', '.join(SUFFIXES[:2])})"
    )


def _from_preset(preset: Preset) -> Workload:
    notes = {"description": preset.description}
    if preset.origin is not None:
        origin = preset.origin
        source = f"{origin.url} {origin.file} @ {origin.commit}"
        notes |= {"source": source, "licence": origin.licence, "citation": origin.citation}
    return Workload(preset.name, "preset", preset.pairs, preset.gaps, preset, dict(preset.suggests), notes)


def _from_laws(text: str) -> Workload:
    laws: dict[str, Law] = {}
    for part in text.split(";"):
        side, equals, law = part.partition("=")
        side = side.strip()
        if side not in ("prompt", "output") or not equals:
            raise WorkloadError(f"cannot read '{part.strip()}' in the workload; want prompt=LAW;output=LAW, {EXAMPLE}")
        if side in laws:
            raise WorkloadError(f"the workload has {side}= twice")
        laws[side] = parse_law(law)
    missing = [side for side in ("prompt", "output") if side not in laws]
    if missing:
        raise WorkloadError(
            f"the workload needs {missing[0]}=LAW as well, as in prompt=fixed(128);output=uniform(16,256)"
        )
    prompt, output = laws["prompt"], laws["output"]
    if prompt.fixed and output.fixed:  # what the user fixed to the token is never redrawn
        return Workload(text, "laws", Listed.of([int(prompt.grid[0])], [int(output.grid[0])]))
    return Workload(text, "laws", TwoLaws(prompt, output))


def _from_file(text: str) -> Workload:
    trace = read_trace(Path(text))
    return Workload(
        text, "file", trace.listed, trace.gaps(), suggests={"num_requests": len(trace.listed)}, notes={"source": text}
    )
