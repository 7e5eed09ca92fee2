"""A small search on simulated jobs in every test run; `make simulated-search` is the long one."""

import pytest
import simulated_search
from simulator import Logs, Outage

from harness.fuzz.schedules import Base
from harness.spec.scenario import parse_scenario

BASE = Base(parse_scenario(simulated_search.TEXT, "x.yaml"), 1, "local")


def test_no_healthy_job_is_accused_and_no_breakage_passes() -> None:
    tally = simulated_search.run(12, 3, simulated_search.space())
    assert tally.wrong == []
    assert set(tally.caught) == set(simulated_search.BREAKAGES) and tally.verdicts.total() >= 8


def test_a_judge_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_search, "BREAKAGES", {"nothing at all": lambda logs: None})
    tally = simulated_search.Tally()
    simulated_search.one([Outage(17, "rank")], 1, tally)
    assert len(tally.wrong) == 1 and tally.wrong[0].startswith("nothing at all") and tally.wrong[0].endswith("passes")

    def accused(logs: Logs) -> None:
        simulated_search._loses_steps(logs)

    judged = simulated_search.judged
    monkeypatch.setattr(simulated_search, "judged", lambda outages, seed, bend=accused: judged(outages, seed, bend))
    simulated_search.one([Outage(17, "rank")], 1, tally)
    assert tally.wrong[1].startswith("healthy, ")


def test_faults_become_outages_by_what_their_contract_says() -> None:
    lose = {
        "id": "f1",
        "fault": "node_loss",
        "when": {"step": 12},
        "target": {"node": 1},
        "replacement": {"after": "1s"},
    }
    again = {"id": "f2", "fault": "node_loss", "when": {"following": "f1", "phase": "restore"}, "target": {"node": 0}}
    kill = {"id": "f3", "fault": "rank_kill", "when": {"step": 30}, "target": {"rank": 2}}
    found = simulated_search.outages_of([lose, {**again, "replacement": {"after": "1s"}}, kill], BASE)
    assert found == [Outage(12, "node", 1, "restore"), Outage(18, "rank", 2)]
