"""From what a user writes to a RequestPlan.

SPEC is the name of a preset, or `prompt=LAW;output=LAW` (see lengths.py), or a file (see traces.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import TraceGaps, unit_arrivals
from workloads.errors import WorkloadError
from workloads.file_lines import SUFFIXES
from workloads.length_distributions import EXAMPLE, LengthDistribution, parse_distribution
from workloads.length_pairs import IndependentLengths, LengthPairs, ListedLengths, check_fits, draw_fitting
from workloads.plan import RequestPlan
from workloads.presets import PRESETS, Preset
from workloads.prompt_texts import DEFAULT_OUTPUT_TOKENS, Encode, PromptFile, PromptTexts
from workloads.workload_files import WorkloadFile, read_workload_file

__all__ = ["Workload", "WorkloadError", "build_plan", "open_workload", "suggestions"]

Misfit = Literal["error", "reject"]


@dataclass(frozen=True, eq=False)
class Workload:
    """What a SPEC means, before a number of requests and a seed make a plan of it.

    suggests  settings of a run that go well with it, by field name; flags win
    notes     provenance: source, licence, citation
    trace     the file's rows, of which `pairs` are the lengths
    """

    spec: str
    kind: Literal["preset", "laws", "file"]
    pairs: LengthPairs
    gaps: TraceGaps | None = None
    preset: Preset | None = None
    suggests: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    trace: WorkloadFile | None = None

    @property
    def script(self) -> PromptFile | None:
        """What the prompts say, where the file has them."""
        return self.trace.script if self.trace is not None else None

    def plan(
        self,
        *,
        num_requests: int,
        seed: int,
        arrival: str,
        max_model_len: int | None,
        misfit: Misfit = "error",
        encode: Encode | None = None,
    ) -> RequestPlan:
        """The first `num_requests` requests. encode: what counts the tokens of prompts that a file has. Raises
        WorkloadError."""
        check_numbers(num_requests, seed, max_model_len)
        common: dict[str, Any] = {
            "arrivals_ugap": unit_arrivals(arrival, num_requests, seed, self.gaps),
            "spec": self.spec,
            "seed": seed,
            "notes": self._notes(num_requests, arrival),
        }
        if isinstance(self.pairs, ListedLengths):
            mixed = self.script is not None and arrival != "trace"  # a trace's rows keep their order, as their gaps do
            rows = self.pairs.mixed_rows(num_requests, seed) if mixed else self.pairs.rows(num_requests)
            return self._listed(self.pairs, rows, max_model_len if misfit == "error" else None, encode, common)
        prompts, outputs, outside = draw_fitting(self.pairs, num_requests, seed, max_model_len, self.spec)
        return RequestPlan.of(prompts, outputs, outside_context=outside, **common)

    def _listed(
        self,
        listed: ListedLengths,
        rows: NDArray[np.intp],
        max_model_len: int | None,
        encode: Encode | None,
        common: dict[str, Any],
    ) -> RequestPlan:
        """Rows as they are: none is altered, and one that is longer than the context is refused."""
        prompts, texts = listed.prompt_tokens[rows], None
        if self.trace is not None and self.trace.script is not None:
            texts = PromptTexts.of(self.trace.script, rows, self.trace.counted_by, encode)
            prompts = prompts if texts.lengths is None else texts.lengths
        if texts is None or texts.counted_by != "server":
            check_fits(listed, prompts, rows, max_model_len, self.spec)
        return RequestPlan.of(
            prompts,
            listed.output_tokens[rows],
            tenant=listed.tenant[rows],
            priority=listed.priority[rows],
            tenants=listed.tenants,
            texts=texts,
            **common,
        )

    def _notes(self, count: int, arrival: str) -> dict[str, str]:
        """Provenance, and what of the file is used otherwise than one might think."""
        notes = dict(self.notes)
        if arrival == "trace" and self.gaps is not None:
            notes["trace_rate_per_s"] = f"{self.gaps.rate_per_s:.6g}"
        elif self.trace is not None and self.gaps is not None and self.gaps.rate_per_s:
            notes["arrivals"] = f"{self.spec} has arrival times, which are not used: --arrival trace keeps them"
        if self.trace is not None and count > (rows := len(self.trace.listed)):
            what, order = "rows", "from the top"
            if self.script is not None:
                what, order = "prompts", "from the top" if arrival == "trace" else "in an order drawn from the seed"
            notes["repeated"] = f"{self.spec} has {rows:,} {what}, repeated {order} to make {count:,} requests"
        if self.trace is not None and self.trace.defaulted:
            few = f"{self.trace.defaulted:,} of {len(self.trace.listed):,} prompts"
            notes["outputs"] = f"{self.spec}: {few} say no output_tokens, and ask for {DEFAULT_OUTPUT_TOKENS}"
        return notes


def build_plan(
    spec: str,
    *,
    num_requests: int,
    seed: int,
    arrival: str,
    max_model_len: int | None,
    misfit: Misfit = "error",
    encode: Encode | None = None,
) -> RequestPlan:
    """The plan of `num_requests` requests that `spec` describes: the same arguments give the same plan on any machine.

    arrival        constant, poisson, gamma:CV or trace; see arrivals.py
    max_model_len  tokens of prompt + output that a request may have; None: no limit. Presets and laws draw a pair that
                   passes it again (`outside_context` is the share); files and fixed lengths are never altered:
                   with misfit "error" they raise, with "reject" they go into the plan for the engine to refuse
    encode         what counts the tokens of prompts that a file has; else they are the file's own counts, or guesses
    Raises WorkloadError, in one line.
    """
    return open_workload(spec).plan(
        num_requests=num_requests,
        seed=seed,
        arrival=arrival,
        max_model_len=max_model_len,
        misfit=misfit,
        encode=encode,
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
    laws: dict[str, LengthDistribution] = {}
    for part in text.split(";"):
        side, equals, law = part.partition("=")
        side = side.strip()
        if side not in ("prompt", "output") or not equals:
            raise WorkloadError(f"cannot read '{part.strip()}' in the workload; want prompt=LAW;output=LAW, {EXAMPLE}")
        if side in laws:
            raise WorkloadError(f"the workload has {side}= twice")
        laws[side] = parse_distribution(law)
    missing = [side for side in ("prompt", "output") if side not in laws]
    if missing:
        raise WorkloadError(
            f"the workload needs {missing[0]}=LAW as well, as in prompt=fixed(128);output=uniform(16,256)"
        )
    prompt, output = laws["prompt"], laws["output"]
    if prompt.fixed and output.fixed:  # what the user fixed to the token is never redrawn
        return Workload(text, "laws", ListedLengths.of([int(prompt.grid[0])], [int(output.grid[0])]))
    return Workload(text, "laws", IndependentLengths(prompt, output))


def _from_file(text: str) -> Workload:
    trace = read_workload_file(Path(text))
    return Workload(
        text,
        "file",
        trace.listed,
        trace.gaps(),
        suggests={"num_requests": len(trace.listed)},
        notes={"source": text},
        trace=trace,
    )
