"""Answers as events of the log: told by anybody in the job, checked like all events, and read with their times."""

import json
import pathlib
from typing import Any

import pytest
from diagnosis.known_jobs import BEGIN, WALL, Job

from harness.diagnosis.answer import WORDS_MAX, Answer, AnswersError, Decision, Kind, Suspect
from harness.diagnosis.built_in import DIAGNOSERS
from harness.diagnosis.grading import Grade, grade_run
from harness.diagnosis.injected import truth_of_run
from harness.diagnosis.readers.contract import build_reader, read_answers
from harness.errors import EventLogError
from harness.events import Emitter
from harness.log import reading
from harness.timeline import timeline

S = 10**9


def answered(job: Job) -> Job:
    """A rank names another one, and a launcher names a node."""
    who = [{"rank": 2, "node": "", "seen": "a newer field"}]
    job.put(job.rank(0), "diagnosis", 2, kind="hang", who=who, sure=0.5, decision="stop", why="x" * 5000)
    job.put(job.agent(1), "diagnosis", 3, kind="gpu", who=[{"node": "node2", "gpu": 0}], decision=None)
    return job


def test_answers_are_read_from_the_log_and_graded(tmp_path: pathlib.Path) -> None:
    job = Job()
    job.fault("hang", 2, 2)
    log = reading.read(answered(job).write(tmp_path) / "events")
    truth = truth_of_run("run", log)
    now = truth.faults[0].begin + WALL - BEGIN
    first = Answer(Kind.HANG, (Suspect(rank=2),), Decision.STOP, "x" * WORDS_MAX, now + 2 * S, None, 0.5)
    found = [first, Answer(Kind.GPU, (Suspect(node="node2", gpu=0),), at=now + 3 * S)]
    assert DIAGNOSERS["told"](truth, 1) == found
    assert [event["kind"] for event in timeline.build(log).diagnoses] == ["hang", "gpu"]
    (grade,) = grade_run(truth, found, 60 * S).faults
    assert (grade.grade, grade.after_ns, grade.decision_right) == (Grade.RIGHT, 2 * S, False)
    with (tmp_path / "events" / f"{job.rank(0)}.jsonl").open("a") as file:
        file.write('{"event": "diagnosis", "kind')  # a kill cut it
    told = read_answers(tmp_path / "events", build_reader("diagnosis"))
    assert sorted(told, key=lambda answer: answer.at or 0) == found


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"kind": "fire"}, 'kind must be "hang" or "straggler" or '),
        ({"kind": None}, "kind must be"),
        ({"who": "rank 1"}, "who must be a list of at most 1024 objects"),
        ({"who": [{"rank": -1}]}, "who.0.rank must be an integer from 0 to 131071, not -1"),
        ({"who": [{"node": 7}]}, "who.0.node must be a text of at most 1000 characters, not 7"),
        ({"who": [{}] * 2000}, "who must be a list of at most 1024 objects"),
        ({"sure": 1.5}, "sure must be a number from 0 to 1, not 1.5"),
        ({"sure": "nan"}, "sure must be a number from 0 to 1"),
        ({"decision": "pray"}, 'decision must be "restart-in-place" or '),
        ({"why": []}, "why must be a text"),
    ],
)
def test_hostile_values_are_refused_with_their_line(bad: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    job = Job(steps=1)
    job.put(job.rank(0), "diagnosis", 1, **{"kind": "hang"} | bad)
    events = job.write(tmp_path) / "events"
    with pytest.raises(EventLogError) as caught:
        reading.read(events)
    assert f"{job.rank(0)}.jsonl:3: diagnosis event: {said}" in str(caught.value)
    with pytest.raises(AnswersError) as refused:
        read_answers(events, build_reader("diagnosis"))
    assert f"{job.rank(0)}.jsonl:3: diagnosis event: {said}" in str(refused.value)


def test_any_trainer_may_tell_one(tmp_path: pathlib.Path) -> None:
    emit = Emitter(tmp_path / "trainer.jsonl", {"role": "trainer", "rank": 0})
    emit("diagnosis", kind="network", who=[{"link": "eth1"}], decision="evict-node", sure=1)
    emit.close()
    (answer,) = read_answers(tmp_path, build_reader("diagnosis"))
    assert (answer.kind, answer.who, answer.sure) == (Kind.NETWORK, (Suspect(link="eth1"),), 1)
    assert answer.at == json.loads((tmp_path / "trainer.jsonl").read_text().splitlines()[1])["wall_ns"]
