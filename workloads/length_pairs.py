"""Lengths of prompt and output together: drawn from two distributions, drawn from an empirical joint one, or listed;
whether they fit the context; and the statistics that describe them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.length_distributions import LengthDistribution
from workloads.sampling import LENGTHS, ROW_ORDER, RawDraws, bit_stream, cell_of

PERCENTS = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
BATCHES = (8, 32)
_MIN_FITTING = 0.01  # share of the drawn pairs that must fit the context
_TRIAL = 65_536  # pairs drawn before that share is judged


@dataclass(frozen=True, eq=False)
class IndependentLengths:
    """Prompt and output drawn independently."""

    prompt: LengthDistribution
    output: LengthDistribution

    def draw(self, raw: RawDraws) -> tuple[IntColumn, IntColumn]:
        """(prompt_tokens, output_tokens), each int64[k], from raw draws uint64[k, 2]."""
        return self.prompt.draw(raw[:, 0]), self.output.draw(raw[:, 1])


@dataclass(frozen=True, eq=False)
class JointGrid:
    """An empirical joint distribution. The prompts of the source, in ascending order, are cut into equal strata.

    prompts  int64[strata, p]: quantiles of the prompts within each stratum
    outputs  int64[strata, q]: quantiles of the outputs that belong to the prompts of the stratum
    tail     int64[t]: quantiles within the top cell of the prompts; empty: that cell has one value
    All sizes are powers of two.
    """

    prompts: IntColumn
    outputs: IntColumn
    tail: IntColumn = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def draw(self, raw: RawDraws) -> tuple[IntColumn, IntColumn]:
        """(prompt_tokens, output_tokens), each int64[k], from raw draws uint64[k, 2]."""
        per_stratum = self.prompts.shape[1]
        cell = cell_of(raw[:, 0], self.prompts.size)
        output_cell = cell_of(raw[:, 1], self.outputs.shape[1])
        prompts = self.prompts.reshape(-1)[cell]
        if len(self.tail):
            top = np.flatnonzero(cell == self.prompts.size - 1)
            within = raw[top, 0] << np.uint64(self.prompts.size.bit_length() - 1)  # the bits that `cell` has not used
            prompts[top] = self.tail[cell_of(within, len(self.tail))]
        return prompts, self.outputs[cell // per_stratum, output_cell]


@dataclass(frozen=True, eq=False)
class ListedLengths:
    """Rows of lengths, used in order and never altered; after the last row comes the first again.

    lines: int64[rows], the line of the file that each row was read from; None where there is no file
    """

    prompt_tokens: IntColumn
    output_tokens: IntColumn
    tenant: IntColumn
    priority: IntColumn
    tenants: tuple[str, ...] = ("default",)
    lines: IntColumn | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def rows(self, count: int) -> NDArray[np.intp]:
        """Which row each of `count` requests is."""
        return np.arange(count, dtype=np.intp) % len(self)

    def mixed_rows(self, count: int, seed: int) -> NDArray[np.intp]:
        """The same, but each pass after the first has an order of its own, drawn from the seed."""
        bits = bit_stream(seed, ROW_ORDER)
        rounds = [np.arange(len(self), dtype=np.intp)]
        while len(rounds) * len(self) < count:
            rounds.append(np.argsort(bits.random_raw(len(self)), kind="stable"))
        return np.concatenate(rounds)[:count]

    def taken(self, rows: NDArray[np.intp]) -> ListedLengths:
        """These rows of it, in this order."""
        lines = None if self.lines is None else self.lines[rows]
        columns = (self.prompt_tokens[rows], self.output_tokens[rows], self.tenant[rows], self.priority[rows])
        return ListedLengths(*columns, tenants=self.tenants, lines=lines)

    @staticmethod
    def of(prompt_tokens: list[int], output_tokens: list[int]) -> ListedLengths:
        zeros = np.zeros(len(prompt_tokens), dtype=np.int64)
        return ListedLengths(
            np.array(prompt_tokens, dtype=np.int64), np.array(output_tokens, dtype=np.int64), zeros, zeros
        )


DrawnLengths = IndependentLengths | JointGrid
LengthPairs = DrawnLengths | ListedLengths


def draw_fitting(
    pairs: DrawnLengths, count: int, seed: int, max_model_len: int | None, name: str
) -> tuple[IntColumn, IntColumn, float]:
    """(prompt_tokens, output_tokens, share of the pairs that were redrawn because they exceed the context).

    Pairs are drawn one by one, and the first `count` that fit are kept; so a shorter plan is the beginning of a longer
    one. Raises CbbenchError where under 1 % of the pairs fit.
    """
    bits = bit_stream(seed, LENGTHS)
    prompts, outputs = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    have = drawn = fitted = 0
    while have < count:
        # Aim at what is missing at the share seen so far, within bounds that keep memory small.
        chunk = min(max(256, int((count - have) * (drawn + 1) / (fitted + 1) * 1.1)), 1 << 18)
        prompt, output = pairs.draw(bits.random_raw(2 * chunk).reshape(chunk, 2))
        at = np.arange(chunk) if max_model_len is None else np.flatnonzero(prompt + output <= max_model_len)
        taken = at[: count - have]
        prompts[have : have + len(taken)], outputs[have : have + len(taken)] = prompt[taken], output[taken]
        have += len(taken)
        drawn += chunk if have < count else int(taken[-1]) + 1
        fitted += len(taken)
        if have < count and drawn >= _TRIAL and fitted < _MIN_FITTING * drawn:
            raise CbbenchError(
                "workload",
                f"{name}: only {fitted / drawn:.2%} of its requests fit a context of {max_model_len} tokens "
                "(prompt + output); use a larger `max_model_len` or shorter lengths",
            )
    return prompts, outputs, 1.0 - count / drawn if drawn else 0.0


def check_fits(
    listed: ListedLengths, prompt_tokens: IntColumn, rows: NDArray[np.intp], max_model_len: int | None, name: str
) -> None:
    """Raises CbbenchError if a request exceeds the context; lengths are not altered. prompt_tokens: by request."""
    if max_model_len is None:
        return
    total = prompt_tokens + listed.output_tokens[rows]
    misfits = np.flatnonzero(total > max_model_len)
    if len(misfits):
        first = rows[misfits[0]]
        line = "" if listed.lines is None else f" (line {listed.lines[first]})"
        tokens = f"prompt {prompt_tokens[misfits[0]]} + output {listed.output_tokens[first]}"
        raise CbbenchError(
            "workload",
            f"{name}: {len(misfits)} of {len(rows)} requests exceed the context of {max_model_len} tokens; the first "
            f"is request {misfits[0]}{line} with {tokens}; "
            "use a larger `max_model_len`, or `misfit` reject to run and reject them",
        )


# Numbers that describe lengths


def percentiles(tokens: IntColumn) -> dict[str, float]:
    """mean, p1 ... p99.9 (linear interpolation) and max."""
    values = np.percentile(tokens, PERCENTS).tolist()
    named = {f"p{percent:g}": value for percent, value in zip(PERCENTS, values, strict=True)}
    return {"mean": float(tokens.mean())} | named | {"max": float(tokens.max())}


def max_over_mean(tokens: IntColumn, batch: int) -> float:
    """E[max of `batch` independent draws] / mean, from a sample.

    With a saturated queue and a constant step time it is the gain of continuous batching over static batching of that
    size: a static batch lasts as long as its longest output. E[max] = Σ x_(i) ((i/n)^B - ((i-1)/n)^B), sorted x.
    """
    powers = (np.arange(len(tokens) + 1) / len(tokens)) ** batch
    return float((np.sort(tokens) * np.diff(powers)).sum() / tokens.mean())


def correlation(prompt_tokens: IntColumn, output_tokens: IntColumn) -> dict[str, float | None]:
    """Pearson's and Spearman's coefficients; None where one side does not vary."""
    if not np.ptp(prompt_tokens) or not np.ptp(output_tokens):
        return {"pearson": None, "spearman": None}
    from scipy.stats import pearsonr, rankdata  # slow to import, and only `workload describe` needs it

    return {
        "pearson": float(pearsonr(prompt_tokens, output_tokens).statistic),
        "spearman": float(pearsonr(rankdata(prompt_tokens), rankdata(output_tokens)).statistic),
    }
