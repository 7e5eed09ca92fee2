"""Imports go one way, by folder (see the design: data flows one way)."""

import ast
import functools
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted(path for package in ("harness", "reference_trainer") for path in (ROOT / package).rglob("*.py"))

NAMES = "trainers.checkpoints.shared.names"  # text in, a number out
ANYBODY = {"errors", "extras", "units", "parameters", "programs", "plugins", "nvml", "mesh", NAMES}
_JUDGING = {"log", "node.emitter", "timeline", "evidence", "judge.bounds", "judge.facts", "judge", "theory"}
_FACTS = {"log", "node.emitter", "timeline", "evidence", "judge.bounds", "judge.thresholds", "theory"}
_ACTING = {"log", "node.emitter", "node", "backends", "faults", "trainers", "trainers.checkpoints"}

_TRUNK = _ACTING | _JUDGING | {"spec", "plan", "run", "report", "report.words"}

# A wing imports the trunk and never another wing. What judges in a wing is pure: logs, judged runs and its like.
WINGS = {
    "adopt": (),
    "diagnosis": ("injected", "grading", "scores", "built_in", "bounds", "question"),
    "explore": ("operations", "file_systems", "crash_states", "disk", "answers"),
    "forecast": ("spot_policies",),
    "fuzz": ("outcome", "sequential_test", "coverage"),
    "gameday": ("codes", "day_verdict", "attach.attached_verdict"),
    "gate": ("baseline_comparison", "change_points", "objectives", "t_distribution", "two_runs_difference"),
    "matrix": ("restart_log", "resume_comparison", "moments", "told_saves"),
    "monitoring": ("spans",),
    "preflight": (),
}
# What each room may import, besides itself and `ANYBODY`.
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in ANYBODY},
    "mesh": {"node.emitter"},
    "node.emitter": set(),
    "node.observer": {"node.emitter"},
    "theory": set(),
    "events": {"node.emitter"},
    "log": {"node.emitter"},
    "timeline": {"log", "node.emitter"},
    "evidence": {"log", "node.emitter", "timeline", "judge.thresholds"},  # nothing there is rated
    "judge.thresholds": set(),
    "judge.bounds": {"judge.thresholds", "node.emitter"},
    "judge.facts": _FACTS,  # no verdict in there
    "judge": _FACTS | {"judge.facts"},
    "report.words": {"timeline"},  # the names of phases
    "report.charts": {"report.words"},  # plain data in, a picture out
    "report": _JUDGING | {"report.words", "report.charts"},
    "node": {"node.emitter"},
    "backends": {"log", "node.emitter", "node"},
    "trainers.checkpoints": {"log", "node.emitter", "node.observer"},  # the format of the observer's ledgers
    "faults": {"log", "node.emitter", "node", "backends", "trainers.checkpoints"},
    "trainers": {"log", "node.emitter", "node", "backends", "trainers.checkpoints"},
    "spec": _ACTING,
    "plan": _ACTING | {"spec"},
    "run": _ACTING | {"spec", "plan"},
    "campaign": _TRUNK,
    # What commands share, and those of the trunk. The one file that collects all commands stands on top of the house.
    "cli": _TRUNK | {"report.charts", "campaign"},
    "cli.main": {"cli", "run", "report.words", *WINGS},
    "__main__": {"cli.main"},
    # It calls the command line; a command of the caller becomes a workload.
    "api": {"cli", "report", "report.words", "spec", "adopt"},
    "api.testing": {"backends", "faults", "node"},  # stand-ins for the tests of a fault
    "": set(),
}

# Each engine is a wing with two rooms: its backend, and its side of `--attach`. The trunk finds both by name alone.
ENGINES = {path.parent.name for path in (ROOT / "harness" / "backends").glob("*/backend.py")} - {"local"}
for engine in ENGINES:
    MAY_IMPORT[f"backends.{engine}"] = MAY_IMPORT["backends"] | {"backends"}
    MAY_IMPORT[f"attach.{engine}"] = {"log", "node", "backends", f"backends.{engine}"}
MAY_IMPORT["attach"] = set()
MAY_IMPORT["object_store"] = {"node", "trainers"}
MAY_IMPORT["preflight.node_program"] = {"node.emitter"}
MAY_IMPORT["explore.node_program"] = {"node.observer"}
_BASELINE = {"answer", "view", "incident", "links", "outages", "slowness", "signs"}
_NEUTRAL = {"diagnosis.answer", "diagnosis.view", "diagnosis.baseline"}
for wing, judging in WINGS.items():
    pure = {f"{wing}.{name}" for name in judging}
    MAY_IMPORT[wing] = MAY_IMPORT["cli"] | {"cli"} | pure
    MAY_IMPORT |= {name: {"log", "timeline", "evidence", "judge", "judge.facts"} | pure for name in pure}

for name in WINGS["diagnosis"]:
    MAY_IMPORT[f"diagnosis.{name}"] |= _NEUTRAL
MAY_IMPORT["diagnosis.bounds"] = {"judge.bounds"}
MAY_IMPORT["diagnosis.question"] |= {"judge.thresholds"}
MAY_IMPORT["diagnosis"] |= _NEUTRAL | {"diagnosis.incident"}
MAY_IMPORT["diagnosis.injected"] |= {"faults"}  # each says the right answers about it
MAY_IMPORT |= {"diagnosis.answer": {"log"}, "diagnosis.view": {"log"}}
# The baseline sees a part of the log, and nothing that reads the rest of it.
for name in ("incident", "links", "outages", "slowness", "signs", "baseline"):
    MAY_IMPORT[f"diagnosis.{name}"] = {f"diagnosis.{other}" for other in _BASELINE}

# A plug-in knows its contract and what its family shares, never a sibling.
PLUGINS = {
    "harness.faults": {"contract", "shared", "load"},
    "harness.judge.questions": set(),
    "harness.trainers.checkpoints": {"contract", "shared"},
    "harness.preflight.checks": {"contract"},
    "harness.diagnosis.readers": {"contract"},
    "harness.backends": {
        *("contract", "clock_offset", "network_calls", "storage_calls", "sidecar_network"),
        "attached",
        *("site_commands", "delivery", "run_folder", "cluster_base", "node_base"),
    },
}


def module_name(path: pathlib.Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_name(path) for path in FILES}


@functools.cache
def imports_of(path: pathlib.Path) -> set[str]:
    """The modules that a file imports, for type checks only as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in full}
    return found


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def room(module: str) -> str:
    name = module.removeprefix("harness").removeprefix(".")
    return max((place for place in MAY_IMPORT if inside(name, place)), key=len, default="")


def violations(module: str, imports: set[str]) -> list[str]:
    return [message for target in imports for message in _violations(module, target)]


def _violations(module: str, target: str) -> list[str]:
    if inside(module, "reference_trainer"):
        wrong = inside(target, "harness") and target not in ("harness", "harness.events")
        return [f"{target}: a trainer may import only harness.events"] * wrong
    if target.split(".")[0] in ("torch", "locust", "reference_trainer"):
        return [f"{target} is never imported inside the harness"]
    if not inside(target, "harness"):
        return []
    here, there = room(module), room(target)
    bad = []
    if there not in MAY_IMPORT[here] | ANYBODY | {here}:
        bad.append(f"{target}: {here or 'harness'} may import {', '.join(sorted(MAY_IMPORT[here] | ANYBODY))}")
    for family, shared in PLUGINS.items():
        if inside(module, family) and inside(target, family) and family not in (module, target):
            mine, theirs = (name.removeprefix(family + ".").split(".")[0] for name in (module, target))
            if theirs not in {mine, *shared} and mine not in shared:
                bad.append(f"{target}: a plug-in does not know its siblings")
    return bad


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_flow_of_data(path: pathlib.Path) -> None:
    assert violations(module_name(path), imports_of(path)) == []


def test_every_folder_has_its_rule_and_no_file_names_this_machine() -> None:
    folders = {path.name for path in (ROOT / "harness").iterdir() if (path / "__init__.py").exists()}
    assert folders <= MAY_IMPORT.keys()
    for path in FILES:
        assert "/home/" not in path.read_text() and "/root/" not in path.read_text(), path


def test_no_import_goes_in_a_circle() -> None:
    """Not even for types alone: what two modules need of each other belongs into a third."""
    graph = {module_name(path): imports_of(path) & MODULES for path in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module not in done:
            for target in graph[module]:
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_a_violation_is_seen() -> None:
    for module, imported in (
        ("harness.judge.questions.recovery_time", "harness.run.job"),
        ("harness.timeline.sorted_events", "harness.judge.score"),
        ("harness.faults.hang", "harness.faults.oom"),
        ("harness.backends.slurm.place", "harness.backends.docker.container"),
        ("harness.attach.slurm", "harness.backends.docker.engine"),
        ("harness.run.job", "harness.backends.docker.backend"),
        ("harness.node.rpc", "harness.backends.contract"),
        ("harness.spec.scenario", "harness.plan.making"),
        ("harness.report.charts.loss_curves", "harness.timeline.timeline"),
        ("harness.run.job", "torch"),
        ("reference_trainer.train", "harness.plan.making"),
    ):
        assert violations(module, {imported})
    assert not violations("reference_trainer.train", {"harness.events", "torch"})
    assert not violations("harness.faults.hang", {"harness.faults.contract", "harness.backends.contract"})


def test_what_runs_on_a_node_needs_only_the_standard_library() -> None:
    allowed = set(sys.stdlib_module_names) | {"harness", "__future__"}
    for room in ("node", "object_store", "preflight/node_program", "explore/node_program"):
        for path in (ROOT / "harness" / room).rglob("*.py"):
            assert {target.split(".")[0] for target in imports_of(path)} <= allowed, path


def test_each_folder_of_tests_runs_alone() -> None:
    """What several of them share lies in `tests/` or in a package: a helper in another folder is found by luck."""
    tests = ROOT / "tests"
    beside = {path.stem for folder in (tests, ROOT / "tools") for path in folder.iterdir()}
    folders: dict[str, set[pathlib.Path]] = {}
    for path in tests.rglob("*.py"):
        folders.setdefault(path.stem, set()).add(path.parent)
    for path in tests.rglob("*.py"):
        shared = {target.split(".")[0] for target in imports_of(path)} - beside
        assert all(path.parent in folders[name] for name in shared & folders.keys()), path
