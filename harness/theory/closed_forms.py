"""Computes the cost of failures by closed forms, for comparison with measurements. Times are in seconds, and rates in
events per second.

Sources: Young 1974 (first order), Daly 2006 (higher order); expected ETTR: Kokolis et al. 2025, "Revisiting Reliability
in Large-Scale Machine Learning Research Clusters"; categories: ml-goodput-measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

BADPUT = {  # account of the ledger → category of ml-goodput-measurement
    "startup": "PROGRAM_STARTUP",
    "rendezvous": "TPU_INITIALIZATION",
    "restore": "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "checkpoint_stall": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "drain": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "data_wait": "DATA_LOADING_SYNC",
    "recompute": "WASTED_PROGRESS_FROM_DISRUPTION",
    "detect": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "teardown": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "reschedule": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
}


def expected_ettr(rate: float, restart_s: float, interval_s: float, checkpoint_s: float = 0.0) -> float:
    """Returns the expected effective training time ratio (ETTR), the share of time that is productive:

        max(0, 1 − rate·(restart_s + interval_s/2)) / (1 + checkpoint_s/interval_s)

    `rate` is the number of failures of the whole job per second. The formula is accurate if failures are much rarer
    than checkpoints.
    """
    lost = rate * (restart_s + interval_s / 2)
    return max(0.0, 1 - lost) / (1 + checkpoint_s / interval_s)


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Returns Young's first-order approximation of the best interval between checkpoints: √(2·checkpoint_s·mtbf_s)."""
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Returns Daly's best interval between checkpoints: √(2wM)·(1 + ⅓√(w/2M) + ⅑·w/2M) − w if w < 2M, else M, with w =
    `checkpoint_s` and M = `mtbf_s`.

    >>> round(daly_interval_s(60, 8 * 3600), 1)
    1819.2
    """
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    return young_interval_s(checkpoint_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def badput(accounts: Mapping[str, float]) -> dict[str, float]:
    """Returns the unproductive time in each category of the library ml-goodput-measurement. The categories add up to
    all unproductive time."""
    categories: dict[str, float] = {}
    for name, amount in accounts.items():
        if name != "productive":
            category = BADPUT.get(name, "OTHER")
            categories[category] = categories.get(category, 0.0) + amount
    return categories


def renewal_time_s(work_s: float, interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Returns the mean time for `work_s` seconds of work if failures come at random, even during restarts, and if each
    failure costs all work since the last checkpoint. With M = `mtbf_s`, one interval takes
    M·e^(restart_s/M)·(e^((interval_s + checkpoint_s)/M) − 1), which is exact even if failures are frequent.

    >>> round(renewal_time_s(3600, 300, 0, 300, 6490) / 3600, 3)
    1.072
    """
    interval = min(interval_s, work_s)
    longest = 700.0  # e^x of a larger x is more than any clock shows
    exponents = (interval + checkpoint_s) / mtbf_s, restart_s / mtbf_s
    if sum(exponents) > longest:
        return math.inf
    return work_s / interval * mtbf_s * math.exp(exponents[1]) * math.expm1(exponents[0])


def spares_needed(nodes: int, chance: float, share: float = 0.99) -> int:
    """Returns the fewest spare nodes that suffice on `share` of all days, if each node fails on a day with probability
    `chance`. The result is a quantile of the binomial distribution.

    >>> [spares_needed(nodes, 0.0012) for nodes in (128, 256, 512, 1024)]
    [2, 2, 3, 4]
    """
    spares, likely = 0, nodes * math.log1p(-chance)  # the logarithm of the chance of exactly so many
    covered = math.exp(likely)
    while covered < share and spares < nodes:
        likely += math.log((nodes - spares) / (spares + 1)) + math.log(chance) - math.log1p(-chance)
        spares += 1
        covered += math.exp(likely)
    return spares
