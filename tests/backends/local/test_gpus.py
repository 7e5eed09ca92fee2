"""Which GPUs of this machine a virtual node gets. Which there are is stated here: few machines of tests have any."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.local.backend import gpus_of


@pytest.mark.parametrize(
    ("visible", "ranks", "expected"),
    [
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("GPU-a,GPU-b", 1, ["GPU-a", "GPU-b"]),
        ("5", 1, ["5", "5"]),
        ("0,1,2", 2, ["0,1", "2,0"]),
        ("0,1", 4, ["0,1", "0,1"]),  # the reference trainer uses no GPU then
        ("", 1, [None, None]),  # how people hide them
    ],
)
def test_nodes_have_gpus_of_their_own_while_there_are_enough(
    visible: str, ranks: int, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpus_of(node, ranks) for node in (0, 1)] == expected


def test_without_that_variable_nodes_get_what_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for found, expected in ([], None), (["nvidia1", "nvidia0"], "0,1"):
        there = [pathlib.Path("/dev", name) for name in found]
        monkeypatch.setattr(pathlib.Path, "glob", lambda *_, there=there: iter(there))
        assert gpus_of(0, 2) == expected


@given(count=st.integers(1, 9), nodes=st.integers(1, 9), ranks=st.integers(1, 9))
def test_no_two_ranks_of_a_node_share_a_gpu_and_none_is_left_idle(count: int, nodes: int, ranks: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
        given_out = [(gpus_of(node, ranks) or "").split(",") for node in range(nodes)]
    assert all(len(set(each)) == len(each) == min(ranks, count) for each in given_out)
    if ranks <= count:
        assert len({gpu for each in given_out for gpu in each}) == min(count, nodes * ranks)
