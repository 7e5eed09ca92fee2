"""The training's own bytes go through what each network fault disturbs.

Fewer than 4096 bytes, or fewer than 200 bytes a second, prove nothing: the keep-alive of a store sends as much. A cut
receives only the bytes that were sent before the first missing answer. There 1000 bytes are proof; fewer are not judged
if a connection carried 4096 bytes before the cut. NCCL avoids a fault of IP traffic if it uses RDMA or another
interface, or if it runs on one node alone. A cut from the control host needs no traffic. Older logs have no byte
counts, so the guarantee is not judged there.
"""

from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    for told in fault.traffic if fault.network else ():
        if told.get("ok") is False:
            counted = f"{told.get('measured', 0)} bytes in {told.get('seconds', 0):g} s"
            least = f"at least {told.get('least')} expected ({told.get('detail', '')})"
            yield f"did not meet the training's own traffic on {told.get('node')}: {counted}, {least}"


GUARANTEE = of_faults(_flaws, switch="own_traffic", needs_steps=True)
