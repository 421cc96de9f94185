"""From the text of a workload (SPEC) to a RequestPlan.

SPEC is the name of a preset, `prompt=DIST;output=DIST` (length_distributions.py), or a file (workload_files.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np

from workloads.arrivals import TraceGaps, unit_arrivals
from workloads.errors import CbbenchError
from workloads.file_lines import KINDS, SUFFIXES
from workloads.length_distributions import EXAMPLE, LengthDistribution, parse_distribution
from workloads.length_pairs import IndependentLengths, LengthPairs, ListedLengths, check_fits, draw_fitting
from workloads.plan import Note, RequestPlan
from workloads.prefix_groups import PrefixGroups, split_prefix
from workloads.presets import PRESETS, Preset, read_preset_file
from workloads.prompt_texts import DEFAULT_OUTPUT_TOKENS, Encode, PromptFile, PromptTexts, PromptTokens
from workloads.selection import Selection, selected
from workloads.workload_files import Reading, WorkloadFile, read_workload_file

Misfit = Literal["error", "reject"]
FITTED_SUFFIX = ".preset.json"  # of the files that `cbbench workload fit` writes


@dataclass(frozen=True, eq=False)
class Workload:
    """An opened SPEC. `plan` makes requests of it; a file is read once, whatever the number of plans.

    suggests    default settings of a run of it, by field name; what the user gives takes precedence
    provenance  description, source, licence, citation: those that are known
    file        the rows that `lengths` come from, if the SPEC is a file
    """

    spec: str
    kind: Literal["preset", "distributions", "file"]
    lengths: LengthPairs
    gaps: TraceGaps | None = None
    preset: Preset | None = None
    suggests: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    file: WorkloadFile | None = None
    prefixes: PrefixGroups | None = None

    @property
    def prompts(self) -> PromptFile | None:
        """The contents of the prompts, if the file has them."""
        return self.file.prompts if self.file is not None else None

    def tokenised(self, encode: Encode | None) -> PromptTokens | None:
        """Tokens of the prompts, for `plan`: plans that share them tokenise a prompt once. None without one."""
        return None if self.prompts is None or encode is None else PromptTokens(self.prompts, encode)

    def taken(self, what: Selection, seed: int) -> Workload:
        """The rows of its file that are selected. Raises CbbenchError for another kind of workload."""
        if not what:
            return self
        if self.file is None:
            name = next(name for name in ("window", "sample", "thin") if getattr(what, name) is not None)
            raise CbbenchError(name, f"takes rows of a file, and {self.spec} is none; `num_requests` sets their number")
        return replace(_of_file(self.spec, selected(self.file, what, seed)), prefixes=self.prefixes)

    def plan(
        self,
        *,
        num_requests: int,
        seed: int,
        arrival: str,
        max_model_len: int | None,
        misfit: Misfit = "error",
        tokens: PromptTokens | None = None,
    ) -> RequestPlan:
        """The first `num_requests` requests. Raises CbbenchError. tokens: see `tokenised`; others: see build_plan."""
        check_numbers(num_requests, seed, max_model_len)
        together = arrival == "trace" and self.file is not None and self.gaps is not None and num_requests > 1
        together = together and self.gaps is not None and not self.gaps.gaps[: num_requests - 1].any()
        common: dict[str, Any] = {
            "arrivals_ugap": np.zeros(num_requests, dtype=np.int64)
            if together
            else unit_arrivals(arrival, num_requests, seed, self.gaps),
            "spec": self.spec,
            "seed": seed,
            "notes": self._notes(num_requests, arrival),
        }
        if arrival == "trace" and self.gaps is not None and not together:
            # Six digits, as in all runs recorded so far: more would change the times at which requests are due.
            common["trace_rate_per_s"] = float(f"{self.gaps.rate_per_s:.6g}")
        if self.prefixes is not None:
            common["prefix"] = self.prefixes.draw(num_requests, seed)
            common["prefix_tokens"] = (self.prefixes.tokens,) * self.prefixes.groups
        if isinstance(self.lengths, ListedLengths):
            fit_tokens = max_model_len if misfit == "error" else None
            return self._listed(self.lengths, num_requests, seed, arrival, fit_tokens, tokens, common)
        prompts, outputs, outside = draw_fitting(self.lengths, num_requests, seed, max_model_len, self.spec)
        return RequestPlan.of(prompts, outputs, outside_context=outside, **common)

    def _listed(
        self,
        listed: ListedLengths,
        count: int,
        seed: int,
        arrival: str,
        max_model_len: int | None,
        tokens: PromptTokens | None,
        common: dict[str, Any],
    ) -> RequestPlan:
        """Rows without change; a row that exceeds the context is refused."""
        mixed = self.prompts is not None and arrival != "trace"  # under `trace` rows keep their order, as their gaps do
        rows = listed.mixed_rows(count, seed) if mixed else listed.rows(count)
        prompt_tokens, texts = listed.prompt_tokens[rows], None
        if self.file is not None and self.file.prompts is not None:
            texts = PromptTexts.of(self.file.prompts, rows, self.file.counted_by, tokens)
            prompt_tokens = prompt_tokens if texts.lengths is None else texts.lengths
        if texts is None or texts.counted_by != "server":
            check_fits(listed, prompt_tokens, rows, max_model_len, self.spec)
        return RequestPlan.of(
            prompt_tokens,
            listed.output_tokens[rows],
            tenant=listed.tenant[rows],
            priority=listed.priority[rows],
            tenants=listed.tenants,
            texts=texts,
            blocks=None if self.file is None or self.file.blocks is None else self.file.blocks.rows(rows),
            **common,
        )

    def _notes(self, count: int, arrival: str) -> tuple[Note, ...]:
        """How the use of the file differs from what a user may expect."""
        if self.file is None:
            return ()
        notes: list[Note] = []
        rows = len(self.file.lengths)
        if arrival != "trace" and self.gaps is not None and self.gaps.rate_per_s:
            text = f"{self.spec} has arrival times, which are not used; `arrival trace` would use them"
            notes.append(Note("arrivals", text))
        if arrival == "trace" and self.file.stamps is not None:
            notes += [Note("times", f"{self.spec}: {text}") for text in self.file.stamps.said]
        notes += [Note("reading", f"{self.spec}: {text}") for text in self.file.said]
        if count > rows:
            what, order = "rows", "from the top"
            if self.prompts is not None:
                what, order = "prompts", "from the top" if arrival == "trace" else "in an order drawn from the seed"
            text = f"{self.spec} has {rows:,} {what}, repeated {order} to make {count:,} requests"
            notes.append(Note("repeated", text))
        if self.file.defaulted:
            few = f"{self.file.defaulted:,} of {rows:,} prompts"
            text = f"{self.spec}: {few} have no output_tokens; their output length is {DEFAULT_OUTPUT_TOKENS}"
            notes.append(Note("outputs", text))
        if self.file.prompts is not None and (unsent := self.file.prompts.unsent):
            names = ", ".join(f"{name} ({count:,})" for name, count in unsent.items())
            text = f"{self.spec}: fields that are not sent, with the number of their lines: {names}"
            notes.append(Note("fields", text))
        return tuple(notes)


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

    arrival        constant, poisson, gamma:CV, mmpp:..., onoff:... or trace; see arrivals.py
    max_model_len  most tokens of prompt + output in one request; None: no limit. Presets and distributions redraw a
                   pair that exceeds it (`outside_context` is the share redrawn). Files and fixed lengths are not
                   altered: with misfit "error" they raise; with "reject" the engine rejects them
    encode         the tokenizer that counts the prompts of a file; None: the file's own counts, or estimates
    Raises CbbenchError.
    """
    workload = open_workload(spec)
    return workload.plan(
        num_requests=num_requests,
        seed=seed,
        arrival=arrival,
        max_model_len=max_model_len,
        misfit=misfit,
        tokens=workload.tokenised(encode),
    )


def check_numbers(num_requests: int, seed: int, max_model_len: int | None) -> None:
    """Raises CbbenchError for a number that no plan can have."""
    if num_requests < 1:
        raise CbbenchError("num_requests", f"must be at least 1, got {num_requests}")
    if seed < 0:
        raise CbbenchError("seed", f"must be 0 or more, got {seed}")
    if max_model_len is not None and max_model_len < 2:
        raise CbbenchError("max_model_len", f"must be at least 2 (one token in, one out), got {max_model_len}")


def suggestions(spec: str) -> dict[str, Any]:
    """Default settings of a run of the workload, by field name: those of its preset; of a file, its number of rows."""
    return open_workload(spec).suggests


def open_workload(spec: str, how: Reading = Reading()) -> Workload:  # noqa: B008  # it is frozen
    """The workload that SPEC describes. Reads the file if it is one. Raises CbbenchError. how: see Reading."""
    base, prefixes = split_prefix(spec.strip())
    workload = _opened(base, how)
    if prefixes is not None:
        if workload.file is not None and (workload.prompts is not None or workload.file.blocks is not None):
            raise CbbenchError("workload", f"prefix=: {base} says itself how its prompts begin")
        workload = replace(workload, spec=spec.strip(), prefixes=prefixes)
    if workload.file is None and how != Reading():
        name = "column" if how.columns else "time_unit"
        raise CbbenchError(name, f"says how to read a file, and {workload.spec} is none")
    return workload


def _opened(text: str, how: Reading) -> Workload:
    if text in PRESETS:
        return _from_preset(PRESETS[text])
    if ("=" in text and ";" in text) or text.startswith(("prompt=", "output=")):
        return _from_distributions(text)
    if text.endswith(FITTED_SUFFIX):
        return replace(_from_preset(read_preset_file(Path(text))), spec=text)
    if text.endswith(SUFFIXES) or Path(text).is_file():
        return _of_file(text, read_workload_file(Path(text), how))
    close = get_close_matches(text.lower(), PRESETS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise CbbenchError(
        "workload",
        f"unknown workload '{text}'; {hint}want a preset ({', '.join(PRESETS)}), "
        f"'prompt=DIST;output=DIST' or a file ({', '.join(KINDS)})",
    )


def _from_preset(preset: Preset) -> Workload:
    provenance = {"description": preset.description}
    if preset.origin is not None:
        origin = preset.origin
        source = f"{origin.url} {origin.file} @ {origin.commit}"
        provenance |= {"source": source, "licence": origin.licence, "citation": origin.citation}
    return Workload(preset.name, "preset", preset.lengths, preset.gaps, preset, dict(preset.suggests), provenance)


def _from_distributions(text: str) -> Workload:
    found: dict[str, LengthDistribution] = {}
    for part in text.split(";"):
        side, equals, distribution = part.partition("=")
        side = side.strip()
        if side not in ("prompt", "output") or not equals:
            raise CbbenchError(
                "workload", f"cannot read '{part.strip()}'; want prompt=DIST;output=DIST with DIST like {EXAMPLE}"
            )
        if side in found:
            raise CbbenchError("workload", f"duplicate {side}=")
        found[side] = parse_distribution(distribution)
    missing = [side for side in ("prompt", "output") if side not in found]
    if missing:
        raise CbbenchError("workload", f"{missing[0]}=DIST is missing, as in prompt=fixed(128);output=uniform(16,256)")
    prompt, output = found["prompt"], found["output"]
    if prompt.fixed and output.fixed:  # lengths that the user fixed are never redrawn
        return Workload(text, "distributions", ListedLengths.of([int(prompt.grid[0])], [int(output.grid[0])]))
    return Workload(text, "distributions", IndependentLengths(prompt, output))


def _of_file(text: str, file: WorkloadFile) -> Workload:
    return Workload(
        text,
        "file",
        file.lengths,
        file.gaps(),
        suggests={"num_requests": len(file.lengths)},
        provenance={"source": text},
        file=file,
    )
