"""Judges one restart of a job, or all restarts of a job from several saves, from the event logs alone."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.evidence.made_as_asked import Asked
from harness.matrix import resume_comparison
from harness.matrix.moments import Moment
from harness.matrix.resume_comparison import CHANCE, Finding, Kind, Usual
from harness.matrix.sweep import BASE, NAMED_MAX, NONE_FORGOTTEN, REPEATS, RESUMED, Forgotten, Sweep, Tried
from harness.matrix.told_saves import told_saves
from harness.timeline import timeline
from harness.timeline.sorted_events import CLEAN_CODES
from harness.timeline.timeline import Timeline


def usual_of(folder: pathlib.Path, sweep: Sweep) -> Usual:
    """Reads from the event logs how much repeats of the uninterrupted run differ from the uninterrupted run. Raises
    `EventLogError` if an event log is unreadable."""
    run = timeline.load(folder / BASE)
    made = [timeline.load(folder / name) for name in REPEATS if (folder / name).is_dir()]
    found = [resume_comparison.apart(run, each) for each in made if not not_repeated(run, each)]
    if found:
        sweep.repeats, figures = all(same for same, _ in found), {name for _, off in found for name in off}
        sweep.apart = {name: max(off.get(name, 0.0) for _, off in found) for name in sorted(figures)}
    exact = sweep.repeats is not False
    return Usual(run, sweep.ends or [], exact, sweep.apart, told_saves(run), len(found))


def not_repeated(run: Timeline, made: Timeline) -> str:
    """Returns why `made` does not repeat the run `run` (for example, another seed), or an empty text if it does."""
    if made.outcome != "completed":
        return f"it {made.outcome or 'was cut off'}"
    return Asked.by(run, resumes_at=0).broken_by(made)


def not_as_asked(run: Timeline, made: Timeline, moment: Moment) -> str:
    """Returns how the restarted job `made` differs from the planned job, for example by its seed. The text is empty if
    the restarted job ran as planned."""
    asked = Asked.by(run, nodes=moment.nodes)
    if moment.ranks is not None:
        asked = _changed(asked, ranks_per_node=moment.ranks)
    if moment.also:  # the words stand at the end of the trainer's command or arguments
        given = made.plan.get("workload") or {}
        asked = _changed(asked, **{name: given[name] for name in ("trainer", "args") if name in given})
    return asked.broken_by(made)


def began_again(made: Timeline) -> str:
    worked = [each for each in made.processes if each.restored_step is not None or each.first_step is not None]
    if len(worked) == len({each.rank for each in worked}):
        return ""
    bad = [each for each in made.exits if each["rank"] is not None and each["code"] not in CLEAN_CODES]
    how = "".join(f": rank {each['rank']} had ended with exit code {each['code']}" for each in bad[:1])
    return f"its workers began once more by themselves{how}"


def _changed(asked: Asked, **fields: object) -> Asked:
    return replace(asked, plan={**asked.plan, "workload": {**(asked.plan.get("workload") or {}), **fields}})


def judge_restart(
    usual: Usual,
    moment: Moment,
    place: pathlib.Path,
    seconds: float,
    beside: Forgotten = NONE_FORGOTTEN,
    files: bool = False,
    tensors: Sequence[str] = (),
) -> Tried:
    """Judges one restart by comparison with the uninterrupted run. `seconds` is the duration of the restart. `beside`
    names the files, other than saves, that the restart did not write; if `files` is True, each one is an error.
    `tensors` names the tensors that differ between run and restart, in the first save that differs."""
    again = timeline.load(place)
    compare = resume_comparison.on_other_ranks if moment.elsewhere else resume_comparison.differences
    compared = compare(usual, again, moment)
    found = [*compared.found, *(Finding(Kind.FILES, each) for each in beside.words if files)]
    steps = len(np.intersect1d(again.steps.step, usual.run.steps.step))
    ended, odd = _ended(usual.run, moment, again, steps), not_as_asked(usual.run, again, moment)
    tried = Tried(moment, place.name, (), steps, seconds, compared.values, "" if odd else ended, beside)
    tried = replace(tried, to_end=again.outcome == "completed" and not ended, tensors=tuple(tensors))
    if odd:
        return replace(tried, compared={}, unsure=f"{odd}, so it was not the run's job")
    sure = [each for each in found if each.kind not in CHANCE]
    if usual.too_few and len(sure) < len(found) and not sure and not ended:
        return replace(tried, unsure=f"{found[0].words}; but {usual.too_few}")
    kept = found if usual.exact or not usual.too_few else sure
    if not kept and (again_why := began_again(again)):
        return replace(tried, compared={}, unsure=again_why)
    return replace(tried, found=tuple(_with_names(each, tensors) for each in kept))


def _with_names(found: Finding, tensors: Sequence[str]) -> Finding:
    if found.kind is not Kind.SAVED or not tensors or "other tensors" not in found.words:
        return found
    more = f" and {len(tensors) - NAMED_MAX} more" if len(tensors) > NAMED_MAX else ""
    return replace(found, words=f"{found.words}: {', '.join(tensors[:NAMED_MAX])}{more}")


def _ended(run: Timeline, moment: Moment, again: Timeline, steps: int) -> str:
    last, told = run.reached_step, int(again.steps.step.max(initial=0))
    reached = max(told, moment.step)
    if again.outcome == "completed" and not steps and reached < last:
        return f"it ended by itself and did no step: it went on from step {moment.step}, and the run did {last} steps"
    if again.outcome in ("failed", "aborted", None) or (not steps and reached < last):
        return f"it {again.outcome or 'was cut off'}: {again.outcome_reason}"
    if again.outcome == "completed" and reached < last:
        return f"it ended after step {reached}, and the run after step {last}"
    return f"it went on to step {told}, and the run ended after step {last}" if told > last else ""


def judge_sweep(sweep: Sweep, folder: pathlib.Path) -> Sweep:
    """Judges all restarts of a sweep (restarts from several saves) again, from the event logs of the restarts. Findings
    on missing files stay as they were, because no event log lists files."""
    usual = usual_of(folder, sweep)
    tried = [
        judge_restart(
            usual, each.moment, folder / RESUMED / each.folder, each.seconds, each.beside, sweep.files, each.tensors
        )
        for each in sweep.tried
    ]
    return replace(sweep, tried=tried, of_saves=resume_comparison.same_tensors(usual.run))
