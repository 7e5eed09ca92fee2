"""What a rank says of its own GPU, and for what its node has to leave the job."""

from typing import Any

import pytest

from harness.events import nvml
from reference_trainer.gpu_watch import SLOWED_LOOKS, GpuWatch, Rules, Trouble

WELL: dict[str, Any] = {"ecc_uncorrected": 2, "nvlink_errors": 0, "throttle_reasons": 4}  # as at the first look


def judged(*looks: dict[str, Any], xids: tuple[int, ...] = ()) -> list[Trouble]:
    rules = Rules()
    found = rules.judge(nvml.Sample(0, **WELL), list(xids))
    return found + [trouble for look in looks for trouble in rules.judge(nvml.Sample(0, **WELL | look), [])]


@pytest.mark.parametrize(
    ("look", "found"),
    [
        ({"ecc_uncorrected": 3}, [Trouble("uncorrectable ECC errors", True)]),
        ({"lost": True}, [Trouble("it has fallen off the bus", True)]),
        ({"nvlink_errors": 1}, [Trouble("errors on its NVLinks", False)]),
        *((works, []) for works in ({}, {"ecc_corrected": 99}, {"temperature_c": 90}, {"busy_percent": 1.0})),
    ],
)
def test_a_gpu_that_is_worse_than_at_the_first_look_is_told(look: dict[str, Any], found: list[Trouble]) -> None:
    assert judged(look) == found and (found or judged(*[look] * 9) == [])


def test_clocks_must_be_held_down_for_a_while() -> None:
    hot = {"throttle_reasons": 0x40}
    assert judged(*[hot] * (SLOWED_LOOKS - 1), {}, hot) == []
    (trouble,) = judged(*[hot] * SLOWED_LOOKS)
    assert "0x40" in trouble.reason and not trouble.replace


@pytest.mark.parametrize(("xid", "replace"), [(79, [True]), (48, [True]), (74, [False]), (13, []), (43, [])])
def test_an_error_of_the_driver_is_told_but_for_those_of_a_program(xid: int, replace: list[bool]) -> None:
    assert [trouble.replace for trouble in judged(xids=(xid,))] == replace


def test_each_trouble_is_told_once_and_one_that_replaces_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(GpuWatch, "_watch", lambda self: None)
    watch = GpuWatch(lambda event, **fields: told.append((event, fields)), 3, 1)  # type: ignore[arg-type]
    assert not watch.must_leave(7)
    watch._found += [Trouble("hot", False), Trouble("lost", True), Trouble("hot", False)]
    assert watch.must_leave(8)
    watch._found.append(Trouble("lost", True))
    assert not watch.must_leave(9)
    assert [event for event, _ in told] == ["anomaly", "diagnosis"] * 2
    assert told[2][1]["kind"] == "gpu" and told[2][1]["suspect"] == 3 and told[2][1]["at_step"] == 8
    assert [fields["decision"] for event, fields in told if event == "diagnosis"] == ["ignore", "evict-node"]
