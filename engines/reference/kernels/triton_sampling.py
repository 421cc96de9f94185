"""The next token of each row on the device: `engines.reference.sampling.sample` in one kernel, without a sort.

One program per row reads the row's logits as often as its request needs, from the cache after the first time:

    greedy         1 pass: the first maximum
    temperature    3 passes: maximum; total weight; the token at which the running weight exceeds u * total
    top-k, top-p   a few dozen passes. Sorting 150,000 logits takes longer than a small model's whole step, so a sorted
                   order is searched without being made. Logits are seen as integers of the same order, their *keys*:

        sorted by key, descending     | a | b b b | c c | d d d d | e ...      (tokens of one key in order of their id)
        kept by top-k and top-p       |<------------------->|
        `above(v)`: number and weight of the tokens with key > v. Both fall as v rises, so v can be bisected:
            cut   the least v with number < k and weight < p * total            d, of which the first two are kept
            draw  the least v with weight <= u * kept weight                    a, b, c or d; then one of its ties

u is the uniform number of the request's seed and the output's index, by Philox: equal bit by bit to the one on the
CPU. A weight is a float32 exponential here and a float64 one there: a token may differ where u falls within
1e-7 or so of the border between two.
"""

from __future__ import annotations

import torch

from engines.reference.kernels._triton import tl, triton

BLOCK = 4096  # logits read at a time


def sample(logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """columns: those of engines.reference.sampling, on the device; more rows than logits are fine. int64[rows]"""
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    _sample[(rows,)](
        out, logits, columns, vocab, logits.stride(0), columns.stride(0),
        BITS=8 * logits.element_size(), BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["column"])  # no kernel is specialised for the number of rows
def _sample(out, logits, columns, vocab, logits_row, column, BITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * logits_row
    lane = tl.arange(0, BLOCK)

    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    where = lane
    for start in tl.range(0, vocab, BLOCK, loop_unroll_factor=4):  # four loads in flight
        logit = _load(x, start, vocab, BLOCK).to(tl.float32)
        where = tl.where(logit > highest, start + lane, where)
        highest = tl.maximum(highest, logit)
    best = tl.max(highest, 0)
    token = tl.min(tl.where(highest == best, where, vocab - 1), 0)

    temperature = tl.load(columns + row).to(tl.float64, bitcast=True)
    if temperature > 0.0:
        sharpness = tl.minimum(1.4426950408889634 / temperature, 1e30).to(tl.float32)  # log2(e) / temperature
        top_p = tl.load(columns + column + row).to(tl.float64, bitcast=True)
        top_k = tl.load(columns + 2 * column + row)
        u = _uniform(tl.load(columns + 3 * column + row), tl.load(columns + 4 * column + row))
        if (top_k > 0) | (top_p < 1.0):
            top_k = tl.where(top_k > 0, top_k, vocab)
            token = _draw_sorted(x, vocab, best, sharpness, u, top_k, top_p, BITS, BLOCK)
        else:
            token = _draw(x, vocab, best, sharpness, u, BLOCK)
    # Logits that are all -inf or NaN have no right answer, but the next step's embedding needs a valid token id.
    tl.store(out + row, tl.minimum(token, vocab - 1).to(tl.int64))


@triton.jit
def _load(x, start, vocab, BLOCK: tl.constexpr):
    at = start + tl.arange(0, BLOCK)
    return tl.load(x + at, mask=at < vocab, other=float("-inf"))


@triton.jit
def _weigh(logit, best, sharpness):
    return tl.exp2((logit.to(tl.float32) - best) * sharpness)  # 1 for the likeliest token, 0 for -inf


@triton.jit
def _draw(x, vocab, best, sharpness, u, BLOCK: tl.constexpr):
    """The first token at which the running weight, in order of ids, exceeds u * total."""
    total = tl.zeros([], tl.float64)
    for start in range(0, vocab, BLOCK):
        total += tl.sum(_weigh(_load(x, start, vocab, BLOCK), best, sharpness), 0).to(tl.float64)
    target = u * total
    start = 0
    before = tl.zeros([], tl.float64)
    weight = _weigh(_load(x, 0, vocab, BLOCK), best, sharpness)
    # The same sums in the same order as above: the last of them reaches the total.
    after = before + tl.sum(weight, 0).to(tl.float64)
    while (after <= target) & (start + BLOCK < vocab):
        start += BLOCK
        before = after
        weight = _weigh(_load(x, start, vocab, BLOCK), best, sharpness)
        after = before + tl.sum(weight, 0).to(tl.float64)
    running = before + tl.cumsum(weight.to(tl.float64), 0)
    lane = tl.arange(0, BLOCK)
    # A running sum may round to less than the block's sum: then it is the block's last token that has a weight.
    last = tl.max(tl.where(weight > 0.0, lane, 0), 0)
    return start + tl.min(tl.where((running > target) & (weight > 0.0), lane, last), 0)


@triton.jit
def _draw_sorted(x, vocab, best, sharpness, u, top_k, top_p, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """The same in descending order of weight, of the tokens that top-k and top-p keep. See the picture above."""
    # The least key, in a type that has one less too.
    floor = tl.full([], -(1 << (BITS - 1)), tl.int32 if BITS == 16 else tl.int64)
    number, total = _above(x, vocab, best, sharpness, floor - 1, BITS, BLOCK)
    limit = top_p * total

    low = floor
    high = -1 - floor
    while low < high:
        middle = (low + high) >> 1
        number, weight = _above(x, vocab, best, sharpness, middle, BITS, BLOCK)
        holds = ((number < top_k) & (weight < limit)) | (number == 0)
        low = tl.where(holds, low, middle + 1)
        high = tl.where(holds, middle, high)
    cut = low
    number, weight = _above(x, vocab, best, sharpness, cut, BITS, BLOCK)
    upto, with_ties = _above(x, vocab, best, sharpness, cut - 1, BITS, BLOCK)
    ties = upto - number
    each = tl.maximum((with_ties - weight) / ties, 1e-300)
    by_weight = tl.minimum(tl.ceil((limit - weight) / each), 1e9).to(tl.int64)
    cut_ties = tl.maximum(tl.minimum(tl.minimum(ties, top_k - number), by_weight), 1)
    target = u * (weight + cut_ties * each)

    high = -1 - floor
    while low < high:
        middle = (low + high) >> 1
        number, weight = _above(x, vocab, best, sharpness, middle, BITS, BLOCK)
        low = tl.where(weight <= target, low, middle + 1)
        high = tl.where(weight <= target, middle, high)
    number, weight = _above(x, vocab, best, sharpness, low, BITS, BLOCK)
    upto, with_ties = _above(x, vocab, best, sharpness, low - 1, BITS, BLOCK)
    ties = tl.where(low == cut, cut_ties, upto - number)
    each = tl.maximum((with_ties - weight) / (upto - number), 1e-300)
    rank = tl.minimum(tl.minimum((target - weight) / each, 1e9).to(tl.int64), ties - 1)

    start = 0
    tied = (_keys(_load(x, 0, vocab, BLOCK), BITS) == low).to(tl.int32)
    seen = tl.sum(tied, 0)
    while (seen <= rank) & (start + BLOCK < vocab):
        rank -= seen
        start += BLOCK
        tied = (_keys(_load(x, start, vocab, BLOCK), BITS) == low).to(tl.int32)
        seen = tl.sum(tied, 0)
    order = tl.cumsum(tied, 0) - 1
    return start + tl.max(tl.where((tied > 0) & (order == rank), tl.arange(0, BLOCK), 0), 0)


@triton.jit
def _above(x, vocab, best, sharpness, v, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """(number, weight) of the tokens whose key is greater than v."""
    number = tl.zeros([BLOCK], tl.int32)
    weight = tl.zeros([BLOCK], tl.float64)
    for start in range(0, vocab, BLOCK):
        logit = _load(x, start, vocab, BLOCK)
        over = _keys(logit, BITS) > v
        number += over.to(tl.int32)
        weight += tl.where(over, _weigh(logit, best, sharpness), 0.0).to(tl.float64)
    return tl.sum(number, 0), tl.sum(weight, 0)


@triton.jit
def _keys(logit, BITS: tl.constexpr):
    """The bits of a logit as an integer of the same order, wider than it. A negative float's bits grow as it falls."""
    bits = logit.to(tl.int16 if BITS == 16 else tl.int32, bitcast=True).to(tl.int32 if BITS == 16 else tl.int64)
    key = tl.where(bits < 0, bits ^ ((1 << (BITS - 1)) - 1), bits)
    return tl.where(logit.to(tl.float32) == 0.0, 0, key)  # -0.0 is 0.0


@triton.jit
def _uniform(seed, index):
    """In [0, 1), with 52 random bits of Philox4x32-10: as `engines.reference.sampling.uniforms`."""
    low = index.to(tl.uint32)  # the lower half of it
    high = (index >> 32).to(tl.uint32)
    nothing = tl.zeros_like(low)
    first, second, _third, _fourth = tl.philox(seed, low, high, nothing, nothing)
    bits = (first.to(tl.uint64) << 32) | second.to(tl.uint64)
    return (bits >> 12).to(tl.float64) * 2.220446049250313e-16
