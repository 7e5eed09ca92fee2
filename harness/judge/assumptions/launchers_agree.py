"""The logs of the launchers contradict neither each other nor the logs of their workers.

A worker starts after its launcher. A launcher logs only ends of worker processes that ran. A launcher logs its actual
exit code. All launchers of a process group log the same number of nodes and different node ranks. If each node has its
own rendezvous, as with torchft, each launcher may log node rank 0 of 1 node. The rendezvous round numbers that
launchers log increase without a gap. A contradiction that also occurs in a fault-free run is ignored.
"""

import itertools
from operator import itemgetter

from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.thresholds import APART_NS
from harness.timeline.lineage import Key
from harness.timeline.lookups import first_from, grouped, last_by
from harness.timeline.sorted_events import key_of
from harness.timeline.timeline import Process, Timeline
from harness.units import format_duration

CONTROL = "control"  # name of the rendezvous store's host in the log


def _began_before(run: Timeline) -> Reasons:
    began: dict[Key, int] = dict(sorted(((each.key, each.began) for each in run.launchers), reverse=True))  # first one
    for process in run.processes:
        early = began.get(process.key, process.started) - process.started
        if early > APART_NS + run.uncertainty_ns:
            yield f"rank {process.rank} on {process.node} began {format_duration(early)} before its launcher"


def _ended_as_another(run: Timeline) -> Reasons:
    known = {(*each.key, each.pid) for each in run.processes}
    places: dict[object, Process] = {(*each.key, each.local_rank, each.exited): each for each in run.processes}
    for end in run.exits:
        process, pid = places.get((*key_of(end), end.get("local_rank"), end["at"])), end.get("pid")
        if pid is not None and process is not None and (*key_of(end), pid) not in known:
            told = f"rank {process.rank} on {process.node} is process {process.pid}"
            yield f"{told}, but its launcher saw process {pid} end in its place"


def _ended_otherwise(run: Timeline) -> Reasons:
    ended = {key_of(end): end["code"] for end in run.exits if end["rank"] is None}
    for launcher in run.launchers:
        code = ended.get(launcher.key)
        if launcher.code is not None and code is not None and code >= 0 and code != launcher.code:
            told = f"the launcher on {launcher.key[0]} said that it ends with {launcher.code}"
            yield f"{told}, and its command ended with {code}"


def _met_otherwise(run: Timeline) -> Reasons:
    told = grouped((each.key, (met["at"], met)) for each in run.launchers for met in each.met)
    of_node = {key: sorted(met, key=itemgetter(0)) for key, met in told.items()}
    for epoch in run.epochs:
        members = {run.processes[row].key: row for row in epoch.processes}
        ranks: dict[int, str] = {}
        sizes: dict[int, str] = {}
        for (node, incarnation), row in sorted(members.items()):
            met = last_by(of_node.get((node, incarnation), []), run.processes[row].started) or {}
            sizes.setdefault(met.get("nodes", -1), node)
            other = ranks.setdefault(met.get("node_rank", -1), node)
            if other != node and "node_rank" in met and met.get("nodes") != 1:
                yield f"the launchers on {other} and {node} both tell that theirs is node {met['node_rank']}"
        sizes.pop(-1, None)
        if len(sizes) > 1:
            (one, here), (two, there) = itertools.islice(sizes.items(), 2)
            yield f"the launcher on {here} met {one} nodes, and the one on {there} {two}, for the same workers"


def _counted_back(run: Timeline) -> Reasons:
    lost = [end["at"] for end in run.exits if end["node"] == CONTROL]
    for launcher in run.launchers:
        met = [(event["at"], event["round"]) for event in launcher.met if event.get("round") is not None]
        for (before, one), (at, two) in itertools.pairwise(met):
            if two <= one and first_from(lost, before) > at:
                yield f"the launcher on {launcher.key[0]} told of meeting {two} after meeting {one}"


def _left_out(run: Timeline) -> Reasons:
    rounds = sorted({met["round"] for each in run.launchers for met in each.met if met.get("round") is not None})
    for one, two in itertools.pairwise(rounds):
        if two > one + 1:
            yield f"the launchers told of meetings {one} and {two}, and of none between them"


_RULES = (_began_before, _ended_as_another, _ended_otherwise, _met_otherwise, _counted_back, _left_out)


def _broken(evidence: Analysis) -> Reasons:
    for told in _RULES:
        if not any(next(told(other), None) for other in evidence.fault_free_runs):
            yield from itertools.islice(told(evidence.run), 1)


ASSUMPTION = Assumption(_broken, family="job")
