"""Spot and on-demand nodes: policies keep the deadline, and what is cheaper is said."""

import math

import numpy as np
import pytest
from forecast.test_simulator import job
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.forecast.money import breakeven_reclaims
from harness.forecast.spot_policies import POLICIES, Deadline, run_policy, spells
from harness.theory import closed_forms

plans = st.builds(
    lambda work, slack, change: Deadline(work, work * slack + 5 * change, change, 3.0),
    work=st.floats(5, 100),
    slack=st.floats(1.05, 3),
    change=st.floats(0.05, 0.5),
)


@settings(max_examples=15)
@given(plans, st.floats(0, 1), st.floats(0.1, 20), st.integers(0, 99))
def test_every_policy_does_the_work_by_the_deadline(plan: Deadline, share: float, spell_h: float, seed: int) -> None:
    there = spells(plan, 8, np.full(8, share), spell_h, np.random.default_rng(seed))
    for policy in POLICIES:
        hours = run_policy(policy, plan, there)
        assert hours.on_demand + hours.spot == pytest.approx(plan.compute_h)
        assert (hours.done <= plan.deadline_h + 1e-9).all(), policy
        assert (hours.paid_on_demand + hours.paid_spot >= plan.compute_h - 1e-9).all()


def test_without_spot_all_is_on_demand_with_it_all_is_spot_and_nobody_beats_who_knows_all() -> None:
    plan, dice, cost = Deadline(48, 60, 0.2, 3.14), np.random.default_rng(1), dict[str, float]()
    there = spells(plan, 100, np.full(100, 0.5), 6, dice)
    for policy in POLICIES:
        never, always = (run_policy(policy, plan, np.full((3, 600), on)) for on in (False, True))
        assert never.spot.max() == 0 and always.on_demand.max() == pytest.approx(0), policy
        assert always.paid_spot == pytest.approx(48.2)
        hours = run_policy(policy, plan, there)
        cost[policy] = float((3 * hours.paid_on_demand + hours.paid_spot).mean())
    assert cost["omniscient"] <= cost["uniform progress"] < cost["greedy"] < 3 * 48


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_spells_have_their_share_and_length(share: float) -> None:
    plan = Deadline(400, 1000, 0.5, 3.0)
    there = spells(plan, 60, np.full(60, share), 5, np.random.default_rng(1))
    assert there.mean() == pytest.approx(share, abs=0.04)
    begins = (there[:, 1:] & ~there[:, :-1]).sum()
    assert there.sum() * plan.tick_h / begins == pytest.approx(5, rel=0.1)


def test_break_even_is_where_time_on_spot_eats_up_its_price() -> None:
    made = job(5, nodes=64, settings={"checkpoint_every": 600, "checkpoint_stall": 0, "spot_return": 60})
    rate = breakeven_reclaims(made, 0.5, 300)
    assert rate is not None

    def time_s(reclaims: float) -> float:
        mtbf = 1 / (64 * (0.005 + reclaims) / 86_400)
        restart = (0.005 * 300 + reclaims * 360) / (0.005 + reclaims)
        return closed_forms.renewal_time_s(made.work_s, 600, 0, restart, mtbf)

    assert time_s(rate) == pytest.approx(2 * time_s(0), rel=1e-6)
    assert breakeven_reclaims(made, 1.0, 300) is None
    cheaper = breakeven_reclaims(made, 0.25, 300)
    assert cheaper is not None and cheaper > rate and math.isfinite(cheaper)
