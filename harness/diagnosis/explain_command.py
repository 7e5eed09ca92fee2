"""Defines the command `chaos explain-failure`, which says what broke first in a run, who, why, and what to do."""

from __future__ import annotations

import msgspec

from harness.campaign.run_store import Store
from harness.cli.output import print_json, say
from harness.cli.shared_options import REPORTS, JsonOption, ReportsOption, RunArg
from harness.diagnosis.answer import Decision
from harness.diagnosis.baseline import explain
from harness.diagnosis.incident import NS, Incident
from harness.diagnosis.view import View, view_of
from harness.log import reading
from harness.units import counted

SHOWN_MAX = 10  # incidents
TO_DO = {
    Decision.RESTART_IN_PLACE: "restart the workers where they are",
    Decision.RESTART_ELSEWHERE: "restart on another node",
    Decision.EVICT_NODE: "take the node out of the job if it stays so",
    Decision.ROLL_BACK: "go back to a checkpoint before it",
    Decision.STOP: "stop, and mend the program",
    Decision.IGNORE: "nothing; watch whether it comes again",
}


def explain_failure(run: RunArg, json: JsonOption = False, reports: ReportsOption = REPORTS) -> None:
    """Say what broke first in a stored run, who it was, why, and what to do.

    Reads only data that any cluster has: exit codes and signals, steps and their times, events of launchers, stacks of
    hung ranks, memory. Also prints the log lines that show the failure. The command does not know the plan or the
    faults, so it can be wrong: `chaos diagnose` grades its answers. Exits 0 whatever the answer.

    Example: chaos explain-failure last
    """
    view = view_of(reading.read(Store(reports).find(run) / "events"))
    incidents = explain(view)
    if json:
        print_json({"schema": 1, "incidents": [_values(each, view) for each in incidents]})
    elif not incidents:
        say(f"Nothing broke, as far as {counted(len(view.workers), 'worker')} and their launchers tell.")
    for number, each in enumerate(() if json else incidents[:SHOWN_MAX]):
        say(f"{'Then' if number else 'What broke first'}, {_s(view, each.begin):.2f} s after the start", "bold")
        say(f"  what   {each.kind} ({100 * each.sure:.0f} % sure)")
        say(f"  who    {'; '.join(map(str, each.who)) or 'nobody can be named'}")
        say(f"  why    {each.why}")
        say(f"  to do  {TO_DO[each.decision]}")
        for event in each.evidence:
            say(f"    {_s(view, event.at):9.2f} s  {event}", "dim")
    if len(incidents) > SHOWN_MAX and not json:
        say(f"… and {len(incidents) - SHOWN_MAX} more; --json shows all")


def _s(view: View, at: int) -> float:
    return max(0, at - view.begin) / NS


def _values(incident: Incident, view: View) -> dict[str, object]:
    answer: dict[str, object] = msgspec.to_builtins(incident.answer(view))
    evidence = [{"at_s": _s(view, event.at), "line": str(event)} for event in incident.evidence]
    return answer | {"begin_s": _s(view, incident.begin), "known_s": _s(view, incident.known), "evidence": evidence}
