"""Reads the fault attribution of NVIDIA Resiliency Extension as JSON: the answer of its service (`GET /logs` of
nvrx-attrsvc), or of its flight recorder analyzer alone.

This reader follows the extension's sources of 2026 (`attribution/orchestration/types.py`): `recommendation.action`
(STOP, RESTART, CONTINUE), `result.result[]` with `attribution_text` and `primary_issues`, and for the flight recorder
`hanging_ranks` ("hanging ranks: [1]") or `hanging_rank_list`. This reader was tried on the real analyzer, but not on
the service, which asks a language model. The JSON has no time, so the reader's answer has no time. The attribution is
free text, so known words in it, such as `timeout`, decide the answer's kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.diagnosis.answer import Answer, AnswersError, Decision, Kind
from harness.diagnosis.readers import contract as form

DECISIONS = {"STOP": Decision.STOP, "RESTART": Decision.RESTART_IN_PLACE, "CONTINUE": Decision.IGNORE}


class Nvrx(form.AnswerReader):
    def answers(self, file: form.File) -> Iterator[Answer]:
        told = form.mapping(form.json_of(file))
        result = told if "hanging_ranks" in told else form.mapping(told.get("result"))
        if not result:
            raise AnswersError(file.name, None, "it has no result, so it is no answer of nvrx-attrsvc")
        items = form.mappings(result.get("result"))
        words = [each.get(name) for each in items for name in ("primary_issues", "attribution_text")]
        why = form.text("; ".join(str(each)[:1000] for each in words if each))
        recorder = form.mapping(form.mapping(result.get("fr")).get("result"))
        recorder = recorder or form.mapping(result.get("result")) or result
        hanging = recorder.get("hanging_rank_list")
        if hanging is None:
            hanging = re.findall(r"\d{1,6}", form.text(recorder.get("hanging_ranks"), 10_000))
        who = form.ranks(hanging, file)
        kind = form.kind_by_words(why) if why else Kind.HANG if who else Kind.UNKNOWN
        yield Answer(kind, who, DECISIONS.get(form.text(form.mapping(told.get("recommendation")).get("action"))), why)


READER = Nvrx
