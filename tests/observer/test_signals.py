"""What is told of trainings that know nothing of us, and that they compute the same with and without it."""

import json
import pathlib
from typing import Any

import pytest
from observer import observing

from harness.node.observer.signals import exits

CASES = pathlib.Path(__file__).with_name("cases.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return _run_cases(tmp_path_factory.mktemp("observed"), observed=True)


@pytest.fixture(scope="module")
def untold(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return _run_cases(tmp_path_factory.mktemp("alone"), observed=False)


def _run_cases(folder: pathlib.Path, observed: bool) -> pathlib.Path:
    code, _, err = observing.run([str(CASES), str(folder)], observing.environment(folder, observed), folder)
    assert code == 0, err
    return folder


def steps(told: pathlib.Path, case: str) -> list[dict[str, Any]]:
    found = observing.events(told / "events" / case, "step")
    assert [step["step"] for step in found] == list(range(1, len(found) + 1))
    return found


def result(folder: pathlib.Path, case: str) -> Any:
    return json.loads((folder / f"{case}.json").read_text())


def test_nothing_that_is_computed_changes(told: pathlib.Path, untold: pathlib.Path) -> None:
    names = {path.name for path in untold.glob("*.json")}
    assert len(names) > 15 and names == {path.name for path in told.glob("*.json")}
    assert {name for name in names if (told / name).read_bytes() != (untold / name).read_bytes()} == set()


def test_loss_norm_and_rate_are_those_of_the_script(told: pathlib.Path) -> None:
    found, script = steps(told, "plain"), result(told, "plain")
    assert [step["loss"] for step in found] == script["losses"]
    assert [step["lr"] for step in found] == script["rates"]
    assert [step["grad_norm"] for step in found] == script["norms"]


def test_the_losses_of_micro_batches_are_added_up(told: pathlib.Path) -> None:
    losses = result(told, "accumulation")
    found = steps(told, "accumulation")
    assert [step["loss"] for step in found] == [losses[i] + losses[i + 1] for i in (0, 2, 4)]
    assert [observing.expanded(step) for step in found] == [list(range(i, i + 8)) for i in (0, 8, 16)]


def test_a_step_that_another_world_begins_with_has_nothing_of_the_one_broken_off(told: pathlib.Path) -> None:
    events = steps(told, "begun_again_in_process")
    assert [event["loss"] for event in events] == pytest.approx(result(told, "begun_again_in_process"))
    assert [event.get("digest") for event in events[2:4]] == [event["digest"] for event in events[:2]]


def test_a_skipped_update_is_a_step_that_was_not_applied(told: pathlib.Path) -> None:
    found = steps(told, "scaler")
    assert [step.get("applied", True) for step in found] == [True, True, False, True, True, True]
    assert [step["loss"] for step in found] == result(told, "scaler"), "the loss is not the scaled one"


CASES_OF_ONE_LOSS = ["two_optimizers", "sharded_optimizer", "one_optimizer_never_steps", "thrown_away", "closures"]


@pytest.mark.parametrize("case", CASES_OF_ONE_LOSS)
def test_each_step_has_the_one_loss_whose_gradients_it_applied(told: pathlib.Path, case: str) -> None:
    """However many optimizers it has, and however often a closure is called again."""
    assert [step["loss"] for step in steps(told, case)] == result(told, case)[:6]


def batches(first: int, size: int = 4) -> list[list[int]]:
    return [list(range(at, at + size)) for at in range(first, 24, size)]


@pytest.mark.parametrize(
    ("case", "samples"),
    [
        *((case, batches(0)) for case in ("plain", "fetching_ahead", "copied_inputs", "validating")),
        ("subset", [[23, 21, 19, 17], [15, 13, 11, 9], [7, 5, 3, 1]]),  # places in a subset are no identities
        ("skipping", batches(16)),
        # A batch is known in what was made of it, though others were passed over before.
        *((case, batches(12)) for case in ("split", "converted", "pipelined")),
        ("concatenated", batches(8, 8)),
    ],
)
def test_samples_are_those_that_the_model_was_given(told: pathlib.Path, case: str, samples: list[list[int]]) -> None:
    """Not those of batches that were passed over or only looked at."""
    assert [observing.expanded(step) for step in steps(told, case)] == samples


def test_workers_of_a_loader_tell_each_sample_once_an_epoch(told: pathlib.Path) -> None:
    found = steps(told, "workers")
    first, second = observing.expanded(*found[:6]), observing.expanded(*found[6:])
    assert sorted(first) == sorted(second) == list(range(24)) and first != second
    assert len(list((told / "events" / "workers").rglob("trainer*"))) == 1, "the loader's workers are no trainers"


def test_a_step_on_noise_consumed_no_sample(told: pathlib.Path) -> None:
    found = steps(told, "generator_and_critic")
    assert observing.expanded(*found) == list(range(24)) and all("samples" in step for step in found)
    assert [not step["samples"] for step in found] == [False, False, True] * 3


@pytest.mark.parametrize("case", ["stream", "no_loader"])
def test_where_no_indices_are_known_the_inputs_have_a_digest(told: pathlib.Path, case: str) -> None:
    found = steps(told, case)
    assert len({step["digest"] for step in found}) == 6 and not any("samples" in step for step in found)


def test_the_end_says_how_and_quotes_the_first_error(told: pathlib.Path) -> None:
    (end,) = observing.events(told / "events" / "own_error", "exiting")
    assert (end["reason"], end["code"], end["step"]) == ("error", 1, 2)
    assert end["error"] == "ValueError: the first thing that went wrong"
    (end,) = observing.events(told / "events" / "plain", "exiting")
    assert (end["reason"], end["step"]) == ("finished", 6) and "code" not in end
    by_hand = observing.events(told / "events" / "by_hand", "step")
    assert [step["step"] for step in by_hand] == [101, 102], "what a trainer tells by hand wins"


def test_a_hook_that_fails_says_so_once_and_steps_aside(told: pathlib.Path) -> None:
    (failed,) = observing.events(told / "events" / "hook_fails", "observer.failed")
    assert failed["signal"] == "batches" and "TypeError" in failed["error"]
    found = steps(told, "hook_fails")
    assert [step["loss"] for step in found] == result(told, "hook_fails"), "the other signals go on"


@pytest.mark.parametrize("case", ["saved_whole", "losses_that_can_be_read_once", "no_memory", "endless_subset"])
def test_odd_trainings_are_watched_to_their_end(told: pathlib.Path, case: str) -> None:
    assert observing.events(told / "events" / case, "step")
    assert not observing.events(told / "events" / case, "observer.failed")


def test_the_header_promises_what_is_hooked(told: pathlib.Path) -> None:
    (log,) = observing.logs(told / "events" / "plain")
    assert {"steps", "loss"} <= set(log.header["tells"])
    began = log.events[0]
    assert (began["event"], began["mono_ns"]) == ("started", log.header["mono_ns"]), "triggers count from there"


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:3", "peer lost"),
        ("NCCL communicator was aborted on rank 1", "peer lost"),
        ("the store was closed by peer pressure", "error"),
        ("CUDA out of memory", "error"),
    ],
)
def test_a_script_that_waits_for_its_own_collective_has_lost_a_peer(text: str, whose: str) -> None:
    try:
        raise RuntimeError(text)  # from no file of torch
    except RuntimeError as error:
        assert exits.reason(error) == whose
