"""Which files are missing where names hold numbers that differ from run to run."""

import time

import pytest

from harness.log.numbered_names import absent, pattern


@pytest.mark.parametrize(
    ("due", "there", "missing"),
    [
        ({"best.pt", "eval/1.json"}, {"best.pt", "eval/1.json", "more.txt"}, []),
        ({"best.pt", "final.json"}, {"final.json"}, ["best.pt"]),
        ({"eval/100.json", "eval/200.json"}, {"eval/100.json", "eval/205.json"}, []),
        ({"eval/100.json", "eval/200.json"}, {"eval/100.json"}, ["eval/200.json"]),
        ({"eval/100.json", "eval/200.json", "eval/300.json"}, {"eval/105.json"}, ["eval/200.json", "eval/300.json"]),
        ({"run-20260101_123456-k3x9q2ab/x.json"}, {"run-20260102_010101-9zz1aa0b/x.json"}, []),
        ({"3f2504e0-4f89-11d3-9a0c-0305e82c3301.bin"}, {"a1b2c3d4-aaaa-bbbb-cccc-0305e82c3301.bin"}, []),
        ({"epoch1.json"}, {"eval1.json"}, ["epoch1.json"]),
    ],
)
def test_one_file_under_another_number_stands_for_one(due: set[str], there: set[str], missing: list[str]) -> None:
    assert absent(due, there) == missing


@pytest.mark.parametrize("part", ["a", "a1", "1", "12345678-", "aA_", "f" * 7 + "g"])
def test_a_long_name_costs_no_more_than_its_length(part: str) -> None:
    def took_s(times: int) -> float:
        begin_s = time.process_time()
        pattern(part * times)
        return time.process_time() - begin_s

    assert min(took_s(400_000) for _ in range(2)) < 40 * max(min(took_s(40_000) for _ in range(3)), 0.01)
