"""Student's t distribution, which Python's standard library lacks. The functions are pure."""

from __future__ import annotations

import math

import numpy as np

# Places in [-1, 1] and weights of the Gauss-Legendre sum.
_PLACES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def tail(t: float, freedom: float) -> float:
    """Returns the probability of a value above `t`. `freedom` is the number of degrees of freedom, at least 1 and
    possibly fractional.

    The integral of the density substitutes t = √freedom · tan(angle), so that the interval is finite.
    """
    if t < 0:
        return 1 - tail(-t, freedom)
    begin, end = math.atan(t / math.sqrt(freedom)), math.pi / 2
    angles = begin + (end - begin) / 2 * (1 + _PLACES)
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return float(height * (end - begin) / 2 * (_WEIGHTS @ np.cos(angles) ** (freedom - 1)))


def quantile(probability: float, freedom: float) -> float:
    """Returns the t that a value exceeds with a chance of `1 - probability`. `probability` is at least 0.5 and below
    1."""
    low, high = 0.0, 1.0
    while tail(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2
