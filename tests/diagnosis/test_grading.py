"""Grades and scores: each answer gets what it deserves, and so does each diagnoser."""

import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from diagnosis.known_jobs import BEGIN, WALL, Job
from simulator import Job as SimulatedJob
from simulator import Outage, simulate

from harness.diagnosis.answer import Answer, Decision, Kind, Suspect
from harness.diagnosis.built_in import DIAGNOSERS
from harness.diagnosis.grading import Grade, RunGrade, grade_run
from harness.diagnosis.injected import RunTruth, truth_of_run
from harness.diagnosis.scores import Scores, Share, fisher, scores_of
from harness.log import reading

NS = 10**9
WITHIN = 60 * NS


def truth_of(job: Job, folder: pathlib.Path) -> RunTruth:
    return truth_of_run(folder.name, reading.read(job.write(folder) / "events"))


def struck(
    folder: pathlib.Path, fault: str = "rank_kill", node: int = 1, rank: int | None = 1, **more: Any
) -> RunTruth:
    job = Job()
    job.fault(fault, node, rank, **more)
    return truth_of(job, folder)


def said(truth: RunTruth, kind: Kind, *who: Suspect, after_s: float = 1, **more: Any) -> Answer:
    begin = truth.faults[0].begin if truth.faults else BEGIN
    return Answer(kind, who, at=truth.wall_ns(begin) + int(after_s * NS), **more)


def grade(truth: RunTruth, *answers: Answer) -> RunGrade:
    return grade_run(truth, answers, WITHIN)


@pytest.mark.parametrize(
    ("kind", "who", "after_s", "expected", "innocents"),
    [
        (Kind.CRASH, [Suspect(rank=1)], 1, Grade.RIGHT, 0),
        (Kind.CRASH, [Suspect(rank=1, node="node1")], 1, Grade.RIGHT, 0),
        (Kind.CRASH, [Suspect(node="node1", gpu=0)], 1, Grade.RIGHT, 0),
        (Kind.CRASH, [Suspect(node="node1")], 1, Grade.COARSE, 0),
        (Kind.CRASH, [], 1, Grade.COARSE, 0),
        (Kind.CRASH, [Suspect(rank=1)], 61, Grade.LATE, 0),
        (Kind.CRASH, [Suspect(rank=0)], 1, Grade.WRONG, 1),
        (Kind.CRASH, [Suspect(rank=1), Suspect(rank=2)], 1, Grade.WRONG, 1),
        (Kind.CRASH, [Suspect(rank=1, node="node2")], 1, Grade.WRONG, 1),
        (Kind.CRASH, [Suspect(node="node1", gpu=3)], 1, Grade.WRONG, 1),
        (Kind.CRASH, [Suspect(rank=99)], 1, Grade.WRONG, 1),
        (Kind.HANG, [Suspect(rank=1)], 1, Grade.WRONG, 0),
        (Kind.UNKNOWN, [], 1, Grade.UNSURE, 0),
        (Kind.NONE, [], 1, Grade.MISSING, 0),
        (Kind.CRASH, [Suspect(rank=1)], -5, Grade.MISSING, 1),  # it was accused while it was sound
    ],
)
def test_an_answer_about_a_killed_rank(
    kind: Kind, who: list[Suspect], after_s: float, expected: Grade, innocents: int, tmp_path: pathlib.Path
) -> None:
    truth = struck(tmp_path)
    found = grade(truth, said(truth, kind, *who, after_s=after_s))
    assert found.faults[0].grade is expected and len(found.innocents) == innocents


@pytest.mark.parametrize(
    ("kind", "who", "after_s", "counts"),
    [
        (Kind.CRASH, [Suspect(rank=0)], 1, True),
        (Kind.HANG, [Suspect(rank=1)], 1, True),
        (Kind.HANG, [Suspect(node="node1")], 3.9, True),
        (Kind.HANG, [], 1, True),
        (Kind.HANG, [Suspect(rank=1)], 4.1, False),  # later
        (Kind.STRAGGLER, [Suspect(rank=0)], 1, False),  # about another part
        (Kind.UNKNOWN, [Suspect(rank=1)], 1, False),
        (Kind.CRASH, [Suspect(node="node1")], 1, False),  # less exact
        (Kind.CRASH, [Suspect(rank=1)], 61, False),
    ],
)
def test_the_best_answer_counts_if_none_before_or_with_it_contradicts_it(
    kind: Kind, who: list[Suspect], after_s: float, counts: bool, tmp_path: pathlib.Path
) -> None:
    truth = struck(tmp_path)
    other, right = said(truth, kind, *who, after_s=after_s), said(truth, Kind.CRASH, Suspect(rank=1), after_s=3)
    (found,) = grade(truth, right, other).faults
    assert (found.grade, found.answer) == ((Grade.WRONG, other) if counts else (Grade.RIGHT, right))


VICTIM, INNOCENT = Suspect(rank=1), Suspect(node="node0")


@pytest.mark.parametrize(
    ("kind", "who", "decision", "expected", "accuses"),
    [
        (Kind.UNKNOWN, [INNOCENT], None, Grade.UNSURE, False),
        (Kind.UNKNOWN, [INNOCENT], Decision.IGNORE, Grade.UNSURE, False),
        (Kind.NONE, [INNOCENT], Decision.IGNORE, Grade.MISSING, False),
        (Kind.UNKNOWN, [VICTIM], Decision.RESTART_IN_PLACE, Grade.UNSURE, False),
        (Kind.UNKNOWN, [], Decision.STOP, Grade.UNSURE, False),
        (Kind.NONE, [VICTIM], Decision.STOP, Grade.MISSING, False),
        (Kind.UNKNOWN, [INNOCENT], Decision.EVICT_NODE, Grade.WRONG, True),
        (Kind.UNKNOWN, [VICTIM, INNOCENT], Decision.STOP, Grade.WRONG, True),
        (Kind.NONE, [INNOCENT], Decision.RESTART_ELSEWHERE, Grade.WRONG, True),
    ],
)
def test_who_does_not_know_but_acts_accuses(
    kind: Kind, who: list[Suspect], decision: Decision | None, expected: Grade, accuses: bool, tmp_path: pathlib.Path
) -> None:
    truth = struck(tmp_path)
    found = grade(truth, said(truth, kind, *who, decision=decision))
    scores = scores_of([found])
    assert found.faults[0].grade is expected and bool(found.innocents) == accuses
    assert scores.total.precision == Share(0, int(accuses)) and scores.kinds.keys() == {Kind.CRASH, *[kind][:accuses]}
    right = said(truth, Kind.CRASH, VICTIM, after_s=2)
    counts = grade(truth, said(truth, kind, *who, decision=decision), right).faults[0].grade
    assert counts is (Grade.WRONG if {VICTIM, INNOCENT} <= {*who} else Grade.RIGHT), "about its victim, too"


@pytest.mark.parametrize(
    ("answer", "column", "quiet"),
    [
        (Answer(Kind.UNKNOWN), Kind.UNKNOWN, True),
        (Answer(Kind.NONE), Kind.NONE, True),
        (Answer(Kind.UNKNOWN, decision=Decision.STOP), Kind.UNKNOWN, False),
        (Answer(Kind.NONE, (INNOCENT,), Decision.EVICT_NODE), Kind.NONE, False),
        (Answer(Kind.CRASH, (INNOCENT,)), Kind.CRASH, False),
    ],
)
def test_in_a_control_who_acts_is_not_quiet(answer: Answer, column: Kind, quiet: bool, tmp_path: pathlib.Path) -> None:
    found = scores_of([grade(truth_of(Job(), tmp_path), answer)])
    assert (found.controls, found.total.precision) == (Share(int(quiet), 1), Share(0, int(not quiet)))
    assert found.confusion == {(Kind.NONE, column): 1}


def test_a_guess_after_unknown_counts(tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path)
    unsure, guess = said(truth, Kind.UNKNOWN), said(truth, Kind.HANG, VICTIM, after_s=2)
    assert [grade(truth, *each).faults[0].grade for each in ([unsure], [unsure, guess])] == [Grade.UNSURE, Grade.WRONG]


@pytest.mark.parametrize("first", Kind)
def test_all_kinds_at_once_are_no_answer_in_whatever_order(first: Kind, tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path)
    kinds = sorted(Kind, key=lambda kind: kind is not first)
    assert grade(truth, *(said(truth, kind, Suspect(rank=1)) for kind in kinds)).faults[0].grade is Grade.WRONG


def test_a_wrong_answer_stays_a_false_alarm(tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path)
    wrong = said(truth, Kind.CRASH, Suspect(rank=0), after_s=5)
    right = said(truth, Kind.CRASH, Suspect(rank=1), after_s=3)
    found = grade(truth, right, wrong, wrong)
    assert found.faults[0].grade is Grade.RIGHT and found.faults[0].after_ns == 3 * NS
    assert [true for _, true in found.judged] == [True, False] and len(found.innocents) == 1


def test_decisions_that_differ_are_none_and_a_later_one_is_a_step_further(tmp_path: pathlib.Path) -> None:
    truth, who = struck(tmp_path), Suspect(rank=1)
    for after_s, right in ((1.5, None), (9, True)):
        told = [(1, Decision.RESTART_IN_PLACE), (after_s, Decision.EVICT_NODE)]
        answers = (said(truth, Kind.CRASH, who, after_s=at, decision=each) for at, each in told)
        (found,) = grade(truth, *answers).faults
        assert (found.grade, found.decision_right) == (Grade.RIGHT, right)


def test_an_answer_without_a_time_is_never_late_and_one_may_count_steps(tmp_path: pathlib.Path) -> None:
    truth, who = struck(tmp_path), (Suspect(rank=1),)
    (found,) = grade(truth, Answer(Kind.CRASH, who)).faults
    assert (found.grade, found.after_ns) == (Grade.RIGHT, None)
    told = [grade(truth, Answer(Kind.CRASH, who, step=step)).faults[0].grade for step in (60, 3)]
    assert told == [Grade.RIGHT, Grade.MISSING]


def test_a_node_is_named_by_itself_or_by_its_ranks_and_a_shared_store_has_no_culprit(tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path / "node", "node_loss", 2, None)
    suspects = Suspect(node="node2"), Suspect(rank=2), Suspect(rank=1)
    found = [grade(truth, said(truth, Kind.CRASH, suspect)).faults[0].grade for suspect in suspects]
    assert found == [Grade.RIGHT, Grade.RIGHT, Grade.WRONG]
    truth = struck(tmp_path / "store", "storage_full", 0, None)
    answers = [said(truth, Kind.STORAGE), said(truth, Kind.STORAGE, Suspect(file="/ckpt"))]
    accused = grade(truth, said(truth, Kind.STORAGE, Suspect(node="node0")))
    assert [grade(truth, answer).faults[0].grade for answer in answers] == [Grade.RIGHT] * 2
    assert accused.faults[0].grade is Grade.WRONG and [*accused.innocents] == ["node node0"]


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ([Suspect(file="/run/data/shard-003.txt")], Grade.RIGHT),
        ([Suspect(file="/run/data/shard-004.txt")], Grade.WRONG),
        ([], Grade.COARSE),
        ([Suspect(rank=1)], Grade.COARSE),
        ([Suspect(rank=0)], Grade.WRONG),
    ],
)
def test_a_damaged_file(who: list[Suspect], expected: Grade, tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path, "data_corruption", kind="missing", detail="data/shard-003.txt: missing")
    assert grade(truth, said(truth, Kind.BAD_DATA, *who)).faults[0].grade is expected


def test_a_benign_pause_needs_no_answer(tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path, "gil_hold", duration="3s")
    sound: list[list[Answer]] = [[], [said(truth, Kind.HANG, Suspect(rank=1))], [said(truth, Kind.UNKNOWN)]]
    wrong = [said(truth, Kind.CRASH, Suspect(rank=1))], [said(truth, Kind.HANG, Suspect(rank=0))]
    acting = [said(truth, Kind.UNKNOWN, decision=Decision.STOP)]
    for answers in (*sound, *wrong, acting):
        (found,) = grade(truth, *answers).faults
        assert found.grade is (Grade.RIGHT if answers in sound else Grade.WRONG) and found.injected.truth.benign
    assert not scores_of([grade(truth)]).kinds


def test_in_a_control_each_accusation_is_false(tmp_path: pathlib.Path) -> None:
    truth = truth_of(Job(), tmp_path)
    accused = said(truth, Kind.STRAGGLER, Suspect(node="node0"))
    found = grade(truth, accused, said(truth, Kind.NONE), said(truth, Kind.UNKNOWN))
    assert [true for _, true in found.judged] == [False] and [*found.innocents] == ["node node0"]
    assert scores_of([found]).controls == Share(0, 1) and scores_of([grade(truth)]).controls == Share(1, 1)


def test_answers_beside_a_fault_that_is_not_graded_are_not_judged(tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path, "own_code")
    found = grade(truth, Answer(Kind.CRASH, (Suspect(rank=1),)))
    assert not found.judged and not found.innocents and not truth.is_control


def test_the_decision_is_graded_if_the_fault_was_found(tmp_path: pathlib.Path) -> None:
    truth = struck(tmp_path)
    for decision, expected in ((Decision.RESTART_IN_PLACE, True), (Decision.EVICT_NODE, False), (None, None)):
        (found,) = grade(truth, said(truth, Kind.CRASH, Suspect(rank=1), decision=decision)).faults
        assert found.decision_right is expected
    (found,) = grade(truth, said(truth, Kind.CRASH, Suspect(rank=0), decision=Decision.RESTART_IN_PLACE)).faults
    assert found.decision_right is None


# Scores


def test_wilsons_interval_and_fishers_test() -> None:
    assert Share(0, 0).interval is None and str(Share(0, 0)) == "–"
    assert Share(8, 10).interval == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert Share(0, 20).interval == pytest.approx((0, 0.1611252), abs=1e-6)
    assert str(Share(20, 20)) == "20/20 100 % [84–100]"
    assert fisher(Share(3, 4), Share(1, 4)) == pytest.approx(0.4857143)
    assert fisher(Share(10, 10), Share(0, 10)) == pytest.approx(2 / 184756)
    assert fisher(Share(0, 5), Share(0, 7)) == 1


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> list[RunTruth]:
    """Ranks and nodes, each struck on each of four nodes, and controls."""
    found = []
    for kind, victim in itertools.product(("rank", "node", "notice", "control"), range(4)):
        folder = tmp_path_factory.mktemp(f"{kind}-{victim}")
        outages = [] if kind == "control" else [Outage(after=12, kind=kind, victim=victim)]
        simulate(SimulatedJob(nodes=4), outages, seed=victim).write(folder)
        found.append(truth_of_run(folder.name, reading.read(folder / "events")))
    return found


Diagnoser = Callable[[RunTruth, int], list[Answer]]


def scored(matrix: Sequence[RunTruth], diagnoser: Diagnoser, seed: int = 1) -> Scores:
    return scores_of(grade_run(truth, diagnoser(truth, seed), WITHIN) for truth in matrix)


@pytest.mark.parametrize("name", ["right", "baseline"])
def test_the_diagnoser_that_is_always_right(name: str, matrix: list[RunTruth]) -> None:
    found = scored(matrix, DIAGNOSERS[name])
    assert found.total.recall == found.total.precision == found.total.decision == Share(12, 12)
    assert found.controls == Share(4, 4) and not found.innocents and found.index_0_differs is False
    assert found.confusion == {(Kind.CRASH, Kind.CRASH): 12, (Kind.NONE, Kind.NONE): 4}
    assert found.wasted_gpu_hours == "not measured"


def unsure(truth: RunTruth, seed: int) -> list[Answer]:
    return [Answer(Kind.UNKNOWN)]


@pytest.mark.parametrize(
    ("diagnoser", "grade", "recall"),
    [(DIAGNOSERS["empty"], Grade.MISSING, Share(0, 12)), (unsure, Grade.UNSURE, Share(0, 0))],
)
def test_who_says_nothing_misses_and_who_does_not_know_is_neither_right_nor_wrong(
    diagnoser: Diagnoser, grade: Grade, recall: Share, matrix: list[RunTruth]
) -> None:
    found = scored(matrix, diagnoser)
    assert found.total.grades == {grade: 12} and found.total.recall == recall
    assert found.total.precision == Share(0, 0) and found.controls == Share(4, 4) and not found.innocents


def node_0(truth: RunTruth, seed: int) -> list[Answer]:
    """It knows what happened, and blames the first node."""
    right = DIAGNOSERS["right"](truth, seed)
    return [Answer(each.kind, (Suspect(node="node0"),), each.decision, at=each.at) for each in right]


def only_the_first(truth: RunTruth, seed: int) -> list[Answer]:
    return DIAGNOSERS["right"](truth, seed) if any(fault.at_index_0 for fault in truth.faults) else []


@pytest.mark.parametrize(
    ("diagnoser", "innocents", "sound"),
    [(DIAGNOSERS["rank_0"], 9 + 4, 0), (node_0, 9, 4), (only_the_first, 0, 4)],
)
def test_who_knows_only_the_first_is_found_out(
    diagnoser: Diagnoser, innocents: int, sound: int, matrix: list[RunTruth]
) -> None:
    found = scored(matrix, diagnoser)
    assert found.first.hits == found.first.tries and found.others == Share(0, 9)
    assert found.index_0_differs is True and "differs significantly" in found.index_0_in_words
    assert found.controls == Share(sound, 4) and len(found.innocents) == innocents
    alone = scored([truth for truth in matrix if not truth.faults or truth.faults[0].at_index_0], diagnoser)
    assert alone.index_0_differs is None and "cannot be told" in alone.index_0_in_words


def test_the_diagnoser_that_guesses(matrix: list[RunTruth]) -> None:
    found = [scored(matrix, DIAGNOSERS["random"], seed) for seed in range(20)]
    recall = sum(each.total.recall.hits for each in found) / sum(each.total.recall.tries for each in found)
    assert recall == pytest.approx(1 / 9 / 4, abs=0.03)  # one kind of nine, one rank of four
    assert scored(matrix, DIAGNOSERS["random"], 3) == found[3] != found[4]


def test_alarms_of_a_trainer_are_answers(tmp_path: pathlib.Path) -> None:
    job = Job()
    job.fault("silent_data_corruption", 2, 2, what="weight")
    job.put(job.rank(0), "anomaly", 2, kind="replica", suspect=2, detail="rank 2 differs")
    job.put(job.rank(0), "anomaly", 3, kind="stagnation", detail="no diagnosis")
    truth = truth_of(job, tmp_path)
    found = grade_run(truth, DIAGNOSERS["alarms"](truth, 1), WITHIN)
    assert found.faults[0].grade is Grade.RIGHT and found.faults[0].after_ns == 2 * NS and len(found.answers) == 1
    assert found.answers[0].at == truth.faults[0].begin + 2 * NS + WALL - BEGIN
