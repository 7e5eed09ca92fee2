"""Makes the advice that follows a verdict: commands to run, or lines to add to the scenario."""

import math
import operator
from collections.abc import Iterator, Mapping

import numpy as np

from harness.evidence.deaths import ends_of
from harness.evidence.logs import Evidence
from harness.judge.assumption import AGAIN
from harness.judge.guarantee import of_a_plugin
from harness.judge.score import Scorecard
from harness.judge.verdict import Doubt, Verdict
from harness.report.commands import REHEARSALS, copied, run_again
from harness.report.words import gpu_seconds, one_line, seconds, words

S = 1_000_000_000
# Failures over what the job trains or writes. The runbook of a fault is about an outage.
OF_THE_STATE = (
    *("restart.", "loss", "result.", "save.", "saves.", "drill.", "second."),
    *("last_checkpoint.", "second_restart.", "files_beside_saves."),
)
STEPS_MAX = 8
MORE = 1.5  # times what its jobs took: they are set up, judged, and the host may be slower
UNDO = "Undo what the run may have left"
LONGER = "Give it more steps after the fault: workload: {steps: …}"
COMPARE = "Compare it with a fault-free run, whose losses show what is usual"
OF_A_DAY = f"{COMPARE}: without fault_free: false in the game day's file"
OF_A_RUN = f"{COMPARE}: loss_continuity: {{mode: exact}}, without against: itself"
NOT_BY_ITSELF = ("loss_continuity.against", "result.ranks_agree")  # another run without a fault-free one leaves it open
# By doubt, what would settle it; `: {run}`: how long that takes, and the command for it, which ends the step.
SETTLES: Mapping[str, str] = {
    Doubt.FAULT_FREE_SLOW: f"{AGAIN}: {{run}} --fresh-fault-free",
    Doubt.NOT_COMPARABLE: f"{AGAIN}: {{run}} --fresh-fault-free",
    Doubt.NOTHING_STRUCK: "See why the job does not start: its output is in logs/ of the run's folder",
    Doubt.RUN_CUT_SHORT: "Let it run to its end, or give it longer: abort: {wall_clock: …}",
    Doubt.UNMEASURED: LONGER,
}


def next_steps(card: Scorecard) -> list[str]:
    """Returns lines of advice on how to find the cause of a failure or settle an open question; none after a pass."""
    found = {Verdict.FAIL: _of_a_failure, Verdict.INCONCLUSIVE: _to_settle, Verdict.INVALID: _of_an_invalid_run}
    if card.verdict not in found:
        return []
    if card.evidence.run.outcome == "interrupted" and card.verdict is not Verdict.FAIL:
        return [f"It was stopped before its end; run it again: {_again(card)}"]
    if card.evidence.run.outcome is None and card.verdict is not Verdict.FAIL:
        return [f"{UNDO}, as its harness did not: chaos heal", f"Run it again: {_again(card)}"]
    return list(dict.fromkeys(map(one_line, found[card.verdict](card))))[:STEPS_MAX]


def _of_a_failure(card: Scorecard) -> Iterator[str]:
    run = card.evidence.run
    failures = {line.name for line in card.expectations if line.verdict is Verdict.FAIL}
    longest = max(run.episodes, key=lambda each: each.end - each.t_stop, default=None)
    late = failures & {"recovery_time.max", "recovery_time.first_step_max"}
    if late and longest and not card.evidence.slowed.degraded:
        phase, took = max(longest.phases_ns.items(), key=operator.itemgetter(1), default=("unknown", 0))
        told = f"{words(phase)}, {seconds(took / S)}"
        yield f"In the outage of {seconds((longest.end - longest.t_stop) / S)} this took longest: {told}"
    if any(name.startswith("wasted_gpu_hours") and name.endswith("by_faults") for name in failures):
        booked = card.evidence.ledger
        account, most = max(booked.by_faults.items(), key=operator.itemgetter(1))
        total = gpu_seconds(booked.wasted_by_faults / S)
        yield f"Of the {total} that faults cost, this cost most: {words(account)}, {gpu_seconds(most / S)}"
    if failed := [end for end in ends_of(run) if end.error and end.met]:
        first = min(failed, key=lambda end: end.at)
        yield f"The first error of the trainer itself, rank {first.rank} on {first.node}: {first.met}"
    struck = [fault.kind for fault in run.faults if fault.injected is not None]
    codes = [each.code for each in card.findings if each.verdict is Verdict.FAIL]
    failed_over = [code for code in codes if not of_a_plugin(code)]  # its family need not mean what ours does
    yield from (f"What this run did not keep: chaos guarantees {code}" for code in codes if code not in failed_over)
    of_the_state = [code for code in failed_over if code.startswith(OF_THE_STATE)]
    if any(not code.startswith("files_beside_saves.") for code in of_the_state):
        yield "What a restart must take up again, and what shows which part it did not: docs/resumes.md"
    for kind in dict.fromkeys(struck) if not codes or len(of_the_state) < len(failed_over) else ():
        yield f"When this happens for real, its runbook is named by: chaos faults {copied(kind)}"
    yield f"Once it is mended, run the same again: {_again(card)}"


def _to_settle(card: Scorecard) -> Iterator[str]:
    if card.evidence.run.not_undone:
        yield f"{UNDO}: chaos heal"
    low, high = round(_takes_s(card)), round(MORE * _takes_s(card))
    about = f"{low} to {high} s" if high < 180 else f"{low / 60:.0f} to {math.ceil(high / 60)} min"
    again, plain, steps = f" (about {about}): {_again(card)}", "Run it again: {run}", list[str]()
    for finding in card.findings:
        if finding.verdict is Verdict.INCONCLUSIVE and finding.code in NOT_BY_ITSELF and (advice := _to_compare(card)):
            steps.append(advice)
        elif finding.verdict is Verdict.INCONCLUSIVE:
            steps.append(finding.settles or SETTLES.get(finding.doubt, plain))
    says_more = any(step != plain and step.endswith(": {run}") for step in steps)
    steps = [step.replace("{score}", f"chaos score {kept_as(card).partition('/')[0]}") for step in steps]
    yield from (step.replace(": {run}", again) for step in steps if step != plain or not says_more)


def _takes_s(card: Scorecard) -> float:
    return _whole_s(card.evidence) + sum(_restart_s(card, score) for score in ("last_checkpoint", "second_restart"))


def _whole_s(evidence: Evidence) -> float:
    """Returns the total seconds of a run and of its fault-free run. For one rehearsal of a game day, counts the game
    day's whole job."""
    job = evidence.run.beside.job
    if job is None:
        alone = evidence.fault_free or evidence.run
        return (evidence.run.end - evidence.run.begin + alone.end - alone.begin) / S
    planned = (job.plan.get("workload") or {}).get("steps")
    left = max(0, planned - job.reached_step) if isinstance(planned, int) else 0
    step_s = float(np.median(np.diff(job.progress.end))) / S if len(job.progress) > 1 else 0.0
    whole = (job.end - job.begin) / S + left * step_s
    return whole + ((evidence.fault_free.end - evidence.fault_free.begin) / S if evidence.fault_free else whole)


def _restart_s(card: Scorecard, score: str) -> float:
    told = card.scores.get(score, {}).get("seconds")
    if isinstance(told, float):
        return told
    job = card.evidence.run.beside.job
    return float(job.progress.end[0] - job.begin) / S if job and len(job.progress) else 0.0


def _to_compare(card: Scorecard) -> str:
    bounds = (card.evidence.run.plan.get("expect") or {}).get("loss_continuity")
    if card.evidence.run.beside.job and card.evidence.fault_free is None:
        return OF_A_DAY
    return OF_A_RUN if isinstance(bounds, Mapping) and bounds.get("against") == "itself" else ""


def kept_as(card: Scorecard) -> str:
    """Returns a run's name for use in commands: its folder's name or, for one rehearsal of a game day, the path in the
    game day's folder."""
    run = card.evidence.run
    day = str(run.plan.get("run_id") or card.run_id)
    rehearsal = run.beside.job is not None and card.run_id != day
    return f"{copied(day)}/{REHEARSALS}/{copied(card.run_id)}" if rehearsal else copied(card.run_id)


def _again(card: Scorecard) -> str:
    return run_again(kept_as(card))


def _of_an_invalid_run(card: Scorecard) -> Iterator[str]:
    reasons = " ".join(each.text for each in card.findings if each.verdict is Verdict.INVALID)
    faults = card.evidence.run.faults
    mine = [fault for fault in faults if f"fault {fault.id} " in reasons] or faults
    for fault in mine:
        lines = "fault.failed" if fault.error else "fault.effect"
        yield f"What {copied(fault.id)} reported: the lines {lines} of events/harness.jsonl in the run's folder"
    planned = {each.get("id"): str(each.get("fault")) for each in card.evidence.run.plan.get("faults") or ()}
    for kind in dict.fromkeys(fault.kind or planned.get(fault.id, "") for fault in mine):
        yield f"What the fault needs, and which backends can do it here: chaos faults {copied(kind)}"
    weak = [fault for fault in mine if not all(effect.get("ok") for effect in fault.effects)]
    for target in (target for fault in weak for target in fault.targets):
        log = f"logs/{target.get('node')}.{target.get('incarnation')}.log"
        yield f"It was measured, and did too little; what the node printed meanwhile: {log} in the run's folder"
    if len(weak) < len(mine):
        yield "What this machine lacks: chaos doctor"
