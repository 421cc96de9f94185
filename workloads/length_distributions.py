"""Length distributions: token counts, written as text, kept as quantile grids.

    fixed(64)                                     every length the same
    uniform(16,512)                               both ends included
    exponential(mean=200,max=2048)
    lognormal(median=128,sigma=0.8,max=2048)      or mean= instead of median=
    gamma(mean=200,cv=0.7,max=2048)
    weibull(scale=200,shape=0.8,max=2048)
    0.7*lognormal(median=128,sigma=0.8)+0.3*fixed(4096)

`min` and `max` condition a distribution on the range, as redrawing would: no lump forms at either end. A length that
rounds to less than one token becomes one token. `mean`, `median`, `sigma` and `cv` are those of the distribution before
it is cut to the range.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workloads.columns import FloatColumn, IntColumn
from workloads.errors import CbbenchError
from workloads.sampling import CELLS, RawDraws, cell_of, exp, gamma, log_exponential, normal, resample, whole

MAX_TOKENS = 2**31 - 1
_MIN_KEPT = 0.01  # below this share within [min, max], the distribution is most likely a mistake

Numbers = dict[str, float]


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """A distribution of token counts. grid: sorted int64[CELLS], the counts at evenly spaced probabilities."""

    text: str
    grid: IntColumn

    @property
    def fixed(self) -> bool:
        return bool(self.grid[0] == self.grid[-1])

    def draw(self, raw: RawDraws) -> IntColumn:
        """One count per raw 64-bit draw."""
        return self.grid[cell_of(raw)]


def parse_distribution(text: str) -> LengthDistribution:
    """The distribution that `text` describes. Raises CbbenchError (field workload)."""
    terms = [_parse_term(term) for term in split_outside_brackets(text, "+")]
    if len(terms) == 1:
        return LengthDistribution(text.strip(), terms[0][1])
    return LengthDistribution(text.strip(), _mix(terms))


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """The parts of `text` between separators (one letter) that are not inside round brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


_TERM = re.compile(r"\s*(?:(?P<weight>[^*()]+)\*)?\s*(?P<name>[A-Za-z_]+)\s*\((?P<arguments>[^()]*)\)\s*")


def _parse_term(term: str) -> tuple[float, IntColumn]:
    """(weight, grid) of one `weight*name(arguments)`."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise CbbenchError("workload", f"cannot read the length distribution '{term.strip()}'; want one like {EXAMPLE}")
    weight = 1.0 if match["weight"] is None else _number(match["weight"], f"the weight in '{term.strip()}'")
    if weight <= 0:
        raise CbbenchError("workload", f"the weight in '{term.strip()}' must be above 0")
    name = match["name"].lower()
    if name not in _DISTRIBUTIONS:
        raise CbbenchError(
            "workload", f"unknown length distribution '{match['name']}'; there are {', '.join(sorted(_DISTRIBUTIONS))}"
        )
    names, build = _DISTRIBUTIONS[name]
    numbers = _arguments(name, names, match["arguments"])
    label = f"{name}({match['arguments'].strip()})"
    return weight, _within(build(label, numbers), numbers, label)


def _arguments(name: str, names: tuple[str, ...], text: str) -> Numbers:
    """The arguments by name; those without a name take the names in order."""
    numbers: Numbers = {}
    for position, argument in enumerate(text.split(",") if text.strip() else []):
        key, equals, value = argument.rpartition("=")
        key = key.strip() if equals else (names[position] if position < len(names) else "")
        if key not in names:
            got = f"'{key}'" if key else f"{position + 1} arguments"
            raise CbbenchError("workload", f"{name}(...) takes {', '.join(names)}, not {got}")
        if key in numbers:
            raise CbbenchError("workload", f"{name}(...) is given {key} twice")
        numbers[key] = _number(value, f"{key} of {name}(...)")
    return numbers


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise CbbenchError("workload", f"{what} must be a number, got '{text.strip()}'") from None
    if not abs(value) < float("inf"):
        raise CbbenchError("workload", f"{what} must be a finite number, got '{text.strip()}'")
    return value


def _tokens(label: str, numbers: Numbers, key: str) -> int:
    value = numbers[key]
    if value != int(value) or not 1 <= value <= MAX_TOKENS:
        raise CbbenchError(
            "workload", f"{key} of {label} must be a whole number of tokens from 1 to {MAX_TOKENS:,}, got {value:g}"
        )
    return int(value)


def _positive(label: str, numbers: Numbers, key: str, most: float = float(MAX_TOKENS)) -> float:
    if key not in numbers:
        raise CbbenchError("workload", f"{label} needs {key}=")
    if not 0 < numbers[key] <= most:
        raise CbbenchError("workload", f"{key} of {label} must be above 0 and at most {most:,g}, got {numbers[key]:g}")
    return numbers[key]


def _fixed(label: str, numbers: Numbers) -> IntColumn:
    if "n" not in numbers:
        raise CbbenchError("workload", "fixed(...) needs the number of tokens, as in fixed(64)")
    return np.full(CELLS, _tokens(label, numbers, "n"), dtype=np.int64)


def _uniform(label: str, numbers: Numbers) -> IntColumn:
    if not {"min", "max"} <= numbers.keys():
        raise CbbenchError("workload", "uniform(...) needs both ends, as in uniform(16,512)")
    low, high = _tokens(label, numbers, "min"), _tokens(label, numbers, "max")
    if low > high:
        raise CbbenchError("workload", f"min of {label} is above max")
    return low + (2 * np.arange(CELLS, dtype=np.int64) + 1) * (high - low + 1) // (2 * CELLS)


def _exponential(label: str, numbers: Numbers) -> IntColumn:
    return _counts(_positive(label, numbers, "mean") * gamma(1.0))


def _lognormal(label: str, numbers: Numbers) -> IntColumn:
    if ("median" in numbers) == ("mean" in numbers):
        raise CbbenchError("workload", f"{label} needs either median= or mean=")
    sigma = _positive(label, numbers, "sigma", most=5)
    if "median" in numbers:
        median = _positive(label, numbers, "median")
    else:  # the mean of a lognormal distribution is median * exp(sigma² / 2)
        median = _positive(label, numbers, "mean") * float(exp(np.array([-0.5 * sigma * sigma]))[0])
    return _counts(median * exp(sigma * normal()))


def _gamma(label: str, numbers: Numbers) -> IntColumn:
    cv = _positive(label, numbers, "cv", most=10)
    if cv < 0.01:
        raise CbbenchError("workload", f"cv of {label} must be at least 0.01; for equal lengths use fixed(...)")
    return _counts(_positive(label, numbers, "mean") * gamma(cv))


def _weibull(label: str, numbers: Numbers) -> IntColumn:
    shape = _positive(label, numbers, "shape", most=100)
    if shape < 0.05:
        raise CbbenchError("workload", f"shape of {label} must be at least 0.05")
    return _counts(_positive(label, numbers, "scale") * exp(log_exponential() / shape))


def _counts(lengths: FloatColumn) -> IntColumn:
    """Whole counts of at least one token."""
    # The far tail of a wide distribution can exceed MAX_TOKENS; `max` would have cut it.
    return np.clip(whole(np.minimum(lengths, MAX_TOKENS)), 1, MAX_TOKENS)


_DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], Callable[[str, Numbers], IntColumn]]] = {
    "fixed": (("n",), _fixed),
    "uniform": (("min", "max"), _uniform),
    "exponential": (("mean", "min", "max"), _exponential),
    "lognormal": (("median", "sigma", "min", "max", "mean"), _lognormal),
    "gamma": (("mean", "cv", "min", "max"), _gamma),
    "weibull": (("scale", "shape", "min", "max"), _weibull),
}
EXAMPLE = "lognormal(median=128,sigma=0.8,max=2048), uniform(16,512) or 0.7*exponential(mean=100)+0.3*fixed(64)"


def _within(grid: IntColumn, numbers: Numbers, label: str) -> IntColumn:
    """The distribution conditioned on min <= length <= max."""
    low = _tokens(label, numbers, "min") if "min" in numbers else 1
    high = _tokens(label, numbers, "max") if "max" in numbers else MAX_TOKENS
    if low > high:
        raise CbbenchError("workload", f"min of {label} is above max")
    kept = grid[(grid >= low) & (grid <= high)]
    if len(kept) < _MIN_KEPT * CELLS:
        raise CbbenchError(
            "workload",
            f"{label} has only {len(kept) / CELLS:.2%} of its lengths within min and max; "
            "choose a distribution that lies there, or fixed(...)",
        )
    return grid if len(kept) == CELLS else resample(kept)


def _mix(terms: list[tuple[float, IntColumn]]) -> IntColumn:
    """The grid of a mixture: each part gives cells in proportion to its weight (weights need not add up to 1)."""
    total = sum(weight for weight, _ in terms)
    ends, share = [0], 0.0
    for weight, _ in terms:
        share += weight / total
        ends.append(round(share * CELLS))
        if ends[-1] == ends[-2]:
            raise CbbenchError(
                "workload",
                f"the weight {weight:g} is too small beside the others; want at least 1/{CELLS:,} of their sum",
            )
    parts = [resample(grid, end - start) for (_, grid), start, end in zip(terms, ends[:-1], ends[1:], strict=True)]
    return np.sort(np.concatenate(parts))
