"""The options of `chaos run` and `chaos gameday` by which other people's monitoring sees a job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from harness.campaign.observers import CampaignObserver, Together
from harness.cli.output import say
from harness.errors import CannotRunError

MetricsOption = Annotated[
    str,
    typer.Option(
        metavar="[ADDRESS]:PORT",
        help="Serve Prometheus metrics there meanwhile, e.g. :9464 (for this host alone). Needs the extra metrics.",
    ),
]


@contextlib.contextmanager
def watched(observer: CampaignObserver, metrics: str, budget: float | None = None) -> Iterator[CampaignObserver]:
    """The observer, joined by one that serves the metrics as long as this lasts, if an address is given.

    `budget`: the part of the GPU time that may be wasted, where the plan of the job does not say it.
    """
    if not metrics:
        yield observer
        return
    try:
        from harness.monitoring.server import serving
    except ImportError as error:
        extra = "pip install 'chaos-harness[metrics]'"
        raise CannotRunError(f"--metrics needs {error.name}: {extra}, or leave the option out") from error
    with serving(metrics, budget) as (monitor, address):
        say(f"  metrics: {address}", "dim")
        yield Together(observer, monitor)
