"""Restarts of a state that nobody saved, and restarts that lose more than the plan lets them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import EXPECT, verdict
from simulator import Job, Outage, simulate

from harness.judge.facts import alarms
from harness.judge.facts.known import By
from harness.judge.facts.restarts import in_vain
from harness.judge.guarantees import restart_for_a_reason, restart_newest, restart_saved
from harness.judge.verdict import Verdict
from harness.timeline.lineage import NEVER

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
def test_a_restored_state_was_saved_or_a_peer_holds_it(step: int, from_a_member: int, saved: bool, told: bool) -> None:
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
    work = SimpleNamespace(furthest=lambda at: 99 if at == NEVER else at)  # a step in each ns
    evidence: Any = SimpleNamespace(run=run, work=work, restarts=[restart(0, 1, last, 2 * S), second])
    planned = f", though it should save every {every} steps" if every else ""
    text = f"the job restarted at step {first} and lost {lost} steps{planned}; it reported no saves and no restores"
    assert [each.words for each in restart_newest.further_back(evidence)] == ([] if lost is None else [text])
    outage = SimpleNamespace(spoils=True, damaged=(), injected=0)  # from then on the job could perhaps not save
    rot = SimpleNamespace(spoils=True, damaged=({},), injected=second.epoch.begin)
    for excuse in (
        {"run": SimpleNamespace(**vars(run) | {"faults": [outage]})},
        {"run": SimpleNamespace(**vars(run) | {"faults": [rot]})},
        {"run": SimpleNamespace(**vars(run) | {"checkpoints": ["some"]})},
        {"restarts": [evidence.restarts[0], SimpleNamespace(**vars(second) | {"newcomers": []})]},
        {"restarts": [evidence.restarts[0], SimpleNamespace(**vars(second) | {"states": ["one"]})]},
    ):
        assert not [*restart_newest.further_back(SimpleNamespace(**vars(evidence) | excuse))]  # type: ignore[arg-type]


@pytest.mark.parametrize(("struck", "lost"), [(10, None), (11, 11), (25, 25)])
def test_what_was_done_before_an_outage_of_the_store_was_saved(struck: int, lost: int | None) -> None:
    outage = SimpleNamespace(spoils=True, damaged=(), injected=struck)
    epochs = [SimpleNamespace(first=1, last=30, begin=0), SimpleNamespace(first=1, last=99, begin=40)]
    run = SimpleNamespace(checkpoints=[], saves_every=10, saves_every_s=None, stride=1, faults=[outage], progress=())
    more = {"states": [], "newcomers": ["one"], "by": By.MISSING}
    restarts = [SimpleNamespace(number=number, epoch=epoch, **more) for number, epoch in enumerate(epochs)]
    evidence: Any = SimpleNamespace(run=run, work=SimpleNamespace(furthest=lambda at: at), restarts=restarts)
    found = [each.words for each in restart_newest.further_back(evidence)]
    assert [f"and lost {lost} steps, " in words for words in found] == ([] if lost is None else [True])


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


@pytest.mark.parametrize(
    ("kind", "steps_between", "restarts", "bound", "reason"),
    [
        ("rank", 3, 2, 1, ""),
        ("rank", 3, 3, 1, "max_restarts_without_progress: 2 restarts in a row without progress: none went on from a"),
        ("rank", 11, 8, 0, ""),  # each after another save
        ("rank", 3, 9, None, ""),  # each by a fault, and the scenario sets no bound
        ("crash", 3, 7, None, "unexplained deaths"),  # by itself, but a few tries
        ("crash", 3, 8, None, "7 restarts in a row without progress: none went on from a later step than 10; no fault"),
    ],
)
def test_restarts_without_a_save(kind: str, steps_between: int, restarts: int, bound: int | None, reason: str) -> None:
    history = simulate(
        Job(nodes=2, steps=120, every=10), [Outage(17, kind, 1), *[Outage(steps_between, kind, 1)] * (restarts - 1)], 5
    )
    card = verdict(history, expect=EXPECT | {"metrics": {"max_restarts_without_progress": bound}})
    assert card.metrics["restarts_without_progress"] == (restarts - 1 if steps_between < 10 else 0)
    assert reason in card.reasons[0]
    assert card.verdict is (
        Verdict.PASS if not reason else Verdict.INCONCLUSIVE if "deaths" in reason else Verdict.FAIL
    )


@pytest.mark.parametrize(
    ("lives", "finished", "excused", "found"),
    [
        ([(1, 1), (11, 11)], False, [], (0, 10)),
        ([(1, None), (3, None), (5, 1)], False, [], (1, 0)),  # the first start is no restart
        ([(1, 1), (11, None), (13, None), (15, 11)], False, [], (2, 0)),  # then it goes on
        ([(1, 1), (11, None), (13, None), (15, 1)], False, [], (3, 0)),
        ([(1, 1), (11, None), (13, None)], False, [], (2, 0)),
        ([(1, 1), (11, None), (13, None)], True, [], (0, 0)),  # nothing is left to do
        ([(1, 1), (11, None), (33, None), (55, None)], False, [], (1, 0)),  # others do steps meanwhile
        ([(1, 1), (11, 1), (13, 1), (15, 1)], False, [(12, 12)], (2, 0)),
        ([(1, 1), (11, 1), (13, 1), (15, 1)], False, [(2, 99)], (0, 0)),
    ],
)
def test_starts_that_come_to_no_step_count(
    lives: list[tuple[int, int | None]], finished: bool, excused: list[tuple[int, int]], found: tuple[int, int]
) -> None:
    """Each life of rank 1: when it began, and its first step. The step counts every tenth moment."""
    processes = [SimpleNamespace(rank=1, started=at, first_step=first) for at, first in lives]
    silent = [SimpleNamespace(rank=2, started=at, first_step=None) for at in range(9)]  # a rank that tells no steps
    epochs = [SimpleNamespace(begin=at, first=first) for at, first in lives if first]
    run: Any = SimpleNamespace(epochs=epochs, processes=[*processes, *silent], finished=finished)
    assert tuple(in_vain(run, lambda at: at // 10, excused)) == found
