"""Restarts of a state that nobody saved, and restarts that lose more than the plan lets them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.judge.facts import alarms
from harness.judge.facts.known import By
from harness.judge.guarantees import restart_for_a_reason, restart_newest, restart_saved

S = 10**9


@pytest.mark.parametrize(
    ("step", "from_a_member", "saved", "told"),
    [
        (0, -1, False, False),  # from scratch
        (1, -1, False, True),
        (1, 0, False, True),
        (1, -1, True, False),
        (6, 6, False, False),  # as far as somebody who is still there
        (7, 6, False, True),
        (10, -1, False, True),
        (11, -1, False, False),  # it goes on with step 11: another question
    ],
)
def test_a_restored_state_was_saved_or_is_held_by_a_peer(
    step: int, from_a_member: int, saved: bool, told: bool
) -> None:
    restore = SimpleNamespace(rank=3, step=step, said=f"rank 3 said it restored step {step}")
    epoch = SimpleNamespace(begin=5, first=11)
    restart = SimpleNamespace(epoch=epoch, states=[(restore, step)], from_a_member=from_a_member, by=By.MISSING)
    store = SimpleNamespace(saw=lambda step, until: False)
    saves = SimpleNamespace(
        never_sound={}, of_step=lambda step, until: saved, only_begun=lambda step, until: None, store=store
    )
    run = SimpleNamespace(checkpoints=["some"], uncertainty_ns=0)
    evidence: Any = SimpleNamespace(run=run, saves=saves, restarts=[restart, restart])  # the first is the job's start
    text = f"rank 3 said it restored step {step}, but no checkpoint of that step was ever started"
    wanted = [(By.MISSING, f"{text}: its state is not known")] if told else []
    assert [(each.by, each.words) for each in restart_saved.breaches(evidence)] == wanted
    store.saw = lambda step, until: True
    assert not [*restart_saved.breaches(evidence)], "the harness saw it in the store"
    store.saw = lambda step, until: False
    run.checkpoints = []
    assert not [*restart_saved.breaches(evidence)], "who tells no save tells no state of none"


@pytest.mark.parametrize(
    ("every", "every_s", "last", "first", "after_ns", "lost"),
    [
        (10, None, 30, 11, 1, None),  # the save of step 20 was still being written
        (10, None, 31, 11, 1, 21),
        (10, None, 10, 1, 1, None),
        (10, None, 11, 1, 1, 11),
        (None, 5.0, 30, 1, 10 * S, None),
        (None, 5.0, 30, 1, 10 * S + 1, 30),
        (None, 5.0, 30, 2, 99 * S, None),  # something was saved
        (None, None, 30, 1, 0, None),
        (None, None, 30, 1, 1, 30),
        (None, None, 1, 1, 1, 1),
        (None, None, 0, 1, 1, None),  # it had done nothing that could be lost
    ],
)
def test_a_restart_that_tells_nothing_loses_what_the_plan_lets_it_lose(
    every: int | None, every_s: float | None, last: int, first: int, after_ns: int, lost: int | None
) -> None:
    """The first world came to step `last`; the second one formed so long after the first step began."""

    def restart(number: int, first: int, last: int, begin: int) -> Any:
        epoch = SimpleNamespace(first=first, last=last, begin=begin)
        return SimpleNamespace(number=number, epoch=epoch, states=[], newcomers=["one"], by=By.MISSING)

    run = SimpleNamespace(checkpoints=[], saves_every=every, saves_every_s=every_s, stride=1, faults=[])
    run.progress = _Progress(np.array([3 * S]))
    second = restart(1, first, 99, 3 * S + after_ns)
    evidence: Any = SimpleNamespace(run=run, restarts=[restart(0, 1, last, 2 * S), second])
    planned = f", though it should save every {every} steps" if every else ""
    text = f"the job restarted at step {first} and lost {lost} steps{planned}; it reported no saves and no restores"
    assert [each.words for each in restart_newest.further_back(evidence)] == ([] if lost is None else [text])
    for excuse in (
        {"run": SimpleNamespace(**vars(run) | {"faults": [SimpleNamespace(spoils=True, injected=second.epoch.begin)]})},
        {"run": SimpleNamespace(**vars(run) | {"checkpoints": ["some"]})},
        {"restarts": [evidence.restarts[0], SimpleNamespace(**vars(second) | {"newcomers": []})]},
        {"restarts": [evidence.restarts[0], SimpleNamespace(**vars(second) | {"states": ["one"]})]},
    ):
        assert not [*restart_newest.further_back(SimpleNamespace(**vars(evidence) | excuse))]  # type: ignore[arg-type]


class _Progress:
    def __init__(self, begin: Any):
        self.begin = begin

    def __len__(self) -> int:
        return len(self.begin)


@pytest.mark.parametrize(
    ("own_decision", "alarm", "fault", "told"),
    [
        (True, None, None, True),
        (False, None, None, False),  # the world formed anew
        (True, 35, None, False),
        (True, 5, None, True),  # of the time before the stretch of work that is thrown away
        (True, 45, None, True),  # said afterwards
        (True, None, (35, 38), False),
        (True, None, (5, 30), False),  # at work when the stretch began
        (True, None, (1, 4), True),
        (True, None, (5, None), False),  # never healed
    ],
)
def test_who_goes_back_by_itself_says_why(
    own_decision: bool,
    alarm: int | None,
    fault: tuple[int, int | None] | None,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarms, "contradicted", lambda run, spikes: [])
    faults = [SimpleNamespace(may={"stop"}, injected=fault[0], healed=fault[1])] if fault else []
    faults.append(SimpleNamespace(may=frozenset(), injected=35, healed=None))  # leads to nothing of the kind
    run = SimpleNamespace(anomalies=[{"at": alarm}] if alarm else [], faults=faults, end=99, uncertainty_ns=0)
    run.beside = SimpleNamespace(earlier=())
    first = SimpleNamespace(epoch=SimpleNamespace(begin=10, last=150))
    back = SimpleNamespace(
        epoch=SimpleNamespace(begin=41, first=141), moment=40, own_decision=own_decision, by=By.MISSING
    )
    evidence: Any = SimpleNamespace(run=run, restarts=[first, back], spikes=())
    text = "the job went back from step 150 to step 140 by its own decision, and nobody told why"
    assert [each.words for each in restart_for_a_reason.breaches(evidence)] == [text] * told
    if alarm == 35:
        monkeypatch.setattr(alarms, "contradicted", lambda run, spikes: run.anomalies)
        [claim] = restart_for_a_reason.breaches(evidence)
        assert claim.words.endswith("by its own decision, and its steps do not show what it said")
    run.beside.earlier = [SimpleNamespace(may={"stop"}, injected=5, healed=None)]  # of another rehearsal, still at work
    assert not [*restart_for_a_reason.breaches(evidence)]
