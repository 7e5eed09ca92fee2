"""Student's t distribution, which Python's standard library does not have. Pure."""

from __future__ import annotations

import math

TERMS_MAX = 300
PRECISION = 1e-12
_TINY = 1e-300


def tail(t: float, freedom: float) -> float:
    """The probability of more than `t` with so many degrees of freedom (> 0, not always a whole number).

    By the incomplete beta function: Abramowitz and Stegun 1964, 26.7.1 and 26.5.8.
    """
    half = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return half if t >= 0 else 1 - half


def quantile(probability: float, freedom: float) -> float:
    """What a t variable exceeds with `1 - probability`; for 0.5 <= `probability` < 1. By bisection."""
    low, high = 0.0, 1.0
    while tail(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # there the fraction converges faster for the other end
        return 1 - _incomplete_beta(b, a, 1 - x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), _TINY)
    found = d
    for m in range(1, TERMS_MAX):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + factor * d)
            c = _off_zero(1 + factor / c)
            found *= c * d
        if abs(c * d - 1) < PRECISION:
            break
    return found


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
