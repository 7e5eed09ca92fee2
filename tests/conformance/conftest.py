"""One place after the other. Where a backend cannot run its tests are skipped."""

import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.register_assert_rewrite("conformance.checks")  # before anything imports it

from conformance.places import PLACES, Job, OpenJob, Place, open_job  # noqa: E402
from waiting import until  # noqa: E402

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A verb that a place has on no machine is not tested there; the table of docs/backends.md says so instead."""
    items[:] = [item for item in items if not _never_possible(item)]


def _never_possible(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    place = parameters.get("place")
    if not isinstance(place, Place):
        return False
    marked = item.get_closest_marker("verbs")
    used = {parameters.get("verb"), *(marked.args if marked else ())}
    return not used.isdisjoint(place.backend.lacks().get(place.name, {}))


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: place.name.replace(", ", "-"))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    chosen: Place = request.param
    if lack := chosen.lack():
        pytest.skip(lack)
    if chosen.backend_name == "slurm":
        request.getfixturevalue("slurm_up")
    with pytest.MonkeyPatch.context() as patch:
        if chosen.mode:
            patch.setenv("CHAOS_LOCAL_MODE", chosen.mode)
        capability = chosen.probe()
        if not capability.available:
            pytest.skip(f"{chosen.name} cannot run here: {capability.summary}")
        yield chosen


@pytest.fixture
def open_here(place: Place, tmp_path: pathlib.Path) -> Iterator[OpenJob]:
    """Opens jobs; afterwards they are closed, and nothing of them may be left."""
    jobs: list[Job] = []

    def open_one(command: Sequence[str], **more: Any) -> Job:
        number = next(_numbers)
        jobs.append(open_job(place, tmp_path / f"run{number}", f"conform-{os.getpid()}-{number}", command, **more))
        return jobs[-1]

    yield open_one
    for job in jobs:
        job.cluster.close()
        until(lambda run_id=job.run_id: not place.left_of(run_id), f"the end of all of {job.run_id}")  # type: ignore[misc]
