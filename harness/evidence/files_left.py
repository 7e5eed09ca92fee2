"""Lists the files, other than checkpoints, that existed at the end of a run and at the end of its fault-free run."""

from harness.evidence.logs import Evidence
from harness.timeline.timeline import Timeline


def listings(evidence: Evidence) -> tuple[frozenset[str], frozenset[str]] | str:
    """Returns the file names of the fault-free and of the judged run, or a text that says why they cannot be
    compared."""
    run, usual = evidence.run, evidence.fault_free
    if run.beside.job_goes_on:
        return "the job goes on after this rehearsal"
    if run.outcome != "completed":
        return "the job did not complete"
    if usual is None:
        return "there is no fault-free run to compare with"
    if flaw := evidence.new_work() or evidence.flaw(usual):
        return f"the fault-free run cannot be used: {flaw}"
    if run.epochs and run.epochs[-1].size != usual.epochs[-1].size:
        return f"it ended on {run.epochs[-1].size} ranks, and without faults on {usual.epochs[-1].size}"
    due, there = _listed(usual), _listed(run)
    if isinstance(due, str):
        return f"of the fault-free run, {due}"
    return there if isinstance(there, str) else (due, there)


def _listed(run: Timeline) -> frozenset[str] | str:
    if run.unseen:
        return f"the harness did not see all files: {run.unseen[0]}"
    if run.files_left is None:
        return "the log does not tell which files it left: another version made it, or it was cut"
    files, count = run.files_left["files"], run.files_left["count"]
    return frozenset(files) if len({*files}) == count else f"only {len(files)} of {count} files are told"
