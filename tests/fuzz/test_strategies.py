"""Whatever is drawn can be planned, for each fault there is; a fault that is added is drawn without more ado."""

import json
import pathlib
from typing import Any

import pytest
from fuzz import stand_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from harness.backends.contract import Capability, Verb
from harness.faults import contract
from harness.faults.contract import Fault, build_fault, fault_names
from harness.fuzz import strategies
from harness.fuzz.schedules import LASTS_S_MAX, Base, key_of, renamed, without
from harness.fuzz.strategies import Space, draw, parameters, space_of
from harness.spec.scenario import parse_scenario
from harness.units import Duration

BY_PEOPLE = {"own_code", "hot_update"}  # need words that only a person can give
LEAVES = {"lemon_node"}  # needs a job that can do without a node


@pytest.fixture(scope="module")
def space() -> Space:
    return stand_in.space()


def test_each_fault_is_drawn_or_it_is_said_why_not(space: Space) -> None:
    assert space.kinds.keys() | space.undrawn.keys() == set(fault_names())
    assert space.undrawn.keys() >= BY_PEOPLE | LEAVES and all(space.undrawn.values())
    small = Base(parse_scenario(stand_in.TEXT.replace("nodes: 2", "nodes: 2, min_nodes: 1"), "x.yaml"), 7, "local")
    assert small.allows([{"id": "f1", "fault": "lemon_node", "when": {"step": 9}, "target": {"node": 0}}])


@pytest.mark.parametrize("kind", sorted(set(fault_names()) - BY_PEOPLE))
def test_parameters_of_each_fault_are_valid_and_vary(kind: str) -> None:
    drawn = draw(parameters(kind), 30, 1)
    assert all(build_fault(kind, values) for values in drawn)
    fields = contract.load_fault(kind).model_fields
    assert len({key_of([each]) for each in drawn}) > 1 or not any(key != "text" for key in fields)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_schedule_and_its_neighbours_can_be_planned(space: Space, data: st.DataObject) -> None:
    schedule = data.draw(space.schedules())
    for each in (schedule, data.draw(space.neighbours(schedule))):
        plan = space.base.plan(each)
        assert [fault.kind for fault in plan.faults] == [entry["fault"] for entry in each]
        lasts = [fault.action.lasts() for fault in plan.faults]
        assert all(each is None or each.s <= LASTS_S_MAX for each in lasts)
        written = parse_scenario(space.base.text(each), "x.yaml")
        assert [fault.id for fault in written.faults] == [entry["id"] for entry in each]


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_schedule_without_one_fault_follows_no_fault_that_is_gone(space: Space, data: st.DataObject) -> None:
    schedule = data.draw(space.schedules())
    for place in range(len(schedule)) if len(schedule) > 1 else ():
        assert space.base.allows(without(schedule, place))
    assert renamed(renamed(schedule)) == renamed(schedule)


def test_the_same_seed_draws_the_same_and_leaves_nothing_where_the_user_is(
    space: Space, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, again, other = (draw(space.schedules(), 5, seed) for seed in (3, 3, 4))
    assert json.dumps(first) == json.dumps(again) != json.dumps(other)
    assert not list(tmp_path.iterdir())


class Whirl(Fault):
    """A new fault, of which the search knows nothing."""

    how: str = Field("usual", description="Free words: only the default is drawn.")
    turns: int = Field(4, ge=1, le=1000, description="How many.")
    pause: Duration | None = Field(None, description="Between two.")
    share: float = Field(0.5, gt=0, le=1, description="Of them.")
    left: bool = Field(False, description="Which way.")

    @model_validator(mode="after")
    def _odd(self) -> Any:
        if self.left and self.turns < 4:
            raise ValueError("too few")
        return self

    def describe(self, targets: Any) -> str:
        return "whirls"

    def inject(self, targets: Any, context: Any) -> None: ...


def test_a_new_fault_is_drawn_by_its_fields_and_validators(monkeypatch: pytest.MonkeyPatch) -> None:
    real = contract.load_fault
    new = lambda name: Whirl if name == "hang" else real(name)  # noqa: E731
    for module in (contract, strategies):
        monkeypatch.setattr(module, "load_fault", new)
    drawn = draw(parameters("hang"), 60, 1)
    assert {key for values in drawn for key in values} == {"turns", "pause", "share", "left"}
    assert {values["turns"] for values in drawn if "turns" in values} <= {1, 2, 4, 8}
    assert all(Whirl.model_validate(values) for values in drawn)


def test_a_job_that_may_lose_a_node_is_not_left_without_one() -> None:
    text = stand_in.TEXT.replace("nodes: 2", "nodes: 2, min_nodes: 1")
    base = Base(parse_scenario(text, "x.yaml"), 7, "local")
    lose = {"id": "f1", "fault": "node_loss", "when": {"step": 9}, "target": {"node": 0}}
    assert base.allows([lose])
    assert not base.allows([lose, {**lose, "id": "f2", "target": {"node": 1}}])
    assert base.allows([lose, {**lose, "id": "f2", "target": {"node": 1}, "replacement": {"after": "1s"}}])


def test_a_fault_whose_verb_is_not_there_is_not_drawn() -> None:
    found = space_of(stand_in.base(), Capability(True, "", frozenset({Verb.KILL, Verb.REPLACE})))
    assert "node_loss" in found.kinds and "hang" not in found.kinds
    assert "'signal'" in found.undrawn["hang"]
