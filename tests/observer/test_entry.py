"""How the observer gets into a process, and that it stays out of the way there."""

from __future__ import annotations

import pathlib

from observer import observing

FAKE_TORCH = "LOADER = __loader__\n"


def test_a_script_without_torch_is_not_touched(tmp_path: pathlib.Path) -> None:
    script = "import sys; print([name for name in sys.modules if name.startswith('harness.')])"
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path), tmp_path)
    assert (code, out, err) == (0, "['harness.node', 'harness.node.observer', 'harness.node.observer.imports']\n", "")
    assert not (tmp_path / "events").exists()


def test_a_hidden_sitecustomize_still_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import sys; sys.theirs = __file__\n")
    env = observing.environment(tmp_path, PYTHONPATH=str(tmp_path / "theirs"))
    script = "import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__)"
    assert observing.run(["-c", script], env, tmp_path) == (0, "True\n", "")


def test_children_of_a_process_are_observed_too(tmp_path: pathlib.Path) -> None:
    inner = "import sys; print('harness.node.observer.imports' in sys.modules)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    assert observing.run(["-c", script], observing.environment(tmp_path), tmp_path) == (0, "True\n", "")


def test_the_real_loader_is_given_back(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    script = "import torch; print(type(torch.LOADER).__name__, torch.__spec__.loader is torch.LOADER)"
    env = observing.environment(tmp_path)
    assert observing.run(["-c", script], env, tmp_path) == (0, "SourceFileLoader True\n", "")


def test_a_torch_that_has_nothing_we_know_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch").mkdir()
    for name in ("__init__", "optim/__init__", "optim/optimizer", "autograd"):
        path = tmp_path / "torch" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    script = "import torch.optim.optimizer, torch.autograd; raise SystemExit(7)"
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path, RANK="0"), tmp_path)
    assert (code, out, err) == (7, "", "")


def test_an_observer_that_cannot_begin_says_so_and_steps_aside(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    script = "import harness.node.observer.imports as i; i.pkgutil = None; import torch; print('trained')"
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path), tmp_path)
    assert (code, out) == (0, "trained\n") and err.count("not observed") == 1


def test_without_the_switch_nothing_is_on_the_path(tmp_path: pathlib.Path) -> None:
    script = "import sys; print([name for name in sys.modules if name.startswith('harness')])"
    env = observing.environment(tmp_path, observed=False, CHAOS_EVENTS=str(tmp_path / "events"))
    assert observing.run(["-c", script], env, tmp_path) == (0, "[]\n", "")
