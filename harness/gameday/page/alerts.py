"""Reads alerts from alerting tools: Alertmanager's webhook, or plain JSON such as `{"name": "TrainingStalled"}`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from harness.gameday.requests import AlertNews

ALERTS_MAX = 200  # most alerts of one message
NAME_MAX = 200
SUMMARY_MAX = 500
FINGERPRINT_MAX = 100
_FIRING = ("firing", "resolved")


def read(message: Any) -> list[AlertNews]:
    """Reads the alerts in an alerting tool's message. Raises `ValueError` for a message in another format."""
    if isinstance(message, dict) and isinstance(message.get("alerts"), list):
        given = message["alerts"]
    else:
        given = message if isinstance(message, list) else [message]
    if not 0 < len(given) <= ALERTS_MAX:
        raise ValueError(f"{len(given)} alerts; allowed: 1 to {ALERTS_MAX}")
    return [_alert(each) for each in given]


def _alert(each: Any) -> AlertNews:
    if not isinstance(each, dict):
        raise ValueError("an alert is a mapping with a name")
    given = [each.get(key) for key in ("labels", "annotations")]
    labels, notes = (part if isinstance(part, dict) else {} for part in given)
    name = labels.get("alertname") or each.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise ValueError(f"an alert needs a name of at most {NAME_MAX} characters: labels.alertname, or name")
    status = each.get("status", "firing")
    if status not in _FIRING:
        raise ValueError(f"status {str(status)[:40]!r} is not allowed; choose one of: {', '.join(_FIRING)}")
    summary = notes.get("summary") or notes.get("description") or each.get("summary") or ""
    return AlertNews(name, str(status), str(summary)[:SUMMARY_MAX], _fingerprint(each, labels))


def _fingerprint(alert: dict[Any, Any], labels: dict[Any, Any]) -> str:
    given = alert.get("fingerprint")
    if isinstance(given, str) and given:
        return given[:FINGERPRINT_MAX]
    if not labels:
        return ""
    return hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:16]
