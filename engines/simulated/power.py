"""x ** y with the same bits on every machine: + - * / and frexp alone, which IEEE 754 defines to the last bit."""

from __future__ import annotations

import math

LN_2_HIGH, LN_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # fdlibm's: k * LN_2_HIGH is exact


def power(x: float, y: float) -> float:
    """x ** y of a positive x, to about 1e-14 of its value where |y ln x| < 100; 0 where x is 0."""
    if x <= 0.0:
        return 0.0
    return _exp(y * _log(x))


def blend(a: float, b: float, exponent: float) -> float:
    """(a ** q + b ** q) ** (1 / q): close to the larger of the two, unless they are alike."""
    low, high = (a, b) if a < b else (b, a)
    if low <= 0.0:
        return high
    return high * power(1.0 + power(low / high, exponent), 1.0 / exponent)


def whole_power(base: float, exponent: int) -> float:
    """base ** exponent by squaring."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _log(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)  # ln m = 2 artanh s, |s| < 0.172
    square, series = s * s, 0.0
    for n in range(21, 0, -2):
        series = 1.0 / n + square * series
    return exponent * LN_2_HIGH + (exponent * LN_2_LOW + 2.0 * s * series)


def _exp(x: float) -> float:
    k = round(x / 0.6931471805599453)
    r = (x - k * LN_2_HIGH) - k * LN_2_LOW
    series = 1.0
    for n in range(14, 0, -1):
        series = 1.0 + series * r / n
    return math.ldexp(series, k)
