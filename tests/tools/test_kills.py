"""A few kills in every test run; `make kills` does hundreds."""

import os
import pathlib

import pytest
from kills.__main__ import FAULTS, WAYS, rehearse

from harness.backends.contract import backend_names


def test_runs_of_every_backend_can_be_killed() -> None:
    assert sorted(FAULTS) == sorted(backend_names())


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse is not open to this user")
def test_nothing_is_left_after_a_kill_and_heal(tmp_path: pathlib.Path) -> None:
    kills = rehearse(len(WAYS), 7, ["local"], tmp_path)
    assert {kill.way for kill in kills} == set(WAYS)
    assert [kill for kill in kills if kill.left or not kill.acted] == []
