"""The direction of data is a rule: who may import whom (see the design: data flows one way)."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "reference_trainer")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PLUGINS = ("harness.faults", "harness.backends", "harness.judge.scores")
SHARED = ("contract", "shared", "load", "agent", "clocks", "request_text", "network_calls", "storage_calls", "sidecar_calls", "calls")
JUDGES = ("harness.log", "harness.timeline", "harness.judge", "harness.theory", "harness.report")
ACTORS = (
    "harness.run",
    "harness.plan",
    "harness.spec",
    "harness.trainers",
    "harness.faults",
    "harness.backends",
    "harness.campaign",
    "harness.cli",
)


def module_name(path: pathlib.Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports_of(path: pathlib.Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def violations(module: str, imports: set[str]) -> list[str]:
    bad = []
    for target in imports:
        if inside(module, ("harness",)):
            if inside(target, ("torch", "locust")):
                bad.append(f"{target} is never imported inside the harness")
            if inside(target, ("reference_trainer",)):
                bad.append("the harness knows the trainer only as a command")
        if inside(module, JUDGES) and inside(target, ACTORS):
            bad.append(f"{target}: judging knows nothing of running")
        if module.startswith(PLUGINS) and module not in PLUGINS:
            family = next(p for p in PLUGINS if module.startswith(p))
            mine, theirs = (name.removeprefix(family + ".").partition(".")[0] for name in (module, target))
            if inside(target, (family,)) and target != family and theirs not in (mine, *SHARED) and mine not in SHARED:
                bad.append(f"{target}: a plug-in does not know its siblings")
        if (
            inside(module, ("reference_trainer",))
            and inside(target, ("harness",))
            and not inside(target, ("harness.events",))
            and target != "harness"
        ):
            bad.append(f"{target}: a trainer may import only harness.events")
    return bad


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_flow_of_data(path: pathlib.Path) -> None:
    assert violations(module_name(path), imports_of(path)) == []


def test_a_violation_is_seen() -> None:
    assert violations("harness.judge.scores.recovery_time", {"harness.run.job"})
    assert violations("harness.faults.hang", {"harness.faults.oom"})
    assert violations("harness.run.job", {"torch"})
    assert violations("reference_trainer.train", {"harness.plan.making"})
    assert not violations("reference_trainer.train", {"harness.events", "harness.events.Emitter", "torch"})


def test_the_emitter_needs_only_the_standard_library() -> None:
    allowed = set(sys.stdlib_module_names) | {"harness", "__future__"}
    for name in ("events", "errors"):
        imported = imports_of(ROOT / "harness" / f"{name}.py")
        assert {target.split(".")[0] for target in imported} <= allowed


def test_no_source_file_names_this_machine() -> None:
    for path in FILES:
        assert "/home/" not in path.read_text() and "/root/" not in path.read_text(), path
