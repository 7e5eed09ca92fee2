"""The saves of a run as one fact: joined once, found without a look at all of them."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.judge.facts.saves import Newest, Saves
from harness.timeline.lineage import NEVER
from harness.timeline.save_events import COMMITTED, FAILED, STARTED

UNTOLD = -1


def saves(*told: tuple[int, str, int], faults: tuple[Any, ...] = (), **more: Any) -> Saves:
    """Of one process that does a step every 100 ns."""
    events: list[dict[str, Any]] = [
        {"process": 0, "at": at, "event": event, "path": f"run/{step}"} | ({} if step == UNTOLD else {"step": step})
        for at, event, step in told
    ]
    begin = np.arange(0, 1000, 100)
    run: Any = SimpleNamespace(
        checkpoints=events,
        processes=[SimpleNamespace(rank=3)],
        steps=SimpleNamespace(begin=begin),
        rows_by_process=(np.arange(len(begin)), np.array([0, len(begin)])),
        faults=faults,
        published=(),
        uncertainty_ns=0,
        epochs=(SimpleNamespace(begin=0), SimpleNamespace(begin=250)),
    )
    return Saves(SimpleNamespace(**vars(run) | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_is_what_a_look_at_all_of_them_finds(seed: int) -> None:
    draw = random.Random(seed)
    things = [(draw.randrange(50), draw.randrange(12), draw.random() < 0.6) for _ in range(40)]
    known = Newest((at, step, (step, good)) for at, step, good in things)
    for moment in range(0, 52, 3):
        wanted = max((step for at, step, good in things if at < moment and good), default=None)
        found = known.before(moment, lambda thing: thing[1])
        assert (found and found[0]) == wanted


def test_it_looks_back_no_further_than_it_must() -> None:
    asked: list[int] = []
    known = Newest((step, step, step) for step in range(1000))
    assert known.before(500, lambda step: not asked.append(step)) == 499
    assert asked == [499]


def test_an_end_belongs_to_the_last_begin_of_its_step() -> None:
    found = saves((10, STARTED, 5), (20, STARTED, 5), (30, COMMITTED, 5), (40, FAILED, 6)).all
    ends = [(10, None, ""), (20, 30, COMMITTED), (None, 40, FAILED)]
    assert [(save.begun, save.ended, save.how) for save in found] == ends


def test_an_end_that_tells_no_step_belongs_to_no_begin_of_a_step() -> None:
    found = saves(*((n, STARTED, n - 10) for n in (10, 11, 12)), (20, COMMITTED, UNTOLD), (21, STARTED, UNTOLD)).all
    assert [(save.step, save.begun, save.ended) for save in found if save.ended or save.step < 0] == [
        (UNTOLD, None, 20),
        (UNTOLD, 21, None),
    ]


@pytest.mark.parametrize(
    ("told", "still_open", "punctual"),
    [
        ([(10, STARTED, 5), (50, COMMITTED, 5)], 0, True),
        ([(10, STARTED, 5), (150, COMMITTED, 5)], 0, False),  # after its next step
        ([(10, STARTED, 5)], 1, False),
        ([(950, STARTED, 5)], 0, True),  # it did no step after it
    ],
)
def test_the_process_of_an_open_save_went_on(told: list[tuple[int, str, int]], still_open: int, punctual: bool) -> None:
    found = saves(*told)
    assert (len(found.open), found.punctual) == (still_open, {3} if punctual else frozenset())


def test_a_step_was_saved_or_damaged_until_somebody_tells_otherwise() -> None:
    found = saves((10, STARTED, 5), (20, FAILED, 5), (30, STARTED, 5))
    assert [found.of_step(5, until) for until in (9, 10, 20, 30)] == [False, True, False, True]
    told = [(100, COMMITTED, 5), (260, STARTED, 5)]
    assert [each.step for each in saves(told[0], faults=(damage(tensor_bytes=1),)).damage["rot"]] == [5], "by its name"
    assert [saves(*told, faults=(damage(step=step),)).damage["rot"][0].anew.at for step in (5, 7)] == [260, NEVER]


def damage(healed: int | None = None, damages: bool = True, **told: Any) -> Any:
    damaged = ({"at": 200, "names": ["5"], **told},) if told else ()
    return SimpleNamespace(id="rot", spoils=True, damages=damages, injected=200, healed=healed, damaged=damaged)


@pytest.mark.parametrize(
    ("fault", "moment", "sound"),
    [
        (damage(step=5), 199, [True, True]),  # before it struck
        (damage(step=5), 300, [False, True]),
        (damage(), 300, [False, False]),  # at work, and nobody knows what it damaged
        (damage(healed=250), 300, [False, True]),  # begun when it was over
        (damage(damages=False), 300, [True, False]),  # it only disturbs the store, and what was there stays
        (damage(damages=False, healed=250), 300, [True, True]),
        (damage(damages=False, healed=265), 300, [True, False]),
    ],
)
def test_what_a_fault_may_have_damaged_is_not_sound(fault: Any, moment: int, sound: list[bool]) -> None:
    found = saves((100, COMMITTED, 5), (260, STARTED, 6), (280, COMMITTED, 6), faults=(fault,))
    asked = found.sound_at(moment)
    assert [asked(save) for save in found.whole] == sound
    disturbed = [] if fault.damages or moment < 200 else [(200, NEVER if fault.healed is None else fault.healed)]
    assert found.outages == disturbed
    assert all(map(found.sound_at(moment, outages=False), found.whole)) or fault.damages


@pytest.mark.parametrize(
    ("told", "sound"),
    [
        ([(100, STARTED), (110, COMMITTED), (260, STARTED), (280, COMMITTED)], [False, True]),
        ([(100, COMMITTED), (260, COMMITTED)], [False, True]),
        ([(100, STARTED), (210, COMMITTED)], [False]),  # it was there when the fault damaged it, and told late
        ([(210, COMMITTED)], [False]),  # perhaps that, too: nobody told its begin
        ([(190, STARTED), (210, STARTED), (220, COMMITTED)], [False]),  # one process was late
        ([(190, STARTED), (260, STARTED), (280, COMMITTED)], [True]),  # what a process began before the restart is gone
    ],
)
def test_a_save_made_anew_after_the_restart_is_another_one(told: list[tuple[int, str]], sound: list[bool]) -> None:
    found = saves(*((at, what, 5) for at, what in told), faults=(damage(step=5),))
    assert [found.sound_at(300)(save) for save in found.whole] == sound
