"""What every fault must be, whatever it does: documented, checked, planned without chance, shipped with a scenario."""

import functools
import importlib.util
import json
import pathlib
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backends.contract import Capability, Verb
from harness.errors import CannotRunError, ScenarioError
from harness.faults.contract import Fault, fault_names, load_fault
from harness.plan.capabilities import check_capabilities
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.spec.scenario import load_scenario, parse_scenario

REQUIRED: dict[str, dict[str, Any]] = {"nic_bandwidth": {"rate": "10mbit"}, "nic_loss": {"loss_percent": 10}}
REQUIRED |= {
    "gpu_health": {"kind": "ecc"},
    "rdma": {"how": "error"},
    "storage_slow": {"latency": "20ms"},
    "hot_update": {"env": {"WORD": "new"}},
    "own_code": {"source": "def inject(context): ..."},
}
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@functools.cache
def shipped() -> dict[str, list[str]]:
    """Names of scenarios by the faults in them."""
    found: dict[str, list[str]] = {}
    for path in sorted(SCENARIOS.glob("*.yaml")):
        for spec in load_scenario(path).faults:
            found.setdefault(spec.kind, []).append(path.stem)
    return found


def entry(name: str, **more: Any) -> dict[str, Any]:
    target = {"rank": "any"} if load_fault(name).aims_at == "rank" else {"node": "any"}
    return {"id": "f", "fault": name, "when": {"step": 5}, "target": target} | REQUIRED.get(name, {}) | more


def plan_of(*faults: dict[str, Any], seed: int = 1) -> Plan:
    data = {"version": 1, "name": "x", "title": "X", "workload": {"nodes": 4, "ranks_per_node": 2}, "faults": faults}
    return make_plan(parse_scenario(yaml.safe_dump(json.loads(json.dumps(data))), "x.yaml"), seed, "local", "run")


@pytest.fixture(params=fault_names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_says_what_it_is_and_what_each_parameter_means_and_a_scenario_rehearses_it(name: str) -> None:
    fault = load_fault(name)
    assert (fault.__doc__ or "").strip() and fault.__doc__ != Fault.__doc__
    assert [key for key, each in fault.model_fields.items() if not each.description] == []
    assert fault.needs <= frozenset(Verb)
    assert shipped().get(name), f"no scenario in scenarios/ has the fault {name}"


def test_it_plans_and_describes_itself_from_its_defaults(name: str) -> None:
    plan = plan_of(entry(name))
    (planned,) = plan.faults
    assert plan.to_json()["faults"][0]["parameters"] == planned.action.model_dump(mode="json")
    text = planned.in_words()
    assert text and "{" not in text and "\n" not in text


def test_an_unknown_parameter_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ScenarioError) as error:
        plan_of(entry(name, severty=3))
    assert "severty" in str(error.value)
    assert all(key in str(error.value) for key in load_fault(name).model_fields)


@pytest.mark.parametrize("selector", [{"count": 0}, {"percent": 0}, None, [], "none"])
def test_an_empty_target_is_refused(name: str, selector: Any) -> None:
    with pytest.raises(ScenarioError):
        plan_of(entry(name, target={load_fault(name).aims_at: selector}))


def test_a_package_that_is_missing_is_told_before_anything_starts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = load_fault(name)
    assert set(fault.packages.values()) <= EXTRAS
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    everything = Capability(True, "", frozenset(Verb))
    if fault.lacks() and not fault.packages:
        pytest.skip(f"it needs more than a package: {fault.lacks()}")
    if not fault.packages:
        return check_capabilities(plan_of(entry(name)), everything)
    with pytest.raises(CannotRunError, match="is not installed: pip install "):
        check_capabilities(plan_of(entry(name)), everything)


SELECTORS = st.one_of(
    st.sampled_from(["any", "all"]),
    st.integers(0, 3),
    st.builds(lambda n: {"count": n}, st.integers(1, 4)),
    st.builds(lambda n: {"percent": n}, st.integers(1, 100)),
    st.builds(lambda n: {"not_rank": n}, st.integers(0, 7)),
)
WHENS = st.one_of(
    st.builds(lambda n: {"step": n}, st.integers(1, 199)),
    st.builds(lambda n: {"after": f"{n}s"}, st.integers(0, 99)),
    st.builds(lambda n, t: {"every": f"{n}ms", "times": t}, st.integers(1, 99), st.integers(1, 5)),
    st.builds(lambda n, t: {"rate": f"{n}/m", "times": t}, st.integers(1, 99), st.integers(1, 5)),
    st.just({"phase": "restore"}),
)
CHOICES = st.lists(st.tuples(st.sampled_from(fault_names()), SELECTORS, WHENS), min_size=1, max_size=4)


@given(CHOICES, st.integers(0, 2**63))
@settings(deadline=None)
def test_any_mixture_plans_the_same_twice_and_survives_json(choices: list[tuple[str, Any, Any]], seed: int) -> None:
    faults = [
        entry(name, id=f"f{number}", target={load_fault(name).aims_at: selector}, when=when)
        for number, (name, selector, when) in enumerate(choices)
    ]
    first, again = plan_of(*faults, seed=seed), plan_of(*faults, seed=seed)
    assert first == again
    restored = Plan.from_json(json.loads(json.dumps(first.to_json())))
    assert restored == first and restored.to_json() == first.to_json()
    for planned in first.faults:
        assert planned.targets and planned.in_words()
        assert all(0 <= target.node_index < 4 and 0 <= (target.rank or 0) < 8 for target in planned.targets)
