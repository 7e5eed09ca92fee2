"""Strikes at a job that somebody else started, with one that exists only here; what may not be done to it, and what it
wrote meanwhile."""

import json
import pathlib
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends import attached as contract
from harness.backends.attached import AttachedJob, Seen, Undo, all_stopped, refuse_unasked
from harness.campaign.own_log import reader_as
from harness.errors import ScenarioError, UsageError
from harness.gameday.attach import striking as running
from harness.gameday.attach.attached_verdict import LOSSES, judge_attached, not_judged
from harness.gameday.attach.job_log import JobLog, done_again
from harness.gameday.attach.strikes_file import AttachedDay, load_attached
from harness.gameday.attach.striking import LOG, check, run_attached
from harness.judge.verdict import Verdict
from harness.run import undo
from harness.run.stop import StopRequest

DAY: dict[str, Any] = {
    "version": 1,
    "name": "a",
    "title": "A",
    "progress": {"log": r"step (\d+)", "within": "1s"},
    "entries": [{"strike": "pause", "lasts": "1ms"}],
}


def only_others_step(job: Any) -> dict[str, list[str]]:
    """A struck node stays where it was; the others go on."""
    return {node: [f"step {7 if node in job.struck else job.steps}"] for node in job.nodes}


def log_begins_anew(job: Any) -> dict[str, list[str]]:
    return {node: [f"step {job.steps + 1000 * (node not in job.struck)}"] for node in job.nodes}


def each_steps(job: Any) -> dict[str, list[str]]:
    return {node: [f"step {job.steps}"] for node in job.nodes}


def probe(moment: str, *command: str) -> dict[str, Any]:
    return {"probes": [{"name": "mine", "command": list(command), "when": [moment], "every": "1s"}]}


class Pretended(AttachedJob):
    """Every look is a step, unless a node is paused or `stuck` is set after a strike."""

    name, verbs, allows_kill = "pretended", ("pause", "kill"), False

    def __init__(
        self,
        nodes: int = 2,
        deaf: bool = False,
        dies: int | None = None,
        stuck: bool = False,
        tails: Callable[[Any], dict[str, list[str]]] | None = None,
    ) -> None:
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.paused: set[str] = set()
        self.struck: list[str] = []
        self.deaf, self.dies, self.stuck, self.steps = deaf, dies, stuck, 0
        self.most, self.tails = 0, tails

    def look(self) -> Mapping[str, Seen]:
        if self.dies is not None and self.struck and not self.paused:
            return {node: Seen("ended", "", self.dies) for node in self.nodes}
        return {node: Seen("paused" if node in self.paused else "running") for node in self.nodes}

    def log_tails(self) -> Mapping[str, Sequence[str]]:
        self.steps += not self.paused and not (self.stuck and self.struck)
        whole = {"": ["step nan", f"loss 0.1 step {self.steps}"]}
        return self.tails(self) if self.tails else whole

    def undo_of(self, verb: str, node: str) -> Undo:
        return Undo("attached.docker", {"node": node})

    def act(self, verb: str, node: str) -> None:
        self.struck.append(node)
        if not self.deaf:
            self.paused.add(node)
        self.most = max(self.most, len(self.paused))


class TakenAway(Pretended):
    """What was struck is gone for some looks after it, and what takes its place is another life."""

    def __init__(self, looks: int, **more: Any) -> None:
        super().__init__(**more)
        self.looks = looks

    def look(self) -> Mapping[str, Seen]:
        self.looks -= bool(self.struck) and not self.paused
        gone = self.struck if self.looks > 0 and not self.paused else []
        return {**super().look(), **{node: Seen("gone") for node in gone}}

    def healed(self, verb: str, seen: Seen) -> bool:
        return True


def stand_in(job: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    """What undoes it here, and a reverter that has nothing to do."""
    for module in (running, undo):
        monkeypatch.setattr(module, "resolve", lambda action: lambda node: job.paused.discard(node))
    monkeypatch.setattr(running, "start_reverter", lambda run_dir: subprocess.Popen(["sleep", "60"]))


def went(
    job: Pretended, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, passes: bool = False, **changed: Any
) -> tuple[Verdict, str]:
    """Where the job is to pass, it has all the time it wants."""
    patient = {"progress": DAY["progress"] | {"within": "10m"}} if passes else {}
    day = AttachedDay.model_validate(DAY | patient | changed)
    monkeypatch.setattr(running, "EFFECT_S_MAX", 0.01)
    monkeypatch.setattr(running, "LOOK_EVERY_S", 0.01)
    stand_in(job, monkeypatch)
    check(day, job)
    run_attached(day, job, tmp_path / "run", 1, StopRequest())
    assert not job.paused, "whatever happens, nothing stays struck"
    records = [json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    result = judge_attached(records, sum(entry.strike is not None for entry in day.entries))
    return result.verdict, result.reasons[0]


@pytest.mark.parametrize(
    ("job", "changed", "verdict", "said"),
    [
        (Pretended(), {}, Verdict.PASS, "each of 1 strikes acted, was undone, and the job went on"),
        (Pretended(tails=each_steps), {}, Verdict.PASS, "each of 1 strikes acted"),
        (Pretended(tails=only_others_step), {}, Verdict.FAIL, "no progress for"),
        (Pretended(tails=log_begins_anew), {}, Verdict.FAIL, "no progress for"),
        (TakenAway(8, tails=each_steps), {}, Verdict.PASS, "each of 1 strikes acted"),
        (TakenAway(10**6, tails=each_steps), {}, Verdict.FAIL, "the job is not whole again: n0 is gone"),
        (Pretended(dies=0), {}, Verdict.PASS, "the job went on"),
        (Pretended(deaf=True), {}, Verdict.INVALID, "pause did not act on n0"),
        (Pretended(dies=1), {}, Verdict.FAIL, "n0 ended with 1"),
        (Pretended(stuck=True), {}, Verdict.FAIL, "no progress for"),
        (Pretended(), {"progress": None}, Verdict.INCONCLUSIVE, "nothing shows whether the job went on"),
        (Pretended(), {"progress": {"log": r"epoch (\d+)", "within": "20ms"}}, Verdict.INCONCLUSIVE, "no such number"),
        (Pretended(stuck=True), {"entries": DAY["entries"] * 2}, Verdict.FAIL, "no progress"),
        (Pretended(dies=0), {"entries": DAY["entries"] * 2}, Verdict.INCONCLUSIVE, "the job has ended with 0"),
        # A probe that does not hold ends it.
        (Pretended(), probe("before", "true"), Verdict.PASS, "each of 1 strikes acted"),
        (Pretended(), probe("before", "false"), Verdict.INCONCLUSIVE, "probe mine failed (before): ended with 1"),
        (
            Pretended(),
            probe("during", "sh", "-c", "echo no; exit 3"),
            Verdict.FAIL,
            "failed (during): ended with 3: no",
        ),
        (Pretended(), probe("during", "true"), Verdict.PASS, "each of 1 strikes acted"),
        (Pretended(), probe("after", "true"), Verdict.PASS, "each of 1 strikes acted"),
        (Pretended(), probe("after", "nothing"), Verdict.FAIL, "entry 1: probe mine failed (after): nothing"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (Pretended, dict)) else str(value),
)
def test_what_was_seen_decides(
    job: Pretended,
    changed: dict[str, Any],
    verdict: Verdict,
    said: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, reason = went(job, tmp_path, monkeypatch, verdict is Verdict.PASS, **changed)
    assert found is verdict and said in reason
    assert job.most <= 1 and bool(job.struck) is (said != "no such number" and "(before)" not in said)


def test_it_says_what_it_does(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, said = Pretended(), list[str]()
    stand_in(job, monkeypatch)
    monkeypatch.setattr(running, "LOOK_EVERY_S", 0.01)
    day = AttachedDay.model_validate(DAY | {"entries": [{"rest": "1ms"}, *DAY["entries"]]})
    run_attached(day, job, tmp_path / "run", 1, StopRequest(), said.append)
    assert [line.split(" s  ")[1] for line in said] == [
        "1. rest for 1ms",
        "2. looking whether the job goes on",
        f"2. pause of {job.struck[0]} for 1ms",
        "2. undone; waiting until the job goes on",
    ]


def test_stop_undoes_at_once_and_is_no_pass_nor_is_a_log_that_ends_early(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, stop = Pretended(), StopRequest()
    stand_in(job, monkeypatch)
    day = AttachedDay.model_validate(DAY | {"entries": [{"strike": "pause", "lasts": "1h"}]})
    struck = threading.Event()
    monkeypatch.setattr(Pretended, "act", lambda self, verb, node: (self.paused.add(node), struck.set()))
    threading.Thread(target=lambda: (struck.wait(), stop.ask()), daemon=True).start()
    run_attached(day, job, tmp_path / "run", 1, stop)
    records = [json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    assert not job.paused and records[-1]["outcome"] == "interrupted"
    whole = [{"what": "begun"}, {"what": "finished", "outcome": "completed", "reason": ""}]
    assert {judge_attached(each, 1).verdict for each in (records, [], whole)} == {Verdict.INCONCLUSIVE}


@pytest.mark.parametrize(
    ("nodes", "changed", "said"),
    [
        (1, {}, "50% of its 1 node is 0"),
        (2, {"entries": [{"strike": "pause", "nodes": 2}]}, "50% of its 2 nodes is 1"),
        (2, {"entries": [{"strike": "kill"}]}, "chaos.allow=kill"),
        (2, {"entries": [{"rest": "1s"}, {"strike": "disconnect"}]}, "entry 2: pretended: disconnect cannot be done"),
    ],
)
def test_what_may_not_be_done_is_refused_first(nodes: int, changed: dict[str, Any], said: str) -> None:
    job = Pretended(nodes)
    with pytest.raises(UsageError) as refused:
        check(AttachedDay.model_validate(DAY | changed), job)
    assert said in str(refused.value) and not job.struck


@given(st.integers(1, 5000), st.floats(0.1, 100))
def test_never_more_than_the_share(nodes: int, percent: float) -> None:
    day = AttachedDay.model_validate(DAY | {"limits": {"nodes": f"{percent}%"}})
    assert day.nodes_max(nodes) <= nodes * percent / 100 + 1e-6


def test_the_owner_decides() -> None:
    assert refuse_unasked("job 7", "kill", "so") and not refuse_unasked("job 7", "true", "so")
    for other in (None, "", "yes", "false", "TRUE"):
        with pytest.raises(UsageError, match="its owner must allow this first"):
            refuse_unasked("job 7", other, "so")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kubernetes:app", "at least one whole label"),
        ("kubernetes:app!=x", "at least one whole label"),
        ("kubernetes:", "kubernetes:SELECTOR"),
        ("dokcer:a=b", "did you mean docker"),
        ("docker", "'docker' does not say which job: write docker:KEY=VALUE, a label that all containers"),
        ("docker:", "does not say which job: write docker:KEY=VALUE"),
        ("7", "write docker:KEY=VALUE, slurm:JOBID or kubernetes:SELECTOR"),
        ("slurm:last", "write the id of a job"),
        ("docker:job", "write the whole label"),
    ],
)
def test_a_job_that_cannot_be_named_so(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        contract.attach(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workload: {nodes: 2}\nentries: [{rest: 5s}]\n", "with --attach write strikes"),
        ("entries: [{rest: 5s}]\n", "no entry strikes"),
        ("entries: [{strike: pause, rest: 5s}]\n", "exactly one of: strike, rest"),
        ("entries: [{strike: pause, lasts: 2h}]\n", "at most 1h"),
        ("entries: [{strike: pause}]\nprogress: {log: step}\n", "has 0 groups"),
        ("entries: [{strike: pause}]\nprogress: {log: '('}\n", "is not a regular expression"),
        ("entries: [{strike: reboot}]\n", "reboot"),
    ],
)
def test_mistakes_in_a_plan_are_told_with_their_place(text: str, said: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"version: 1\nname: a\ntitle: A\n{text}")
    with pytest.raises(ScenarioError) as wrong:
        load_attached(path)
    assert said in str(wrong.value) and "plan.yaml:" in str(wrong.value)


def test_a_process_that_waits_for_a_stopped_child_is_stopped_too() -> None:
    told = {"T": True, "tT": True, "TD": True, "": False, "D": False, "TS": False}
    assert {states: all_stopped(states) for states in told} == told


READER = reader_as({"lines": {"regex": r"step (?P<step>\d+) loss (?P<loss>\S+)"}})
SEEN: list[dict[str, Any]] = [
    {"what": "after", "entry": 0, "codes": {}, "seen": {}, "highest": 1, "now": 2},
    {"what": "finished", "outcome": "completed"},
]


def written(*lives: range, odd: int | None = None) -> list[str]:
    """A line a step; the last time, step `odd` has another loss."""
    return [
        f"step {step} loss {0.5 if step == odd and life is lives[-1] else 1 / step:.6f}"
        for life in lives
        for step in life
    ]


@given(st.integers(2, 9), st.lists(st.integers(1, 5), min_size=1), st.integers(0, 40))
def test_each_line_is_kept_once_in_order(window: int, moves: list[int], count: int) -> None:
    lines, at = [f"line {number}" for number in range(count)], 0
    with tempfile.TemporaryDirectory() as folder:
        log = JobLog(pathlib.Path(folder))
        for move in moves:
            at = min(count, at + min(move, window - 1))
            log.add({"node 0/1": lines[max(0, at - window) : at]})
        log.add({"node 0/1": lines[max(0, at - window) : at]}, last=True)
        kept = [path.read_text().splitlines() for path in pathlib.Path(folder).iterdir()]
    assert kept == ([lines[:at]] if at else [])


@pytest.mark.parametrize(
    ("lines", "same", "verdict"),
    [
        (written(range(1, 20), range(10, 25)), [True], Verdict.PASS),
        (written(range(1, 20), range(10, 25), range(18, 30)), [True, True], Verdict.PASS),
        (written(range(1, 20), range(10, 25), range(18, 30), odd=19), [True, False], Verdict.FAIL),
        (written(range(1, 20), range(18, 25), odd=18), [None], Verdict.PASS),
        (written(range(1, 20)), [], Verdict.PASS),
        # Two writers in one log: the second one's figures are held against nothing.
        (
            [each for line in written(range(1, 20), range(10, 25)) for each in (line, line + "9")],
            [True, None],
            Verdict.PASS,
        ),
    ],
)
def test_steps_done_again_must_be_like_the_first_time(
    lines: list[str], same: list[bool | None], verdict: Verdict, tmp_path: pathlib.Path
) -> None:
    JobLog(tmp_path).add({"": lines}, last=True)
    found = list(done_again(tmp_path, READER))
    assert [each["same"] for each in found] == same
    assert same != [True, None] or "more than once" in found[1]["text"]
    records = [*SEEN[:1], *found, *SEEN[1:]]
    assert judge_attached(records, 1).verdict is verdict
    assert (LOSSES in not_judged(records)) is (not same or None in same)
