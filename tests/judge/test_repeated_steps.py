"""Steps that were done again after a restart, beside the first time that the job did them."""

import json
import pathlib
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge.test_linear import RATIO_MAX, Column
from judging import verdict
from mutants.bent import JOB, KILL
from simulator import Logs, Outage, change, simulate, steps
from typer.testing import CliRunner

from harness.campaign import own_log
from harness.cli.main import make_app
from harness.judge import weighing
from harness.judge.facts import repeated_steps
from harness.judge.facts.repeated_steps import Again, Executed, done_again
from harness.judge.thresholds import CALIBRATING_STEPS
from harness.judge.verdict import Verdict
from harness.log.reading import UNTOLD

LIVES = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=6)  # first step, and how many


def judged(found: list[Again]) -> list[tuple[Verdict, str]]:
    return [(weighing.answer(each), each.words) for each in repeated_steps.compared(found)]


def history(lives: list[tuple[int, int]], ranks: int = 2) -> list[tuple[int, int, int]]:
    """(life, rank, step): each life begins at a step that the one before it did, or after it."""
    rows, done = [], 0
    for life, (first, many) in enumerate(lives):
        begin = min(first, done + 1)
        rows += [(life, rank, begin + at) for at in range(many) for rank in range(ranks)]
        done = begin + many - 1
    return rows


def executed(rows: list[tuple[int, int, int]], bend: dict[tuple[int, int, int], float] | None = None) -> Executed:
    life, rank, step = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    loss = np.array([1.0 / (each[2] + each[1] / 7) * (bend or {}).get(each, 1.0) for each in rows])
    figures = {"loss": loss, "grad_norm": np.full(len(rows), UNTOLD), "lr": step * 0.001}
    return Executed(rank, step, life, figures, {"first": step * 16})


@given(LIVES)
def test_a_job_that_does_the_same_each_time_passes(lives: list[tuple[int, int]]) -> None:
    rows = history(lives)
    found = done_again(executed(rows))
    twice = {(life, step) for life, _, step in rows if any(other < life and s == step for other, _, s in rows)}
    assert {(each.life, step) for each in found for step in range(each.first, each.last + 1)} >= twice
    assert sum(each.steps for each in found) == len(twice)
    shown = sum(2 * each.steps for each in found)
    for each, (answer, _) in zip(found, judged(found), strict=True):
        passes = shown >= CALIBRATING_STEPS and not each.anew
        assert answer is (Verdict.PASS if passes else Verdict.INCONCLUSIVE)


@given(LIVES, st.data())
def test_one_loss_that_is_another_is_found_at_its_step(lives: list[tuple[int, int]], data: st.DataObject) -> None:
    rows = history(lives)
    again = [row for row in rows if any(row[1:] == other[1:] and other[0] < row[0] for other in rows)]
    if not again:
        return
    bent = data.draw(st.sampled_from(again))
    found = {each.life: each for each in done_again(executed(rows, {bent: 1.5}))}
    off = found[bent[0]].off["loss"]
    assert [off.words(row)[0] for row in np.flatnonzero(off.apart).tolist()] == [bent[2]]
    answers = dict(zip(found, judged(list(found.values())), strict=True))
    before = [each.steps for life, each in found.items() if life < bent[0]]
    reached = any(steps > bent[2] - found[bent[0]].first for steps in before)  # only as far after a restart
    shown = reached and 2 * sum(before) >= CALIBRATING_STEPS
    assert answers[bent[0]][0] is (Verdict.FAIL if shown else Verdict.INCONCLUSIVE)
    assert f"at step {bent[2]} the loss of rank {bent[1]}" in answers[bent[0]][1]


def test_a_job_that_begins_anew_has_restored_nothing() -> None:
    rows = history([(1, 10), (1, 10)])
    assert [answer for answer, _ in judged(done_again(executed(rows)))] == [Verdict.INCONCLUSIVE]
    ((answer, words),) = judged(done_again(replace(executed(rows), saved={1: 8})))
    assert answer is Verdict.FAIL and "it began anew, though step 8 was saved" in words


def test_nothing_is_shown_by_other_ranks_or_figures_that_are_told_once() -> None:
    told = executed(history([(1, 10), (5, 10)]))
    silent = replace(told, figures={name: np.full(len(told.step), UNTOLD) for name in told.figures})
    other = replace(told, size=2 - told.life, figures={**told.figures, "loss": told.figures["loss"] * (1 + told.life)})
    assert [judged(done_again(each))[0][0] for each in (silent, other)] == [Verdict.INCONCLUSIVE] * 2
    for name, none, end in ("digest", 0, "inputs"), ("first", -1, "in the data"), ("count", -1, "of samples"):
        odd, same = (done_again(replace(told, places={name: np.where(told.life, n, 5)}))[0].differ for n in (1, none))
        assert [text.endswith(end) for _, text in odd] == [True] and not same


@pytest.mark.parametrize(("every", "odd"), [(1, 1), (2, 0)])
def test_where_not_each_step_is_told_the_first_loss_after_a_restart_may_be_a_mean(every: int, odd: int) -> None:
    rows = [(life, rank, every * step) for life, rank, step in history([(1, 10), (5, 10)])]
    (again,) = done_again(executed(rows, {(1, 0, every * 5): 1.5}))
    assert np.count_nonzero(again.off["loss"].apart) == odd


def test_many_restarts_cost_no_more_than_their_steps() -> None:
    def touched(lives: int) -> int:
        step = np.tile([1, 2], lives).view(Column)
        figures = {name: step * 1.0 for name in ("loss", "grad_norm", "lr")}
        told = Executed(np.zeros_like(step), step, np.repeat(np.arange(lives), 2).view(Column), figures)
        Column.touched = 0
        assert len(done_again(told)) == lives - 1
        return Column.touched

    assert touched(400) <= RATIO_MAX * touched(200)


def noisy(sizes: list[float], more: dict[tuple[int, int, int], float] | None = None) -> list[tuple[Verdict, str]]:
    """Restarts that do 30 steps again on 2 ranks; in each, losses are off by up to this part of their size."""
    rows = history([(1, 60), *((31 + 30 * number, 60) for number in range(len(sizes)))])
    dice = random.Random(1)
    bend = {row: 1 + (sizes[row[0] - 1] if row[0] else 0.0) * dice.uniform(-1, 1) for row in rows}
    return judged(done_again(executed(rows, bend | (more or {}))))


def test_how_far_repetitions_are_off_is_the_band_of_later_ones_but_no_drift_becomes_usual() -> None:
    answers = [answer for answer, _ in noisy([1e-5, 1e-5, 2e-5, 1e-5])]
    assert answers == [Verdict.INCONCLUSIVE, *[Verdict.PASS] * 3]
    wrong = noisy([1e-5, 1e-5, 1e-3])
    assert [answer for answer, _ in wrong] == [Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.FAIL]
    answers = [answer for answer, _ in noisy([1e-6, 8e-6, 6e-5, 5e-4])]
    assert answers[:2] == [Verdict.INCONCLUSIVE, Verdict.PASS] and answers[-1] is Verdict.FAIL


def test_a_later_step_is_not_held_against_an_earlier_ones_band() -> None:
    """Rounding grows: what no restart before has reached is left open."""
    rows = history([(1, 60), (51, 70), (61, 100)])
    bend = {row: 1 + 1e-7 * (1 + row[2] - 51) for row in rows if row[0] == 1}
    bend |= {row: 1 + 1e-7 * 1.1 ** (row[2] - 61) for row in rows if row[0] == 2}
    assert [answer for answer, _ in judged(done_again(executed(rows, bend)))] == [Verdict.INCONCLUSIVE] * 2


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2.1, 2.0, 1.9, 1.8, 1.7, 1.6], Verdict.PASS),
        ([0.0] * 6, Verdict.INCONCLUSIVE),
        ([2.1], Verdict.INCONCLUSIVE),
        ([float("nan")] * 6, Verdict.INCONCLUSIVE),
    ],
)
def test_what_never_moves_shows_nothing(losses: list[float], expected: Verdict, tmp_path: pathlib.Path) -> None:
    life = "".join(line_of(step, loss) for step, loss in enumerate(losses, 10))
    before = "".join(line_of(step, 3.0 - step / 10) for step in range(1, 10))
    code, text = scored(tmp_path, before + life, life)
    assert code == (0 if expected is Verdict.PASS else 3), text


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("lr", 0.7, "the learning rate of rank 0"),
        ("digest", "9" * 64, "had other inputs"),
        ("loss", 7.0, "the loss of"),
    ],
)
def test_against_itself_needs_no_fault_free_run(field: str, value: object, words: str) -> None:
    history = simulate(JOB, KILL, seed=5)
    expect, name = {"loss_continuity": {"against": "itself"}}, "loss_continuity.against"
    healthy = verdict(history, expect=expect)
    assert [line.verdict for line in healthy.expectations if line.name == name] == [Verdict.PASS]
    assert "steps that were done once" in healthy.not_judged
    assert {*healthy.scores["loss_continuity"]["done_again"][0]} == {"restart", "first", "last", "steps", "apart"}

    def bend(logs: Logs) -> None:
        first = steps(logs.trainers(rank=0, life=-1)[0])[0]
        first[field] = value

    (line,) = (line for line in verdict(history, bend, expect).expectations if line.name == name)
    wanted = Verdict.INCONCLUSIVE if field == "loss" else Verdict.FAIL
    assert (line.verdict, words in line.reason) == (wanted, True)


@pytest.mark.parametrize(
    ("kind", "time", "again", "samples", "odd"),
    [
        ("rollback", 1, 1.05, {}, True),
        ("rank", 1, 1.05, {}, False),  # a new process: the end alone is compared
        ("rollback", 1, 1.00001, {}, False),  # rounding
        ("rollback", 1, 1.05, {"digest": "another batch"}, False),
        ("rollback", 1, 1.05, {"applied": False}, False),
        ("rollback", 0, 1.05, {}, False),  # the first time it is not the fault-free run's loss, either
    ],
)
def test_what_a_process_does_again_is_the_same_where_only_the_end_is_compared(
    kind: str, time: int, again: float, samples: dict[str, object], odd: bool
) -> None:
    def bend(logs: Logs) -> None:
        for rank in range(JOB.nodes):
            done = [line for lines in logs.trainers(rank=rank) for line in steps(lines, 12, 17)]
            change(done[6 * time :][:6], loss=lambda line: line["loss"] * again, **samples)

    expect = {"loss_continuity": {"mode": "final", "max_final_gap": 90, "samples": "reported"}}
    card = verdict(simulate(JOB, [Outage(17, kind, victim=1)], seed=5), bend, expect)
    (found,) = (each for each in card.guarantees if each.name == "restart.whole_state")
    assert (found.state == "open", "at step 12 the loss of rank" in found.why) == (odd, odd)


def test_a_run_without_a_step_done_again_proves_nothing() -> None:
    card = verdict(simulate(JOB, ()), expect={"loss_continuity": {"against": "itself"}})
    (line,) = (line for line in card.expectations if line.name == "loss_continuity.against")
    assert line.verdict is Verdict.INCONCLUSIVE and "no step was done again" in line.reason


def line_of(step: int, loss: float) -> str:
    return f"step {step} loss {loss:.6f}\n"


READ = ["--read", "lines: {regex: 'step (?P<step>[0-9]+) loss (?P<loss>[0-9.nan]+)'}"]


def scored(folder: pathlib.Path, *lives: str) -> tuple[int, str]:
    words = ["score", *READ]
    for number, text in enumerate(lives):
        (folder / f"{number}.log").write_text(text)
        words += ["--log", str(folder / f"{number}.log")]
    result = CliRunner().invoke(make_app(), words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_the_logs_of_any_job_are_read_after_the_fact(tmp_path: pathlib.Path) -> None:
    first, same = ("".join(line_of(step, 1 / step) for step in range(*span)) for span in ((1, 11), (6, 16)))
    code, text = scored(tmp_path, first, same)
    assert code == 0 and "15 steps, 1 restart" in text and "5 steps done again (6 to 10): the same" in text
    assert scored(tmp_path, first + same)[0] == 0, "one file for both"
    code, text = scored(tmp_path, first + same + "".join(line_of(step, 2 / step) for step in range(11, 16)))
    assert code == 1 and "at step 11 the loss of rank 0 was 0.090909, and 0.181818 the second time" in text
    code, text = scored(tmp_path, first)
    assert code == 3 and "0 restarts" in text
    code, text = scored(tmp_path, first, "".join(line_of(step, 1 / step) for step in range(11, 16)))
    assert code == 3 and "no step was done again after it: restart 1" in text and "0 of 1 restart judged" in text
    code, few = scored(tmp_path, first, "".join(line_of(step, 1 / step) for step in range(10, 12)))
    assert code == 3 and "? restart 1: 1 step done again" in few and "0 of 1 restart judged" in few
    assert "these logs do not tell it: gradient norm, learning rate, samples" in text
    assert "give the oldest log first" in scored(tmp_path, same, first)[1]
    code, text = scored(tmp_path, first, same, "".join(line_of(step, 1 / step) for step in range(40, 45)))
    assert code == 3 and "restart 2: steps 16 to 39 are in no log" in text


def test_several_logs_may_follow_one_another_and_programs_get_json(tmp_path: pathlib.Path) -> None:
    names = [str(tmp_path / name) for name in ("a.log", "b.log", "c.log")]
    for name, (first, last, of) in zip(names, ((1, 10, 1), (6, 15, 1), (15, 16, 2)), strict=True):
        pathlib.Path(name).write_text("".join(line_of(step, of / step) for step in range(first, last + 1)))
    result = CliRunner().invoke(make_app(), ["score", "--log", *names, *READ, "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 1 and told["verdict"] == "fail" and (told["steps"], told["restarts"]) == (16, 2)
    assert [each["verdict"] for each in told["judged"]] == ["pass", "fail"]
    assert "at step 15" in told["judged"][1]["result"]
    assert (told["restarts_not_judged"], told["doubts"]) == ([], []) and "samples" in told["untold"]
    alone = CliRunner().invoke(make_app(), ["score", "--log", names[0], *READ, "--json"])
    assert alone.exit_code == 3 and json.loads(alone.stdout)["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name one run"),
        (["last", "spot-evict"], "name one run"),
        (["last", "--json"], "chaos show last --json"),
        (["--log", "a.log"], "write --log A.log B.log … --read READER"),
        (["a.log", "--read", "megatron"], "write --log A.log B.log … --read READER"),
        (["--log", "a.log", "b.log", "--log", "c.log", "--read", "megatron"], "the oldest log first"),
        (["last", "--log", "/dev/null", "--read", "megatron"], "/dev/null"),
        (["--log", "a.log", "--read", "nobody"], "megatron"),
        (["--log", "a.log", "--read", "iter=(.*)"], "--read iter=(.*): no reader has this name; write one of: "),
        (["--log", "a.log", "--read", "lines: {regex: '('}"], "regular expression"),
        (["--log", "no-such.log", "--read", "megatron"], "No such file"),
        (["--log", "/dev/null", "--read", "megatron"], "/dev/null"),
        (["--log", "a.log", "--read", "huggingface"], "the whole history"),
    ],
)
def test_what_cannot_be_read_is_told(words: list[str], message: str) -> None:
    result = CliRunner().invoke(make_app(), ["score", *words])
    assert result.exit_code and message in str(result.exception)


@pytest.mark.parametrize(
    ("text", "lives", "doubt"),
    [
        (line_of(1, 1.0) + line_of(2, 0.5) + line_of(2, 0.5) + line_of(3, 0.3), 1, ""),
        (line_of(1, 1.0) + line_of(2, 0.5) + line_of(2, 0.4) + line_of(3, 0.3), 1, "step 2 is told more than once"),
        (line_of(1, 1.0) + line_of(2, 0.5) + line_of(9, 0.3), 1, "steps 3 to 8 are in no log"),
        (line_of(1, 1.0) + line_of(3, 0.3) + line_of(2, 0.5) + line_of(4, 0.3), 1, "step 2 is told after later ones"),
        (line_of(1, 1.0) + line_of(2, 0.5) + "best " + line_of(1, 1.0), 1, ""),
        (line_of(1, 1.0) + line_of(2, 0.5) + line_of(3, 0.3) + line_of(2, 0.5) + line_of(3, 0.3), 2, ""),
        (line_of(1, 1.0) + line_of(2, 0.5) + line_of(3, 0.333333)[:-4], 1, ""),
    ],
)
def test_what_a_log_leaves_open_is_told(text: str, lives: int, doubt: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(text)
    own = own_log.executed([path], own_log.reader_of("lines: {regex: 'step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)'}"))
    assert own.told.life.max() + 1 == lives and doubt in "".join(own.doubts) and bool(doubt) == bool(own.doubts)
    assert own.told.figures["loss"].min() >= 0.3, "a line that was cut is not read"


def saves(begin: int, end: int, saved: str, every: int = 10) -> str:
    said = (line_of(step, 1 / step) + (saved.format(step) if step % every == 0 else "") for step in range(begin, end))
    return "".join(said)


SAVED = "saved checkpoint step_{}.pt\n"
NEWEST = "whether restart 1 took the newest save"


@pytest.mark.parametrize(
    ("saved", "begin", "doubt", "untold"),
    [
        (SAVED, 31, True, False),
        ("Wrote out/checkpoint-{0}/model.safetensors at step {0}\n", 31, True, False),
        (SAVED, 1, True, False),
        (SAVED, 41, False, False),
        ("", 31, False, True),
        ("saved checkpoint of epoch 3\n", 31, False, True),
        ("saved checkpoint step_{}.pt failed\n", 31, False, True),
        ("saved plot of step {}\n", 31, False, True),
        ("saved best checkpoint step_{}.pt\n", 31, False, True),
    ],
)
def test_a_restart_from_an_older_save_than_the_newest_is_told(
    saved: str, begin: int, doubt: bool, untold: bool, tmp_path: pathlib.Path
) -> None:
    code, text = scored(tmp_path, saves(1, 48, saved), saves(begin, 60, saved))
    assert (f"restart 1: it went back to step {begin}, though step 40 was saved" in text) == doubt
    assert (NEWEST in text) == untold
    assert code == (3 if doubt else 0)


def test_the_newest_save_is_the_one_that_was_there_before_the_restart(tmp_path: pathlib.Path) -> None:
    log = saves(1, 41, "") + SAVED.format(41) + saves(41, 49, "")
    code, text = scored(tmp_path, log, saves(41, 60, ""))
    assert code == 0 and NEWEST not in text
    code, text = scored(tmp_path, saves(1, 41, SAVED, 10) + saves(41, 48, "") + saves(41, 60, SAVED, 1))
    assert code == 0 and "1 of 1 restart judged" in text


def test_a_log_without_a_step_is_named(tmp_path: pathlib.Path) -> None:
    code, text = scored(tmp_path, saves(1, 41, ""), "error: no such file\n")
    assert code == 3 and "no step is in 1.log: whether the job was restarted there is not known" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"saved checkpoint step_{10**20}.pt", f"'step_{10**20}' means (1 line like this; the number is too large)"),
        (f"saved checkpoint step {10**12}", f"which step 'step {10**12}' means"),
        ("saved checkpoint step 1e20", "which step 'step 1e20' means"),
        (f"step {10**20} loss 0.1", f"which step 'step {10**20}' means"),
        (f'{{"step": {10**20}, "loss": 1}}', "which step"),
        (f"saved checkpoint step_{'9' * 1900}.pt", "which step 'step_999"),
        (f"saved checkpoint step_{'0' * 30}30.pt", ""),
        ("saved checkpoint of step 30 as checkpoint_30.pt", ""),
        ("step 31 took 1732950000000000000 ns; lr 1e-20", ""),
    ],
)
def test_a_number_that_no_step_can_have_is_told(line: str, said: str, tmp_path: pathlib.Path) -> None:
    before, after = ("".join(line_of(step, 1 / step) for step in range(*part)) for part in ((1, 48), (31, 60)))
    code, text = scored(tmp_path, f"{before}{line}\n", after)
    assert code == 0 and said in text and ("which step" in text) == bool(said)
