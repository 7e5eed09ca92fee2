"""Which node's network is bad, by the TCP connections of all nodes."""

import pathlib
from typing import Any

import pytest
from diagnosis.known_jobs import Job

from harness.diagnosis.answer import Suspect
from harness.diagnosis.baseline import explain
from harness.diagnosis.links import Links
from harness.diagnosis.view import view_of
from harness.log import reading

NODES = 4
HEALTHY: dict[str, Any] = {"rtt_us": 2000, "sent_again": 6, "stuck": 0}


def told(job: Job, after_s: float, bad: dict[frozenset[int], dict[str, int]]) -> None:
    """Every node tells of its connections with each other one. `bad`: what is unlike a healthy one, by both ends."""
    for node in range(NODES):
        ends = [(other, frozenset({node, other})) for other in range(NODES) if other != node]
        here = HEALTHY | {"local": f"10.0.0.{node}"}
        peers = [here | {"peer": f"10.0.0.{other}"} | bad.get(both, {}) for other, both in ends]
        job.put(job.rank(node), "usage", after_s, peers=peers)


def links_of(job: Job, folder: pathlib.Path) -> tuple[Links, int]:
    view = view_of(reading.read(job.write(folder) / "events"))
    return Links(view), max(event.at for event in view.told("usage"))


@pytest.mark.parametrize("victim", range(NODES))
@pytest.mark.parametrize("bad", [{"rtt_us": 41_000}, {"sent_again": 300}, {"stuck": 1}])
def test_the_node_that_bad_connections_have_in_common(victim: int, bad: dict[str, int], tmp_path: pathlib.Path) -> None:
    job = Job(nodes=NODES)
    told(job, 0, {})
    told(job, 5, {frozenset({victim, other}): bad for other in range(NODES) if other != victim})
    links, at = links_of(job, tmp_path)
    found = links.bad_node(at - 10**9, at)
    assert found is not None and found.node == f"node{victim}" and found.known == at
    (incident,) = explain(view_of(reading.read(tmp_path / "events")))
    assert (str(incident.kind), incident.who) == ("network", (Suspect(node=f"node{victim}"),))


@pytest.mark.parametrize("bad", [{}, {"sent_again": 300}, {"stuck": 1}, {"rtt_us": 90_000}])
def test_one_bad_connection_names_nobody(bad: dict[str, int], tmp_path: pathlib.Path) -> None:
    job = Job(nodes=NODES)
    told(job, 0, {})
    told(job, 5, {frozenset({0, 1}): bad})
    links, at = links_of(job, tmp_path)
    found = links.bad_node(at - 10**9, at)
    assert found is not None and found.node is None and not [*links.incidents()]


def test_of_two_ends_the_one_that_reaches_nobody(tmp_path: pathlib.Path) -> None:
    """Node 3 tries to connect to node 0 first; the others have met."""
    job = Job(nodes=NODES)
    for node in range(NODES):
        peers = [other for other in range(3) if other != node] if node < 3 else [0]
        stuck = {"stuck": int(node == 3)}
        each = [{"local": f"10.0.0.{node}", "peer": f"10.0.0.{other}"} | HEALTHY | stuck for other in peers]
        job.put(job.rank(node), "usage", 1, peers=each)
    links, at = links_of(job, tmp_path)
    found = links.bad_node(at - 10**9, at)
    assert found is not None and found.node == "node3"


def test_too_few_nodes_tell(tmp_path: pathlib.Path) -> None:
    job = Job(nodes=2)
    for node in range(2):
        stuck = {"local": f"10.0.0.{node}", "peer": f"10.0.0.{1 - node}", "stuck": 1}
        job.put(job.rank(node), "usage", 1, peers=[stuck])
    links, at = links_of(job, tmp_path)
    assert links.bad_node(at - 10**9, at) is None
