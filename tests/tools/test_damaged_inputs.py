"""Some seconds of damaged event logs in every test run; `make damaged-inputs` is the long one."""

from unittest.mock import Mock

import pytest
from damaged_inputs import logs


def test_whatever_a_log_holds_it_is_judged_or_refused_with_its_place() -> None:
    found = logs.run(120, seed=3)
    assert found.broken == []
    assert found.read >= 60, "at least half of them must get past the readers"
    assert {"pass", "fail", "inconclusive"} <= found.verdicts.keys()


def test_a_crash_of_ours_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Mock(side_effect=KeyError("step"))
    with monkeypatch.context() as patch:
        patch.setattr("harness.evidence.deaths.ends_of", crash)
        scored = logs.run(3, seed=3)
    assert scored.broken and all("job: the scorer crashed: KeyError: 'step'" in line for line in scored.broken)
    monkeypatch.setattr(logs, "_followed", crash)
    followed = logs.run(3, seed=3)
    assert [line.split(": ", 1)[1] for line in followed.broken] == ["KeyError: 'step'"] * 3


def test_a_case_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(logs, "_followed", hangs)
    monkeypatch.setattr(logs, "CASE_CPU_S_MAX", 0.2)
    assert logs.run(1, seed=3).broken == ["3/0: took more than 0.2 s of CPU"]


@pytest.mark.parametrize("number", [229, 434])
def test_damage_that_once_made_a_score_raise(number: int) -> None:
    """Windows of runs whose steps are not in order: a step of a process that was over, a world ahead of itself."""
    tally = logs.Tally()
    logs.one(list(logs._seeds()), number, 72, tally)
    assert (tally.broken, tally.read) == ([], 1)
