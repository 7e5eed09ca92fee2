"""Disturbs the network between the nodes of a Slurm job, but never the site's own traffic with these nodes.

On each node, a sidecar process disturbs the node's traffic, with the rights of the job's user. A fault that disturbs
all traffic of a node disturbs only the traffic with the job's other nodes.
"""

from typing import Any

from harness.backends import sidecar_network
from harness.backends.sidecar_network import NetworkHost
from harness.errors import BackendError

SIDECAR = "harness.node.slurm_sidecar"
TAKES_ROOT = "changing a node's network takes root there"


class JobNetwork(sidecar_network.Network):
    def _begin(self, host: NetworkHost, verb: str, limit_s: float, params: dict[str, Any]) -> int:
        if verb == "unplug":
            verb, params = "cut", {"traffic": {"direction": "both", "peers": None, "spared": []}}
        traffic = params["traffic"]
        if traffic["peers"] is None:
            peers = [other.address for other in self._hosts() if other is not host and other.alive]
            if not peers:
                raise BackendError(f"node {host.key} is alone in its job: none of its traffic may be disturbed")
            params = params | {"traffic": traffic | {"peers": peers}}
        return super()._begin(host, verb, limit_s, params)
