"""What the harness no longer sees it accuses nobody of: the same breach is told at most, or gone."""

import json
import lzma
import pathlib
from collections.abc import Mapping

import pytest
from judge import test_seen_saves as seen
from judge.test_forged import REPORTS, judged, unpack
from judging import EXACT, EXPECT, expecting, together
from mutants.bent import BROKEN
from simulator import simulate

from harness.judge.guarantee import guarantees
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

UNSEEN = "checkpoints in their store"
BAD = (Verdict.FAIL, Verdict.INVALID)
OF_SAVES = {"saves.whole", "restart.saved", "drill.last_step"}
# By its source: the events, and the guarantees whose breach nothing else shows for sure
OWN: Mapping[str, tuple[set[str], set[str]]] = {
    "store": ({"checkpoint.published", "checkpoint.removed", "checkpoint.left", "files.left"}, OF_SAVES),
    "process table": ({"process.exit"}, {"job.left_with_notice"}),
    "engine": ({"node.allocated", "node.released"}, {"job.left_with_notice", "fault.kept_down", "fault.on_target"}),
    "strikes": ({"fault.injecting", "fault.taking"}, {"fault.in_time"}),
    "effects": ({"fault.effect", "fault.ended", "fault.traffic"}, {"fault.as_planned", "fault.effect_over"}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[pathlib.Path, Scorecard]:
    """All stored runs that fail or are invalid, and what is said of them."""
    folder = unpack(tmp_path_factory.mktemp("stored"))
    known = json.loads(lzma.decompress(REPORTS.read_bytes()))
    bad = [folder / case for case, report in known.items() if report["verdict"] in BAD]
    for broken in (each for each in BROKEN if each.verdict in BAD):
        bad.append(folder / broken.name)
        history = simulate(broken.job, broken.outages, seed=5)
        logs = expecting(history.logs(), EXPECT)
        broken.bend(logs)
        history.write(bad[-1], logs)
        simulate(broken.job, seed=99).write(bad[-1] / "fault-free")
    for number, (bends, _) in enumerate(seen.NONE):
        bad.append(folder / f"none-{number}")
        for place, bend in (("", together(seen.watched, *bends)), ("fault-free", seen.watched)):
            history = simulate(seen.JOB, () if place else seen.KILL, seed=99 if place else 5)
            logs = expecting(history.logs(), EXACT)
            bend(logs)
            history.write(bad[-1] / place, logs)
    cards = {path: judged(path) for path in bad}
    return {path: card for path, card in cards.items() if isinstance(card, Scorecard) and card.verdict in BAD}


def broken_in(card: Scorecard) -> set[str]:
    return {each.code for each in card.findings if each.verdict in BAD and each.code in guarantees()}


def without(events: set[str], run: pathlib.Path, copy: pathlib.Path) -> bool:
    lacks = False
    for path in (path for path in run.rglob("*") if path.is_file()):
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if not any(f'"{event}"'.encode() in line[:200] for event in events)]
        (copy / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
        (copy / path.relative_to(run)).write_bytes(b"".join(kept))
        lacks |= len(kept) < len(lines)
    return lacks


@pytest.mark.parametrize("source", OWN)
def test_without_what_the_harness_saw_nobody_is_accused_of_it(
    source: str, runs: Mapping[pathlib.Path, Scorecard], tmp_path: pathlib.Path
) -> None:
    """A run that passes without a sight of the store says so in its headline: it does not rest on the harness."""
    events, shown = OWN[source]
    gone = set[str]()
    for run, card in runs.items():
        if not without(events, run, tmp_path / run.name):
            continue
        after = judged(tmp_path / run.name)
        assert isinstance(after, Scorecard)
        gone |= broken_in(card) - broken_in(after)
        new = broken_in(after) - broken_in(card) - {"fault.struck"}  # without an effect nothing shows that it did
        assert not new, run.name
        sure = [each.text for each in after.findings if each.verdict in BAD and each.code in shown]
        assert not any("the harness" in text for text in sure), [run.name, *sure]
        if source == "store" and after.verdict is Verdict.PASS:
            states = {each.name: each.state for each in after.guarantees}
            assert states["saves.whole"] == "not judged" and UNSEEN in after.reasons[0], run.name
    assert gone == shown
