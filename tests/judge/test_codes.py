"""Each reason has a code of its own, and each code is some reason's."""

import enum
import pathlib
import re

import pytest
from judging import verdict
from simulator import Job, simulate

import harness
from harness.gameday import codes as of_a_day
from harness.judge.verdict import Code, Doubt, Verdict

JOB = Job(nodes=2, steps=40)
FOLDER = pathlib.Path(harness.__file__).parent


@pytest.mark.parametrize(
    ("codes", "folders"), [(Code, ["judge"]), (Doubt, ["judge", "gameday"]), (of_a_day.Code, ["gameday"])]
)
def test_each_code_is_used_and_names_one_thing(codes: type[enum.StrEnum], folders: list[str]) -> None:
    files = [path for folder in folders for path in (FOLDER / folder).rglob("*.py") if path.name != "codes.py"]
    source = "\n".join(path.read_text() for path in files)
    used = set(re.findall(rf"\b{codes.__name__}\.([A-Z_]+)\b", source))
    assert used == set(codes.__members__), "an alias of another code is no member of its own"
    assert all(re.fullmatch(r"[a-z-]+\.[a-z_-]+", code) for code in codes)
    assert len(set(codes)) == len(codes.__members__)
    for name, code in codes.__members__.items():  # stored reports have the codes: none changes by itself
        assert re.sub("[._]", "-", code).endswith(name.lower().replace("_", "-"))


def test_a_scorecard_tells_the_codes_of_its_reasons() -> None:
    """The last rank did the step that all others did, too, but did not say so; no fault struck, but a bound waits."""

    card = verdict(simulate(JOB), lambda logs: logs.lose("step", step=[20], rank=1))
    told = [(each.verdict, each.code, each.doubt) for each in card.findings]
    assert (Verdict.FAIL, "steps.all", "") in told
    assert (Verdict.INCONCLUSIVE, "recovery_time.max", "doubt.unmeasured") in told
    assert {each.text for each in card.findings} == set(card.reasons)
