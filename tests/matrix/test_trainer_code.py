"""The code that a sweep is of: each change of it is noticed, wherever the trainer lies."""

import pathlib

import pytest
import small_jobs

from harness.backends.contract import load_backend
from harness.matrix.trainer_code import code_of, is_known


@pytest.mark.parametrize("changed", ["train.py", "model.py", "parts/net.py"])
def test_a_change_of_a_trainer_outside_of_the_scenarios_folder_is_noticed(tmp_path: pathlib.Path, changed: str) -> None:
    for name in ("train.py", "model.py", "parts/net.py", "reports/run/copied.py", "reports/run/plan.json", "a/a.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    trainer = {"command": ["{python}", str(tmp_path / "train.py")], "scenario_dir": str(tmp_path / "a")}
    plan, backend = small_jobs.job("mine", [], trainer=trainer), load_backend("local")
    before = code_of(plan, backend)
    assert is_known(plan, before)
    (tmp_path / "reports/run/copied.py").write_text("a copy of a run is no code")
    assert code_of(plan, backend) == before
    (tmp_path / changed).write_text("other")
    assert code_of(plan, backend) != before
    elsewhere = small_jobs.job("mine", ["a-program-that-is-not-here"])
    assert not is_known(elsewhere, code_of(elsewhere, backend))
