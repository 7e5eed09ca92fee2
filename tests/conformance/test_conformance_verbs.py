"""Each verb that a backend says it has acts on a real node there, and is undone."""

import json
import os
import pathlib
from collections.abc import Iterator

import pytest
from conformance.checks import CHECKS, environment
from conformance.places import CONTROL, ROOT, STORE, Job, OpenJob, Place, open_job, worker
from conformance.table import IN_THE_LIFE_OF_A_RUN, declared
from waiting import until

from harness.backends.contract import Launch, Verb, backend_names, load_backend
from harness.errors import UsageError

TAKES_THE_NODE = {Verb.EVICT}


@pytest.fixture(scope="module")
def job(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two working nodes and a control command, for all verbs that can be undone."""
    verbs, run_dir = place.probe().verbs, tmp_path_factory.mktemp("verbs")
    mounts = (STORE,) if Verb.STORAGE in verbs else ()
    env = environment(run_dir, verbs)
    run_id = f"conform-{os.getpid()}-verbs"
    command = worker(store=f"{{run_dir}}/{STORE}" if mounts else "")
    shared = open_job(place, run_dir, run_id, command, nodes=2, control=CONTROL, mounts=mounts, env=env)
    with shared.cluster:
        for node in shared.nodes:
            shared.wait_steps(node)
        yield shared
    until(lambda: not place.left_of(run_id), "the end of everything")


def test_every_verb_is_there_or_its_absence_has_a_reason(place: Place) -> None:
    capability = place.probe()
    assert set(capability.missing) == set(Verb) - capability.verbs
    assert all(capability.missing.values())
    lacks = place.backend.lacks().get(place.name, {})
    for verb, reason in lacks.items():
        assert capability.missing.get(verb, "").startswith(reason), f"{place.name} says that it never has {verb.value}"
    if os.environ.get("CI") and place.backend_name != "kubernetes":  # what is in a cluster is its owner's affair
        assert set(capability.missing) <= set(lacks), "with all engines there, what is missing here is hidden by a skip"


@pytest.mark.parametrize("verb", list(CHECKS), ids=lambda verb: verb.name)
def test_it_acts_is_measured_and_undone(place: Place, verb: Verb, request: pytest.FixtureRequest) -> None:
    if reason := place.probe().missing.get(verb):
        pytest.skip(reason)
    if verb in TAKES_THE_NODE:
        open_here: OpenJob = request.getfixturevalue("open_here")
        CHECKS[verb](open_here(worker(), nodes=2))
    else:
        CHECKS[verb](request.getfixturevalue("job"))


def test_every_verb_has_a_check_of_its_own_and_every_reason_is_a_reason() -> None:
    assert CHECKS.keys() | IN_THE_LIFE_OF_A_RUN.keys() == set(Verb)
    assert not CHECKS.keys() & IN_THE_LIFE_OF_A_RUN.keys()
    for column, lacks in declared().items():
        assert all(len(reason) > 10 for reason in lacks.values()), column


@pytest.mark.parametrize("name", backend_names())
def test_a_request_knows_nothing_of_this_machine(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The request of each backend is compared whole in the tests of that backend."""
    backend = load_backend(name)
    workload = Launch(("{python}", "train.py", "{index}"), 3, 2, {"LR": "1"}, ("store",), ("checkpoints",))
    before = repr(backend.render(workload))
    monkeypatch.chdir(tmp_path)
    for variable in ("SOME_SECRET_KEY", "CHAOS_DOCKER_IMAGE", "CHAOS_KUBE_IMAGE"):
        monkeypatch.setenv(variable, "hush-hush")
    assert repr(backend.render(workload)) == before and json.dumps(before)
    assert "hush-hush" not in before and str(ROOT) not in before


def test_a_run_has_an_absolute_place(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="absolute"):
        place.backend.open(Launch(("true",), 1, 1), pathlib.Path("reports/x"), "run")
