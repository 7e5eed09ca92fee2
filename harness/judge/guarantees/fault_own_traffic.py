"""The training's own bytes go through what each network fault disturbs."""

from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    for told in fault.traffic if fault.network else ():
        if told.get("ok") is False:
            counted = f"{told.get('measured', 0)} bytes in {told.get('seconds', 0):g} s"
            least = f"at least {told.get('least')} expected ({told.get('detail', '')})"
            yield f"did not meet the training's own traffic on {told.get('node')}: {counted}, {least}"


GUARANTEE = of_faults(_flaws, switch="own_traffic", needs_steps=True)
