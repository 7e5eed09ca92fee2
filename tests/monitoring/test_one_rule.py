"""The limits of the alert rules are those of the rule module, which trainer and judge use, too."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

from harness.node.emitter import abnormal

ALERTS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "monitoring" / "alerts.yaml"
RULES = {
    rule["alert"]: rule["expr"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"] if "alert" in rule
}
LIMITS = {
    "CheckpointLate": (r"> ([\d.]+) \* chaos_checkpoint_interval_seconds", abnormal.CHECKPOINT_INTERVALS),
    "StepsSlow": (r"> ([\d.]+) \* chaos:step_seconds:usual", 1 + abnormal.STEP_TIME_EXCESS),
    "GradientNormSpike": (r"> ([\d.]+) \* quantile_over_time\(0\.5", abnormal.GRADIENT_NORM_FACTOR),
    "LossStagnant": (r"chaos_loss_improvement_ratio < ([\d.]+)", abnormal.LOSS_IMPROVES_MIN),
    "DataWaitHigh": (r"> 0\) > ([\d.]+)", abnormal.DATA_WAIT_SHARE),
    "ThroughputLow": (r"< ([\d.]+) \* \(rate", 1 - abnormal.THROUGHPUT_LOSS),
}


@pytest.mark.parametrize("alert", LIMITS)
def test_an_alert_has_the_limit_of_the_rule(alert: str) -> None:
    pattern, limit = LIMITS[alert]
    assert [float(found) for found in re.findall(pattern, RULES[alert])] == [pytest.approx(limit)]
