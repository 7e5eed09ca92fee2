"""The band of mode `envelope`: it accuses no healthy run, sees what lasts, and says from how much on."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import SAVES, bent, expecting, fault_free_of
from scorecards import assert_verdict
from simulator import Job, Logs, Outage

from harness.evidence import envelope, losses
from harness.evidence.envelope import DRIFTS, Envelope, left_early
from harness.evidence.logs import Evidence
from harness.evidence.losses import Curve, compare
from harness.evidence.made_as_asked import BEFORE, SAME
from harness.judge.facts.times import impossible
from harness.judge.score import Scorecard, judge
from harness.judge.thresholds import BEFORE_NS, TERMS_LEAST
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Floats, Timeline

STEPS = 240
PARTED = 60
ROUNDING = 1e-7


def curve(loss: Floats, grad_norm: Floats | None = None) -> Curve:
    none = np.zeros(len(loss), np.int64)
    norm = np.ones(len(loss)) if grad_norm is None else grad_norm
    told = loss.astype(np.float32).astype(np.float64)  # as trainers tell it
    return Curve(np.arange(1, len(loss) + 1), told, norm, np.full(len(loss), 0.1), *[none] * 6)


def training(rng: np.random.Generator, steps_: int = STEPS) -> Floats:
    return np.asarray(2 + 3 * np.exp(-np.arange(steps_) / 40) + rng.normal(0, 0.1, steps_))


def drift(rng: np.random.Generator, parted: int = 0, size: float = 0.02, growth: float = 0.5) -> Floats:
    """What rounding grows to, from the step on at which two runs part: half of it lasts, half is chance."""
    lasts, before = np.zeros(STEPS), 0.0
    for step in range(STEPS):
        before = lasts[step] = 0.98 * before + 0.2 * rng.normal()
    ages = np.clip(np.arange(STEPS) - parted, 0, 100)
    grown = np.minimum(size, ROUNDING * np.exp(growth * ages)) * (np.arange(STEPS) >= parted)
    return np.asarray(grown * (0.5 * lasts + 0.5 * rng.normal(size=STEPS)))


def drawn(fault_free: Floats, *others: Floats) -> Envelope:
    band = envelope._drawn(curve(fault_free), [curve(other) for other in others], "these", frozenset(), TERMS_LEAST)
    assert isinstance(band, Envelope)
    return band


def accused(band: Envelope, run: Floats) -> bool:
    found = compare(curve(run), band.fault_free)
    return any(rows.any() for rows in band.outside(found).values()) or band.lasts(found) is not None


def doubted(band: Envelope, run: Floats) -> bool:
    found = compare(curve(run), band.fault_free)
    return any(rows.any() for rows in band.too_soon(found).values())


def after(step: int, by: float) -> Floats:
    return np.asarray(np.where(np.arange(STEPS) >= step, by, 0.0))


def test_a_band_as_wide_as_the_loss_moves_is_none() -> None:
    alone = 100 + np.linspace(1.5, 0, STEPS)
    none = envelope._drawn(curve(alone), [curve(alone + after(PARTED, 0.51))], "these", frozenset(), TERMS_LEAST)
    assert none == "fault-free runs differ by as much as the loss changes, so they give no band"
    drawn(alone, alone + after(PARTED, 0.49))


def test_identical_repeats_leave_room_for_rounding_alone_and_three_of_them_for_nothing() -> None:
    alone = training(np.random.default_rng(1))
    band = drawn(alone, alone, alone)
    assert not accused(band, alone) and not accused(band, alone + after(PARTED, 1e-7))
    assert accused(band, alone + after(PARTED, 1e-5)), "0.0005 % is far beyond rounding"
    band = drawn(alone, alone, alone, alone)
    assert not accused(band, alone) and accused(band, alone + after(PARTED, 2e-7))


def test_rounding_takes_the_norm_of_a_larger_model_further() -> None:
    """sqrt(n) u of n parameters: 0.006 % of a million, 0.4 % of four thousand million."""
    alone = training(np.random.default_rng(1))
    other = curve(alone * (1 + after(PARTED, 0.001)))
    small, large = (envelope._rounding("loss", [compare(other, curve(alone))], curve(alone), n) for n in (2**20, 2**32))
    assert 0.5 * 2**10 * 2.0**-24 < (small / np.abs(alone)).min() < (small / np.abs(alone)).max() <= 2**10 * 2.0**-24
    assert large.max() > 30 * small.max(), "three times as far as the runs are apart"


def test_a_save_tells_how_many_parameters_there_are() -> None:
    runs: list[Any] = [
        SimpleNamespace(published=saves) for saves in ([{"tensor_bytes": 12 * 2**22}, {"tensor_bytes": None}, {}], [])
    ]
    assert [*map(losses.terms, runs)] == [2**22, 2**20]


def test_runs_that_differ_in_the_very_same_way_are_one() -> None:
    alone, rng = training(np.random.default_rng(1)), np.random.default_rng(2)
    one, two = alone + drift(rng), alone + drift(rng)
    assert [drawn(alone, *others).runs for others in ([one], [one, one, one], [one, two], [alone] * 3)] == [1, 1, 2, 3]


@pytest.mark.parametrize("others", [1, 2])
def test_chance_accuses_hardly_any_healthy_run(others: int) -> None:
    """Of runs that part at the first step and never come together again."""
    wrong = unsure = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        alone = training(rng)
        band = drawn(alone, *(alone + drift(rng) for _ in range(others)))
        run = alone + drift(rng)
        wrong, unsure = wrong + accused(band, run), unsure + doubted(band, run)
    assert wrong <= 2 and unsure <= 4


@pytest.mark.parametrize("told_every", [1, 10])
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_noise_of_kernels_that_grows_is_no_deviation_but_one_that_lasts_is(noise: float, told_every: int) -> None:
    """As on GPUs: from the first step on, of the loss's size, larger with time; a hole here and there."""
    wrong = missed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        alone = training(rng)
        alone[np.arange(STEPS) % told_every > 0] = np.nan

        def noisy(rng: np.random.Generator = rng, alone: Floats = alone) -> Floats:
            run = alone * (1 + noise * np.linspace(0.2, 1, STEPS) * rng.normal(size=STEPS))
            run[rng.integers(STEPS)] = np.nan
            return np.asarray(run)

        band = drawn(alone, noisy(), noisy())
        healthy = np.where(np.isnan(run := noisy()), alone, run)  # a hole of its own is another question
        wrong += accused(band, healthy)
        missed += not accused(band, healthy + after(PARTED, 20 * noise))
    assert (wrong, missed) == (0, 0)


def test_runs_with_another_batch_are_far_apart_and_the_band_says_so() -> None:
    """A trainer whose batch depends on the world size is another training with fewer ranks."""
    rng = np.random.default_rng(3)
    alone, slower = training(rng), training(rng) + 0.15
    band = drawn(alone, slower)
    assert not accused(band, alone + 0.3 * after(PARTED, 0.15)), "it trains with fewer ranks for a while"
    found = compare(curve(alone + after(PARTED, 1e-3)), band.fault_free)
    assert band.sees(found)[-1].percent > band.changes_by(band.sees(found)[0])


@pytest.mark.parametrize("lasting", [0.2, -0.2, 0.15])
def test_a_deviation_that_lasts_is_seen_below_the_band_of_a_step(lasting: float) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        alone = training(rng)
        band = drawn(alone, alone + drift(rng))
        assert accused(band, alone + drift(rng, PARTED, size=1e-7) + after(PARTED, lasting))


def test_what_it_says_it_would_see_it_sees() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        alone = training(rng)
        band, run = drawn(alone, alone + drift(rng)), alone + drift(rng, PARTED)
        sees = band.sees(compare(curve(run), band.fault_free))
        assert sees[0].first <= PARTED + 1 <= sees[0].last and sees[-1].last == STEPS
        for sight in sees:
            rows = slice(sight.first - 1, sight.last)
            for sign in (1, -1):
                off = run.copy()
                off[rows] += sign * sight.percent / 100 * 1.001 * abs(alone[rows].mean())
                assert accused(band, off)


def test_the_band_is_narrow_again_where_runs_are_close_again() -> None:
    rng = np.random.default_rng(5)
    alone = training(rng)
    falling = np.where(np.arange(STEPS) < 120, 1.0, 0.01)
    band = drawn(alone, alone + falling * drift(rng, growth=5.0))
    once = np.where(np.arange(STEPS) == 200, 0.1, 0.0)
    assert accused(band, alone + once) and not accused(band, alone + np.roll(once, -120) / 4)


def test_as_much_as_others_differ_by_so_soon_is_no_doubt() -> None:
    alone, once = training(np.random.default_rng(6)), np.where(np.arange(STEPS) == PARTED, 5e-3, 0.0)
    band, found = drawn(alone, alone), compare(curve(alone + once), curve(alone))
    largest = {name: float(found.apart(name).max()) for name in DRIFTS}
    for most, doubts in ((1, 0), (1 - 1e-9, 1)):
        soon = {name: np.full(STEPS, most * largest[name]) for name in DRIFTS}
        rows = replace(band, soon=soon).too_soon(found)
        assert [int(rows[name].sum()) for name in DRIFTS] == [doubts, 0], "only the loss differs at all"


# Fault-free runs that stop and go on, as the judge holds a run against them

JOB = Job(nodes=2, steps=80, every=10)
SMALL = Job(nodes=1, steps=80, every=10)
SAVED = 30
Change = Callable[[float], float]


def changed(job: Job, change: Change = float, first: int = 1, last: int = 1000) -> Timeline:
    """A fault-free run of these steps alone, with other losses in them, and no save after them."""

    def bend(logs: Logs) -> None:
        logs.lose("step", step=[step for step in range(1000) if not first <= step <= last])
        for line in logs.all("restored"):
            line["step"] = first - 1
        logs.lose(*SAVES, step=range(last + 1, 1000))
        for line in logs.steps():
            line["loss"] = change(line["loss"])

    return bent(job, bend)


def shrinks(change: Change) -> Timeline:
    """A job that shrinks at step 35 and goes on from step 30, whose losses are changed from there on."""

    def bend(logs: Logs) -> None:
        expecting(logs, {"loss_continuity": {"mode": "envelope"}})
        for line in logs.steps(SAVED + 1):
            line["loss"] = change(line["loss"])

    return bent(JOB, bend, outages=[Outage(35, "shrink", victim=1, regrow_after=20)], seed=5)


def judged(run: Change, calibration: Change, resumed: dict[str, Change] | None = None) -> Scorecard:
    """`resumed`: two more of those that change their size differ from it by a hair each."""
    runs: dict[str, Timeline] = {}
    if resumed:
        first = resumed["resumed-1"]
        resumed = resumed | {"resumed-2": lambda loss: first(loss) + 2e-9, "resumed-3": lambda loss: first(loss) + 3e-9}
        runs = {name: changed(SMALL, change, SAVED + 1) for name, change in resumed.items()}
        runs |= {BEFORE: changed(JOB, last=SAVED), SAME: changed(JOB, resumed[SAME], SAVED + 1)}
    return judge(Evidence(shrinks(run), fault_free_of(JOB), [changed(SMALL, calibration)], resumed=runs), "run")


def times(factor: float) -> Change:
    return lambda loss: loss * (1 + factor)


def test_runs_that_change_their_size_at_the_same_step_give_a_band_as_narrow_as_rounding() -> None:
    healthy = {SAME: float, "resumed-1": times(2e-7)}
    narrow = judged(times(2e-7), times(0.05), healthy)
    assert narrow.verdict is Verdict.PASS, narrow.reasons
    told = narrow.scores["loss_continuity"]
    assert "went on from step 30" in told["band"]
    most = max(each["percent"] for each in told["sees"])
    assert narrow.reasons[0].startswith(f"losses within the envelope band (off for good by {most:.2g} % would show)")
    assert_verdict(judged(times(0.02), times(0.05)), Verdict.PASS)
    card = judged(times(0.02), times(0.05), healthy)
    assert card.verdict is Verdict.FAIL and "loss differs from the fault-free run: " in card.reasons[0]


@pytest.mark.parametrize(
    ("run", "same", "other"),
    [
        (1e-3, 1e-3, 1e-3 + 2e-7),  # though the band has it, too
        (2e-7, 0.01, 2e-7),  # a run that resumes as it is may not widen its own band
    ],
)
def test_a_resume_that_changes_what_is_computed_fails(run: float, same: float, other: float) -> None:
    card = judged(times(run), times(0.05), {SAME: times(same), "resumed-1": times(other)})
    assert card.verdict is Verdict.FAIL, card.reasons
    assert "the resume by itself changes what is computed" in card.reasons[0] and "at step 31" in card.reasons[0]


def test_a_run_that_resumes_is_no_copy_of_the_run() -> None:
    run, other = (bent(JOB, seed=seed) for seed in (5, 6))
    assert not [each for each in impossible(run, [other], []) if "copy" in each.words]
    assert [each for each in impossible(run, [other], [], [run]) if "one log is a copy of the other" in each.words]


def test_a_change_of_size_that_changes_what_is_computed_is_no_pass_though_the_band_has_it_too() -> None:
    """Runs of two sizes differ by 0.1 %, and those that change their size by 5 % since then."""
    card = judged(times(0.05), times(1e-3), {SAME: float, "resumed-1": times(0.05)})
    assert_verdict(card, Verdict.INCONCLUSIVE, first="the change of size changes what is computed")
    card = judged(times(1e-3), times(1e-3), {SAME: float, "resumed-1": times(1e-3)})
    assert_verdict(card, Verdict.PASS)
    assert "the change of size by itself" in dict(card.not_judged)  # 0.1 % is what two sizes differ by at once


def test_a_change_of_size_that_shows_sooner_than_rounding_grows_is_no_pass() -> None:
    """Runs of two sizes are alike at first, and 5 % apart later on; those that change their size differ at once."""
    late = float(np.median(fault_free_of(JOB).steps.loss))

    def grown(loss: float) -> float:
        return loss * (1.05 if loss < late else 1 + 1e-7)

    card = judged(times(1e-3), grown, {SAME: float, "resumed-1": times(1e-3)})
    assert_verdict(card, Verdict.INCONCLUSIVE, first="the change of size changes what is computed")
    card = judged(times(2e-7), grown, {SAME: float, "resumed-1": times(2e-7)})
    assert_verdict(card, Verdict.PASS)
    assert "the change of size by itself" not in dict(card.not_judged)


def test_noisy_runs_that_resume_are_held_against_noise() -> None:
    """The steps before the save differ already, so the resume is held against what runs differ by from the start."""
    rng = np.random.default_rng(7)
    noise, told = lambda loss: loss * (1 + 1e-3 * rng.normal()), dict[float, float]()
    run = bent(
        JOB,
        lambda logs: expecting(logs, {"loss_continuity": {"mode": "envelope"}}),
        lambda logs: [line.update(loss=told.setdefault(line["step"], noise(line["loss"]))) for line in logs.steps()],
        outages=[Outage(35, "shrink", victim=1, regrow_after=20)],
        seed=5,
    )
    calm = {f"resumed-{n}": noisy(SMALL, rng, SAVED + 1) for n in (1, 2, 3)}
    calm |= {BEFORE: noisy(JOB, rng, last=SAVED), SAME: noisy(JOB, rng, SAVED + 1)}
    calibration = [noisy(SMALL, rng) for _ in range(2)]
    assert_verdict(judge(Evidence(run, fault_free_of(JOB), calibration, resumed=calm), "run"), Verdict.PASS)
    bad = calm | {SAME: changed(JOB, times(0.05), SAVED + 1)}
    card = judge(Evidence(run, fault_free_of(JOB), calibration, resumed=bad), "run")
    assert card.verdict is Verdict.FAIL and "the resume by itself" in card.reasons[0]


def noisy(job: Job, rng: np.random.Generator, first: int = 1, last: int = 1000) -> Timeline:
    told: dict[float, float] = {}
    return changed(job, lambda loss: told.setdefault(loss, loss * (1 + 1e-3 * rng.normal())), first, last)


@pytest.mark.parametrize("gone", [BEFORE, SAME, "resumed-1"])
def test_without_all_of_them_the_calibration_runs_are_the_band(gone: str) -> None:
    runs = {BEFORE: changed(JOB, last=SAVED), SAME: changed(JOB, first=SAVED + 1)}
    runs |= {"resumed-1": changed(SMALL, first=SAVED + 1)}
    del runs[gone]
    card = judge(Evidence(shrinks(float), fault_free_of(JOB), [changed(SMALL)], resumed=runs), "run")
    assert "1 other fault-free run (ranks: 1)" in card.scores["loss_continuity"]["band"]


@pytest.mark.parametrize(
    ("outside", "lasts", "struck", "told"),
    [
        ([12], None, 200, "step 12 is outside"),
        ([25], None, 200, ""),  # some rank did it when the fault had struck
        ([], (11, 15), 200, "steps 11 to 15 are outside"),
        ([], (11, 20), 200, ""),
        ([12], None, None, ""),  # no fault struck
    ],
)
def test_what_leaves_the_band_before_any_fault_is_no_fault_of_the_restart(
    outside: list[int], lasts: tuple[int, int] | None, struck: int | None, told: str
) -> None:
    step = np.arange(10, 30)
    faults = [] if struck is None else [SimpleNamespace(injected=struck * BEFORE_NS)]
    steps = SimpleNamespace(step=step, end=step * 10 * BEFORE_NS)
    run: Any = SimpleNamespace(faults=faults, steps=steps, beside=SimpleNamespace(earlier=()))
    spans = [(each, each) for each in outside] + ([lasts] if lasts else [])
    band: Any = SimpleNamespace(spans=lambda found: spans)
    assert left_early(run, band, SimpleNamespace(step=step)).startswith(told or "!") is bool(told)  # type: ignore[arg-type]
    run.beside.earlier = ("another rehearsal's fault",)
    assert not left_early(run, band, SimpleNamespace(step=step))  # type: ignore[arg-type]
