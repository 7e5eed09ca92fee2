"""The watchdog counts progress, and knows what is no step; it is as strict where it must act as where it must not."""

import contextlib
import os
import pathlib
import threading
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch.distributed as dist
from told import Told, answer, ordered
from waiting import until

from harness.log.truth import Decision, Kind
from harness.spec.scenario import load_scenario
from reference_trainer import flight_recorder, train
from reference_trainer.damage import Damage, Pause
from reference_trainer.options import Options, parse
from reference_trainer.watchdog import Watchdog

SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
WEDGES = ("stuck-collective", "stuck-save", "stuck-load", "late-rank")
OF_STEPS = ("hang_floor_s", "hang_factor")
ALL = (*OF_STEPS, "section_s", "startup_s", "collective_timeout_s")


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set where a watchdog would end its process."""
    over = threading.Event()

    def fail(self: Watchdog, silent_s: float) -> None:
        over.set()
        self._limit_s = 1e9  # once is enough

    monkeypatch.setattr(Watchdog, "_fail", fail)
    return over


def test_a_section_has_a_limit_of_its_own_and_then_the_step_has_its_own_again(failed: threading.Event) -> None:
    watchdog = Watchdog(Told(), 0, floor_s=0.3, factor=1, startup_s=900)
    watchdog.step_done(1)
    with watchdog.section("an evaluation", 900):
        assert not failed.wait(1.0)
        with watchdog.section("a save in it", 800):
            pass
        assert not failed.wait(0.5), "the outer section goes on"
    until(failed.is_set, "the watchdog")


@pytest.mark.parametrize(
    ("over", "where", "named"),
    [
        ([True, True], "step", True),
        ([True, False], "step", False),
        ([], "step", False),
        ([True], "start", False),
        ([True], "restore", True),
        ([True], "broken restore", False),
        ([True], "broken step", False),
    ],
)
def test_a_rank_that_hangs_outside_of_all_collectives_names_itself_and_the_place(
    over: list[bool], where: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = [{"group": "0", "number": 7, "operation": "gloo:all_reduce", "over": each} for each in over]
    monkeypatch.setattr(flight_recorder, "last_collectives", lambda: iter(newest))
    monkeypatch.setattr(os, "_exit", lambda code: None)
    emit = Told()
    watchdog = Watchdog(emit, 3, floor_s=900, factor=20, startup_s=900)
    if where != "broken restore":  # else this is its first start
        watchdog.step_done(4)
    with contextlib.suppress(RuntimeError), watchdog.section("restore", 900):
        if where == "broken restore":
            raise RuntimeError("connection closed by peer")
    with watchdog.section("restore", 900) if where == "restore" else contextlib.nullcontext():
        if where == "start":
            watchdog.allow("the start", 900)
        if where == "broken step":
            watchdog.peer_lost()
        watchdog._fail(901)
    assert emit.answers() == [answer(Kind.HANG, Decision.RESTART_IN_PLACE, 3)] * named
    why = [event["why"] for event in emit.events if event["event"] == "diagnosis" and where == "restore"]
    assert all(each.startswith("stuck in restore for 901.00 s (limit 900.00 s); it waits for no") for each in why)


@pytest.mark.parametrize(("rank", "named"), [(0, True), (2, False)])
def test_ranks_that_do_not_come_to_the_rendezvous_are_named_once(rank: int, named: bool) -> None:
    emit = Told()
    train.Worker(Options(), emit, rank, 0, 4).tell_absent([1, 3])
    assert emit.answers() == [answer(Kind.HANG, Decision.RESTART_IN_PLACE, 1, 3)] * named


def test_only_the_absent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the places that ranks claim in the store: those that came have claimed theirs."""
    store, absent = dist.HashStore(), list[list[int]]()
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: store)
    monkeypatch.setattr(dist, "init_process_group", MagicMock(side_effect=dist.DistStoreError("timed out")))
    given = {train.STORE_PREFIX_ENV: "x", "MASTER_ADDR": "a", "MASTER_PORT": "1", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    dist.PrefixStore("x", store).set("place 2", "another")
    with pytest.raises(dist.DistStoreError):
        train.join_process_group(MagicMock(type="cpu"), 0, 4, MagicMock(), absent.append)
    assert absent == [[1, 3]]


def test_an_ordered_pause_comes_once_before_its_step(tmp_path: pathlib.Path) -> None:
    order = {"kind": "pause", "section": "evaluation", "factor": 7.5, "from_step": 5, "steps": 1}
    damage, model = Damage(*ordered(tmp_path, **order), 1, Told()), MagicMock()
    found: dict[int, list[list[Pause]]] = {}
    for step in (4, 5, 6, 5):
        damage.before_step(step, model)
        found.setdefault(step, []).append([*damage.pauses])
    assert found == {4: [[]], 5: [[Pause("evaluation", 7.5)], []], 6: [[]]}


def settings(scenario: str, profile: str | None, names: tuple[str, ...]) -> list[Any]:
    args = load_scenario(SCENARIOS / f"{scenario}.yaml", profile).workload.args
    return [getattr(parse([*args]), name) for name in names]


@pytest.mark.parametrize("profile", [None, "cluster"])
def test_no_false_alarm_is_judged_under_the_settings_under_which_hangs_are_found(profile: str | None) -> None:
    """Else a patient watchdog would pass there, and a strict one here."""
    patient = settings("no-false-alarm", profile, ALL)
    assert [settings(each, profile, ALL) for each in WEDGES] == [patient] * len(WEDGES)
    assert settings("hang", profile, OF_STEPS) == settings("no-false-alarm", profile, OF_STEPS)
    pauses = load_scenario(SCENARIOS / "no-false-alarm.yaml", profile).faults
    floor_s = settings("no-false-alarm", profile, OF_STEPS)[0]
    lasts = [fault.action.lasts() for fault in pauses]
    assert all(each is not None and each.s > floor_s for each in lasts), "each is longer than a step may be"
