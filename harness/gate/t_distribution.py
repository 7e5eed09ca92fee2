"""Student's t distribution, which Python's standard library does not have. Pure."""

from __future__ import annotations

import math

import numpy as np

# Where Gauss and Legendre's sum takes a function in [-1, 1], and what each place counts.
_PLACES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def tail(t: float, freedom: float) -> float:
    """The probability of more than `t` with so many degrees of freedom (at least 1, not always a whole number).

    The integral of its density, with t = √freedom · tan(angle), so that it has two ends.
    """
    if t < 0:
        return 1 - tail(-t, freedom)
    begin, end = math.atan(t / math.sqrt(freedom)), math.pi / 2
    angles = begin + (end - begin) / 2 * (1 + _PLACES)
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return float(height * (end - begin) / 2 * (_WEIGHTS @ np.cos(angles) ** (freedom - 1)))


def quantile(probability: float, freedom: float) -> float:
    """What a t variable exceeds with `1 - probability`; for 0.5 <= `probability` < 1. By bisection."""
    low, high = 0.0, 1.0
    while tail(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2
