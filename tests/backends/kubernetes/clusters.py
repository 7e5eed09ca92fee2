"""What tests look at in a cluster of Kubernetes, a real one or one that is stood in for."""

from typing import Any

from waiting import until

from harness.backends.contract import Node
from harness.backends.kubernetes.backend import KubeCluster
from harness.backends.kubernetes.pod import KubeNode, Pod

LOOP = ("sh", "-c", "trap 'echo heard; exit 9' TERM; echo started; while :; do sleep 0.1; done")


def kubeconfig(server: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
        "current-context": "c",
    }


def codes(cluster: KubeCluster, count: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}

    def look() -> bool:
        found.update({(each.node, each.incarnation): each.code for each in cluster.exits()})
        return len(found) >= count

    until(look, f"{count} exits")
    return found


def log(cluster: KubeCluster, node: Node) -> str:
    path = cluster.run_dir / "logs" / f"{node.name}.{node.incarnation}.log"
    return path.read_text() if path.exists() else ""


def running(cluster: KubeCluster, node: Node) -> None:
    until(lambda: "started" in log(cluster, node), f"the command of {node.name} runs")


def started(cluster: KubeCluster) -> Node:
    """The first node of a cluster that is started here, once its command runs."""
    cluster.start()
    running(cluster, cluster.nodes[0])
    return cluster.nodes[0]


def pod_of(node: Node) -> Pod:
    assert isinstance(node, KubeNode) and node.pod is not None
    return node.pod
