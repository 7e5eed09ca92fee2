"""Computes Student's t distribution, which Python's standard library lacks."""

from __future__ import annotations

import math

import numpy as np

# Places in [-1, 1] and weights of the Gauss-Legendre sum.
_PLACES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def tail(t: float, freedom: float) -> float:
    """Returns the probability that a value from Student's t distribution is above `t`. `freedom` is the number of
    degrees of freedom, at least 1, whole or fractional.

    The density is integrated over an angle with finite limits: t = √freedom · tan(angle)."""
    if t < 0:
        return 1 - tail(-t, freedom)
    begin, end = math.atan(t / math.sqrt(freedom)), math.pi / 2
    angles = begin + (end - begin) / 2 * (1 + _PLACES)
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return float(height * (end - begin) / 2 * (_WEIGHTS @ np.cos(angles) ** (freedom - 1)))


def quantile(probability: float, freedom: float) -> float:
    """Returns the quantile of Student's t distribution at `probability`, which must be at least 0.5 and below 1."""
    low, high = 0.0, 1.0
    while tail(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2
