"""The training's own bytes go through what each network fault disturbs.

Less than 4096 bytes, or less than 200 bytes a second, prove nothing: so little is a store's keep-alive. Into a cut
goes only what was sent before the first missing answer: 1000 bytes are proof; fewer are not judged if a connection
carried 4096 bytes before. NCCL goes around a fault of IP traffic with RDMA, another interface, or one node alone. A
cut from the control host asks for nothing. Older logs have no counts: then it is not judged.
"""

from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    for told in fault.traffic if fault.network else ():
        if told.get("ok") is False:
            counted = f"{told.get('measured', 0)} bytes in {told.get('seconds', 0):g} s"
            least = f"at least {told.get('least')} expected ({told.get('detail', '')})"
            yield f"did not meet the training's own traffic on {told.get('node')}: {counted}, {least}"


GUARANTEE = of_faults(_flaws, switch="own_traffic", needs_steps=True)
