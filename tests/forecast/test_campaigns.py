"""A forecast held to campaigns that another simulator plays: nine of ten lie in the interval of 90 %."""

import numpy as np
import pytest
from campaigns import Campaign, plan_of, struck_steps
from simulator import Job, Outage, simulate

from harness.forecast.measured_inputs import NOT_RECOVERY, Measured, Recovery

CAMPAIGNS, SINGLE_RUNS = 100, 6
JOB = Job(steps=1500, every=10)
STEP_S = JOB.step_ms / 1e3


def outages(steps: list[int]) -> list[Outage]:
    """After these steps of progress; each goes back to the newest checkpoint."""
    saved = [0, *(step // JOB.every * JOB.every for step in steps)]
    return [Outage(step - back, "rank") for step, back in zip(steps, saved, strict=False)]


def single_run(dice: np.random.Generator, seed: int) -> tuple[Recovery, float]:
    """Its one recovery, and what a checkpoint stops training for."""
    job = Job(steps=60, every=JOB.every)
    truth = simulate(job, outages([int(dice.integers(20, 50))]), seed).truth
    (episode,) = truth.episodes
    phases = {name: ns / 1e9 for name, ns in episode.phases.items() if name not in NOT_RECOVERY}
    stall = sum(row.checkpoint_ns for row in truth.rows if row.survives) / 1e9 / job.nodes / (job.steps / job.every)
    return Recovery("rank_kill", phases), stall


@pytest.mark.slow
def test_nine_of_ten_campaigns_lie_in_the_interval() -> None:
    dice, inside, widths = np.random.default_rng(1), 0, []
    for seed in range(CAMPAIGNS):
        singles = [single_run(dice, 1000 * seed + place) for place in range(SINGLE_RUNS)]
        found = Measured(recoveries=[each for each, _ in singles], stalls=[stall for _, stall in singles])
        law = Campaign(JOB.steps * STEP_S, JOB.every * STEP_S, kinds=("rank_kill",))
        wanted = law.predicted(found, samples=300, seed=seed)
        widths.append(wanted.high - wanted.low)
        # The goodput of one, from the truth of its simulator.
        truth = simulate(JOB, outages(struck_steps(dice, JOB.steps, least=0)), seed).truth
        worked = sum(row.end - row.begin - row.checkpoint_ns for row in truth.rows if row.survives)
        span = max(row.end for row in truth.rows) - min(row.begin for row in truth.rows)
        inside += wanted.low <= (worked / (JOB.nodes * span)) <= wanted.high
    print(f"{inside} of {CAMPAIGNS} inside, half-width {50 * np.mean(widths):.1f} points")
    assert 0.86 * CAMPAIGNS <= inside <= 0.94 * CAMPAIGNS


def test_a_campaign_has_ten_faults_and_the_seed_decides_all_of_them() -> None:
    plans = [plan_of(seed, "local") for seed in range(1, 6)]
    assert all(len(plan.faults) >= 10 for plan in plans)
    assert plan_of(1, "local").faults == plans[0].faults != plans[1].faults
