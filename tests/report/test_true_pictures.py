"""What is drawn and said is what the log holds."""

from __future__ import annotations

from dataclasses import replace

import report_runs

from harness.report import drawing

S = 10**9


def test_a_fault_is_drawn_from_its_injection_until_it_is_undone() -> None:
    run = report_runs.spot_evict().evidence.run
    fault = run.faults[0]
    assert fault.injected is not None
    slow = replace(fault, recovered=fault.injected + S // 10, healed=fault.injected + 15 * S)
    for one, until in ((slow, slow.healed), (replace(slow, healed=None), run.end)):
        (drawn,) = drawing.chronicle(replace(run, faults=(one,))).faults
        assert until is not None
        assert drawn.ended == (until - run.begin) / S
        assert ("was not undone" in drawn.story) == (one.healed is None)
