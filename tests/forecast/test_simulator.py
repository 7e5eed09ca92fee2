"""The simulator against closed forms and published figures, and what must hold of any job."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from counting import lines_run
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.forecast import published_vectors
from harness.forecast.job_model import DAY_S, Cause, Gaps, Job, Origin, Value, default_settings
from harness.forecast.published_vectors import VECTORS, Vector, check_all, markdown
from harness.forecast.simulator import ACCOUNTS, simulate
from harness.theory import closed_forms

FEW = settings(max_examples=15)


def given_(*values: float) -> Value:
    return Value(values, Origin.GIVEN, "test")


def job(
    rate: float = 6.5,
    *,
    nodes: int = 256,
    days: float = 10,
    detection: float = 0,
    restart: tuple[float, ...] = (300,),
    takes_node: bool = False,
    counted: int | None = None,
    settings: Mapping[str, float] | None = None,
) -> Job:
    """`rate`: failures per 1,000 node-days."""
    known = default_settings() | {"checkpoint_every": given_(600), "spares": given_(0), "together": given_(0)}
    known |= {name: given_(value) for name, value in (settings or {}).items()} | {"restart": given_(*restart)}
    cause = Cause("any", rate / 1000, given_(detection), given_(*restart), counted, takes_node)
    return Job(nodes, days * DAY_S, (cause,), known)


jobs = st.builds(
    lambda rate, nodes, detection, restart, takes_node, values: job(
        rate, nodes=nodes, days=2, detection=detection, restart=tuple(restart), takes_node=takes_node, settings=values
    ),
    rate=st.floats(0, 20),
    nodes=st.integers(1, 600),
    detection=st.floats(0, 500),
    restart=st.lists(st.floats(0, 500), min_size=1, max_size=3),
    takes_node=st.booleans(),
    values=st.fixed_dictionaries(
        {
            "checkpoint_every": st.floats(300, 20_000),
            "checkpoint_stall": st.floats(0, 300),
            "spares": st.integers(0, 20),
            "repair": st.floats(0, 1e5),
            "queue": st.just(math.inf) | st.floats(0, 1e5),
            "smallest": st.floats(0.1, 1),
            "pace": st.floats(0.1, 1),
            "together": st.floats(0, 1),
            "together_nodes": st.integers(1, 5),
            "lemons": st.floats(0, 0.5),
            "lemons_found": st.floats(0, 1),
        }
    ),
)


@FEW
@given(jobs, st.integers(0, 100))
def test_the_accounts_are_the_whole_time_and_the_work_is_done(made: Job, seed: int) -> None:
    played, again = simulate([made], 5, seed), simulate([made], 5, seed)
    assert (played.time == again.time).all() and (played.outages == again.outages).all(), "the seed decides all"
    assert sum(played.accounts.values()) == pytest.approx(played.time, rel=1e-9)
    assert all((account >= -1e-6).all() for account in played.accounts.values())
    assert ((played.ettr >= 0) & (played.ettr <= 1 + 1e-12)).all()
    assert played.accounts["work"][played.done] == pytest.approx(made.work_s)
    assert (played.ettr[played.done] > 0).all()
    lost = sum(played.accounts[name] for name in ("detect", "wait", "restart", "lost"))
    assert played.outages.sum(axis=2) == pytest.approx(lost, abs=1e-3), "each outage has a cause"


@FEW
@given(st.floats(300, 1e6), st.floats(0, 300))
def test_without_failures_the_time_is_the_closed_form(every: float, stall: float) -> None:
    made = job(0, settings={"checkpoint_every": every, "checkpoint_stall": stall})
    saves = math.ceil(made.work_s / every) - 1
    assert simulate([made], 3, 1).time == pytest.approx(made.work_s + saves * stall)


@pytest.mark.parametrize(
    ("rate", "restart", "every", "stall"),
    [(6.5, 300, 600, 0), (20, 900, 1800, 60), (60, 600, 300, 10), (1, 60, 7200, 5)],
)
def test_the_mean_is_the_renewal_closed_form_within_its_standard_error(
    rate: float, restart: float, every: float, stall: float
) -> None:
    made = job(rate, restart=(restart,), settings={"checkpoint_every": every, "checkpoint_stall": stall})
    played = simulate([made], 300, 1)
    expected = closed_forms.renewal_time_s(made.work_s, every, stall, restart, made.mtbf_s)
    error = float(played.time.std() / math.sqrt(300))
    assert played.time.mean() == pytest.approx(expected, abs=3.5 * error + stall)


def test_detection_restart_waiting_and_lost_work_cost_what_they_take() -> None:
    made = job(1, nodes=100, detection=120, restart=(240,), takes_node=True, settings={"queue": 1000, "repair": 1e7})
    played = simulate([made], 100, 1)
    failures = played.failures[..., 0].sum()
    # Rarely a failure meets another one in its outage.
    for account, cost_s in (("detect", 120), ("restart", 240), ("wait", 1000 - 120)):
        assert played.accounts[account].sum() / failures == pytest.approx(cost_s, rel=0.02)
    assert played.waits.sum() == pytest.approx(failures, rel=0.02)
    played = simulate([job(1, nodes=100, settings={"checkpoint_every": 3600, "checkpoint_stall": 0})], 300, 1)
    lost = played.accounts["lost"].sum() / played.failures[..., 0].sum()
    assert lost == pytest.approx(1800, rel=0.1), "half an interval on average"


def test_a_failure_in_an_outage_does_not_bring_a_lost_node_back() -> None:
    """Half of the losses of a node are followed by a failure of another kind before they are detected."""
    made = job(2, nodes=100, detection=600, takes_node=True, settings={"queue": 5000, "repair": 1e7})
    other = replace(made.causes[0], per_node_day=1.0, takes_node=False, restart=given_(0), detection=given_(600))
    played = simulate([replace(made, causes=(*made.causes, other))], 30, 1)
    waited = played.accounts["wait"].sum() / played.failures[..., 0].sum()
    assert 5000 - 3 * 600 < waited < 5000 - 600


def test_what_is_better_is_never_worse_on_average_as_variants_meet_the_same_dice() -> None:
    usual = job(30, detection=60, counted=100)
    better = [usual.changed(f"{what}=0.5x") for what in ("failure_rate", "recovery", "checkpoint_stall")]
    ettr = simulate([usual, *better], 200, 1).ettr.mean(axis=1)
    assert (ettr[1:] > ettr[0]).all()
    usual = job(20, counted=50, restart=(100, 200, 900))
    played = simulate([usual, usual.changed("checkpoint_every=300s"), usual], 20, 1)
    assert (played.first[0] == played.first[1]).all()
    assert (played.time[0] == played.time[2]).all() and (played.time[0] != played.time[1]).any()


@FEW
@given(st.floats(1, 40), st.floats(1.05, 3), st.integers(0, 1000))
def test_more_failures_never_raise_goodput_in_expectation(rate: float, factor: float, seed: int) -> None:
    usual = job(rate, days=3)
    fewer, more = simulate([usual, usual.changed(f"failure_rate={factor}x")], 60, seed).ettr
    assert (more - fewer).mean() <= 3 * (more - fewer).std() / math.sqrt(60)


def test_spares_take_the_place_of_nodes_until_they_are_repaired() -> None:
    usual = job(20, nodes=200, takes_node=True, settings={"repair": 40_000})
    played = [simulate([usual.with_setting("spares", spares)], 50, 1) for spares in (0, 2, 30)]
    none, few, enough = (float(each.accounts["wait"].mean()) for each in played)
    assert none > 10 * few > 0 == enough
    none, few, enough = (int(each.waits.sum()) for each in played)
    assert none > few > 0 == enough
    usual = job(2, nodes=200, takes_node=True, settings={"spares": 4, "repair": 20_000, "together_nodes": 5})
    alone, together = simulate([usual, usual.with_setting("together", 1)], 50, 1).accounts["wait"].mean(axis=1)
    assert alone < 1 < together, "nodes lost together need as many"


def test_a_job_that_may_shrink_works_on_with_fewer_and_takes_nodes_back() -> None:
    shrinks = job(20, nodes=100, takes_node=True, settings={"repair": 40_000, "smallest": 0.5, "pace": 0.8})
    played = simulate([shrinks, shrinks.with_setting("smallest", 1)], 50, 1)
    assert played.accounts["wait"][0].max() == 0 < played.accounts["slower"][0].min()
    assert played.failures[0, :, -1].min() > 0 == played.failures[1].sum(axis=0)[-1]
    assert played.time[0].mean() < played.time[1].mean()
    values = {"queue": 40_000, "repair": 1e9, "smallest": 0.5, "pace": 0.8, "checkpoint_stall": 0}
    played = simulate([job(1, nodes=100, days=60, takes_node=True, settings=values)], 100, 1)
    lost = played.failures[..., 0].sum()
    assert played.accounts["slower"].sum() / lost == pytest.approx(40_000 * (1 - 0.99 * 0.8), rel=0.1)
    assert played.failures[..., -1].sum() == pytest.approx(lost, rel=0.1), "each node comes back once"


def test_lemons_are_put_aside_and_then_fewer_nodes_fail() -> None:
    made = job(20, settings={"lemons": 0.1, "lemon_factor": 20, "lemons_found": 1})
    failures = simulate([made, made.with_setting("lemons_found", 0), made.with_setting("lemons", 0)], 60, 1).failures
    found, kept, none = failures[..., 0].mean(axis=1)
    assert found < 0.8 * kept and kept == pytest.approx(none, rel=0.05), "the mean rate is that of all nodes"


@pytest.mark.parametrize("gaps", [Gaps(0.6), Gaps(trace=(0.1, 0.1, 0.1, 3.7)), Gaps(trace=(1.0,))])
def test_failures_that_follow_each_other_otherwise_are_as_many(gaps: Gaps) -> None:
    made = replace(job(6.5, days=60), gaps=gaps)
    played = simulate([made], 60, 1)
    assert played.failures[..., 0].mean() == pytest.approx(float(played.time.mean()) / made.mtbf_s, rel=0.08)


def test_few_measurements_make_a_wide_interval() -> None:
    one, three = (
        simulate([job(20, counted=None, restart=restart)], 200, 1).time.std()
        for restart in ((600.0,), (10.0, 590.0, 1200.0))
    )
    assert three > 1.5 * one
    known, counted = (simulate([job(20, counted=count)], 200, 1).time.std() for count in (None, 5))
    assert counted > 1.5 * known


def test_a_job_that_never_gets_on_ends_unfinished_and_too_much_to_play_is_refused() -> None:
    played = simulate([job(500, days=1, restart=(36_000,))], 10, 1)
    assert not played.done.any() and played.time == pytest.approx(10 * DAY_S)
    assert tuple(played.accounts) == ACCOUNTS and np.isinf(simulate([job(0)], 2, 1).first).all()
    with pytest.raises(UsageError, match="failures in each of"):
        simulate([job(6.5, nodes=10**9)], 10, 1)
    with pytest.raises(UsageError, match="histories"):
        simulate([job()] * 30, 10_000, 1)


def test_the_work_of_the_loop_grows_with_failures_and_not_with_nodes() -> None:
    def work(nodes: int, rate: float, days: float) -> int:
        made = job(rate, nodes=nodes, days=days)
        return lines_run(lambda: simulate([made], 20, 1))

    few = work(256, 20, 10)
    assert work(25_600, 0.2, 10) == pytest.approx(few, rel=0.05)
    assert work(256, 20, 20) == pytest.approx(2 * few, rel=0.3)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda each: f"{each.source}: {each.figure}")
def test_a_published_figure(vector: Vector) -> None:
    assert vector.low <= vector.ours() <= vector.high, f"published: {vector.published}"


def test_each_source_is_there_and_a_missed_figure_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    reproduced = [each for each in VECTORS if not each.why]
    assert len({(each.source, each.figure) for each in VECTORS}) == len(VECTORS)
    assert len(reproduced) >= 30 and len({each.source for each in reproduced}) == 6
    wrong = Vector("a source", "a figure", "1", 0.9, 1.1, "inputs", lambda: 2.0)
    monkeypatch.setattr(published_vectors, "VECTORS", [wrong])
    (row,) = check_all()
    assert not row.ok and "0.9 to 1.1, **missed**" in markdown([row])
