"""Reads error files of torchelastic's `@record`: `LOG_DIR/RUN_ID/attempt_N/LOCAL_RANK/error.json`.

This reader takes the format of PyTorch 1.9 to 2.13:
`{"message": {"message", "extraInfo": {"py_callstack", "timestamp"}}}`. This reader was tried on a file that PyTorch
2.13 wrote. The field `timestamp` is in whole seconds. The path of an error file gives node and local rank: collect each
node's files in a folder named after the node, `NODE/**/LOCAL_RANK/error.json`. If the path names no node, the answer
names no suspect. The reader skips errors about a lost peer, such as `closed by peer`, unless they are the first error
of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.diagnosis.answer import GPU_MAX, NAME_MAX, Answer, AnswersError, Decision, Kind, Suspect
from harness.diagnosis.readers.contract import AnswerReader, File, json_of, mapping, text, whole

_PEER = re.compile(r"(closed|reset) by peer|broken pipe|remote process exited", re.IGNORECASE)


class TorchElastic(AnswerReader):
    pattern = r"error\.json"

    def read(self, files: Sequence[File]) -> Iterator[Answer]:
        found = sorted((each for file in files for each in self.answers(file)), key=lambda each: each.at or 0)
        return (each for each in found if each is found[0] or not _PEER.search(each.why))

    def answers(self, file: File) -> Iterator[Answer]:
        told = mapping(json_of(file)).get("message")
        said = text(told) or text(mapping(told).get("message"))
        if not said:
            raise AnswersError(file.name, None, "it has no message; torchelastic writes {'message': {'message': …}}")
        seconds = whole(mapping(mapping(told).get("extraInfo")).get("timestamp"), 2**32)
        kind = Kind.GPU if "CUDA" in said else Kind.CRASH
        *folders, gpu, _ = ("", "", *file.name.split("/"))
        who = (Suspect(node=folders[2][:NAME_MAX], gpu=whole(gpu, GPU_MAX)),) if len(folders) > 2 else ()
        yield Answer(kind, who, Decision.RESTART_IN_PLACE, said, None if seconds is None else seconds * 10**9)


READER = TorchElastic
