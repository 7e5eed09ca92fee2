"""A file that is not a whole fault yet is named, with what is missing in it."""

import sys
import types

import pytest

from harness import plugins
from harness.errors import UsageError
from harness.faults.contract import Fault, load_fault


class Unfinished(Fault):
    def describe(self, targets: object) -> str:
        return "nothing"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "harness/faults/mine.py defines no fault: its FAULT is missing"),
        ({"FAULT": Unfinished}, "harness/faults/mine.py: Unfinished does not define inject"),
    ],
)
def test_an_unfinished_file_is_told(contents: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("harness.faults.mine")
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, "harness.faults.mine", module)
    monkeypatch.setattr(plugins, "_names", lambda *_: ("mine",))
    with pytest.raises(UsageError) as error:
        load_fault("mine")
    assert str(error.value) == message
