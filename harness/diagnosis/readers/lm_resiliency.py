"""Reads the fault localization of lm-resiliency: its `localization.json`, or a list of `SCOUTFaultReport`.

This reader follows lm-resiliency's sources of 2026 (`SCOUTFaultReport`, `examples/fault_injection/compare.py`):
`reports[]` with `kind` (sdc, straggler, hang, data_stall, process_failure), `failed_ranks`, `scope`, `endpoint_id`,
`confidence`, `training_iteration`. This reader was tried on reports of hangs by lm-resiliency 0.2.0, but on no other
reports, because lm-resiliency's replay needs GPUs. A report counts iterations and has no time, so the reader's answer
holds a step instead of a time. For a report about a whole `peer_group`, the answer names no suspect.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.diagnosis.answer import NAME_MAX, STEP_MAX, Answer, Decision, Kind, Suspect
from harness.diagnosis.readers import contract as form

KINDS = {"sdc": Kind.CORRUPTION, "hang": Kind.HANG, "data_stall": Kind.HANG, "process_failure": Kind.CRASH}
KINDS |= {"fabric:switch": Kind.NETWORK, "oob_daemon_failure": Kind.UNKNOWN}  # the daemon watches; it does not train


class LmResiliency(form.AnswerReader):
    def answers(self, file: form.File) -> Iterator[Answer]:
        told = form.json_of(file)
        reports = told if isinstance(told, list) else form.mapping(told).get("reports")
        for report in form.listed(reports, file, "it has no list of reports, so it is no localization"):
            said, scope = form.text(report.get("kind")), report.get("scope")
            node = form.text(report.get("endpoint_id"), NAME_MAX)
            kind = KINDS.get(said) or form.kind_by_words(said.replace("_", " "))
            if report.get("straggler_type") == "communication":
                kind = Kind.NETWORK
            who = () if scope == "peer_group" else form.ranks(report.get("failed_ranks", []), file)
            if scope == "node" and node:
                who = (Suspect(node=node),)
            sure, step = report.get("confidence"), form.whole(report.get("training_iteration"), STEP_MAX)
            sure = float(sure) if isinstance(sure, int | float) and 0 <= sure <= 1 else None
            decision = Decision.ROLL_BACK if kind is Kind.CORRUPTION else None
            yield Answer(kind, who, decision, form.text(str(report.get("sources") or "")), None, step, sure)


READER = LmResiliency
