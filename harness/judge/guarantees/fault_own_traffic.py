"""Each network fault disturbs a network path that carries the training's own traffic.

While the fault acts, the workers' connections must carry at least 4096 bytes in all, and 200 bytes a second, because
less traffic may be keep-alive messages of the rendezvous store. If the fault cuts the network, 1000 bytes are enough,
because a worker that gets no answer stops sending. A cut with fewer than 1000 bytes is not judged if a connection
carried 4096 bytes before the cut. A fault of IP traffic misses NCCL traffic if NCCL uses RDMA or a different interface,
or runs on one node alone. A fault of only the path to the rendezvous store need not disturb training traffic. Logs of
older harness versions, which hold no byte counts, are not judged.
"""

from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    for told in fault.traffic if fault.network else ():
        if told.get("ok") is False:
            counted = f"{told.get('measured', 0)} bytes in {told.get('seconds', 0):g} s"
            least = f"at least {told.get('least')} expected ({told.get('detail', '')})"
            yield f"did not meet the training's own traffic on {told.get('node')}: {counted}, {least}"


GUARANTEE = of_faults(_flaws, switch="own_traffic", needs_steps=True)
