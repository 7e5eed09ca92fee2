"""What is said of a hang, from what the ranks' flight recorders held."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from counting import lines_run
from judging import verdict
from simulator import Job, Logs, Outage, clocks, simulate

from harness.report import figures as figures_of
from harness.report import hangs as of_hangs
from harness.timeline.timeline import Timeline

JOB = Job(nodes=3, steps=40, every=10)
DOWN = [Outage(17, "crash")]


def hangs(*told: dict[str, Any], outages: list[Outage] = DOWN) -> list[str]:
    """Each of `told` is one rank's event, told with its last line before the outage."""

    def bend(logs: Logs) -> None:
        for event in told:
            lines = logs.trainers(event["rank"], event.get("life", 0))[0]
            stamp = clocks(lines[-1])
            fields = {key: value for key, value in event.items() if key not in ("rank", "life")}
            lines.append(stamp | {"event": "flight_recorder", "group": "0", "over": False} | fields)

    card = verdict(simulate(JOB, outages, seed=3), bend)
    return figures_of.scores(card)["collectives"]["hangs"]


SUM = {"number": 51, "operation": "gloo:all_reduce", "code": "train.py:9 in _sum"}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((), []),
        (
            ({"rank": 0, **SUM}, {"rank": 2, **SUM}, {"rank": 1, **SUM, "number": 50, "over": True}),
            [
                "ranks 0, 2 waited in collective 51 (gloo:all_reduce, train.py:9 in _sum); "
                "rank 1 was still at 50 (gloo:all_reduce, train.py:9 in _sum)"
            ],
        ),
        (
            ({"rank": 0, **SUM, "code": ""},),
            ["rank 0 waited in collective 51 (gloo:all_reduce); ranks 1, 2 reported nothing"],
        ),
        (
            tuple({"rank": rank, **SUM} for rank in range(3)),
            [
                "ranks 0, 1, 2 waited in collective 51 (gloo:all_reduce, train.py:9 in _sum); "
                "no rank was missing from it"
            ],
        ),
    ],
)
def test_who_waited_and_for_whom(told: tuple[dict[str, Any], ...], expected: list[str]) -> None:
    assert hangs(*told) == expected


def test_each_process_tells_of_one_hang_and_groups_are_apart() -> None:
    twice = [{"rank": rank, "life": life, **SUM} for rank in (0, 1, 2) for life in (0, 1)]
    assert len(hangs(*twice)) == 2
    found = hangs({"rank": 0, **SUM}, {"rank": 1, **SUM, "group": "1", "number": 7})
    assert len(found) == 2 and "collective 7 " in " ".join(found)


def test_thousands_of_groups_are_work_that_grows_with_them_and_some_are_shown() -> None:
    def found(groups: int) -> list[str]:
        told = [
            {"group": str(n), "number": n, "operation": "sum", "rank": 0, "process": 0, "at": n} for n in range(groups)
        ]
        epochs = [SimpleNamespace(size=2, processes=(0, 1))]
        return of_hangs.hangs(cast(Timeline, SimpleNamespace(collectives=told, epochs=epochs, diagnoses=[])))

    assert lines_run(lambda: found(4000)) < 2.2 * lines_run(lambda: found(2000))
    shown = found(4000)
    assert shown[0] == "rank 0 waited in collective 0 (sum); rank 1 reported nothing"
    assert shown[of_hangs.HANGS_SHOWN :] == ["3900 more hangs of process groups"]


def test_the_job_s_own_answers_about_hangs_are_shown() -> None:
    """Before the first collective there is nothing else."""
    told = [
        {"kind": "hang", "who": [{"rank": 1}], "why": "rank 1 did not come to the rendezvous"},
        {"kind": "hang", "who": [{"node": "node0"}], "why": "x" * 5000},
        {"kind": "crash", "who": [{"rank": 0}], "why": "exit code 1"},
    ]
    found = of_hangs.hangs(cast(Timeline, SimpleNamespace(collectives=[], epochs=[], diagnoses=told)))
    assert found[0] == "the job named rank 1: rank 1 did not come to the rendezvous"
    assert found[1].startswith("the job named no rank: xxx") and len(found[1]) < 400 and len(found) == 2
