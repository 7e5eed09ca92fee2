"""Defines the contract of readers, which convert any diagnoser's output to the harness's own format of answers.

The file of a reader in `harness/diagnosis/readers/` holds `READER`, a subclass of `AnswerReader`. The docstring of the
reader says which program's output it reads, of which version, and whether it was tried on real output. Files of answers
are untrusted: whatever a file holds, a reader may raise only `AnswersError`. The name of the reader's file is the
reader's name on the command line:

    chaos diagnose RUN --answers '{run}/error.json' --read torchelastic
"""

from __future__ import annotations

import abc
import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import yaml
from pydantic import Field, ValidationError

from harness.diagnosis import answer as neutral
from harness.diagnosis.answer import SHOWN_MAX, SUSPECTS_MAX, Answer, AnswersError, Decision, Kind, Suspect
from harness.errors import FaultError, UsageError
from harness.log import untrusted_files
from harness.parameters import Parameters
from harness.plugins import Family

FILES_MAX = 10_000  # in a folder of answers
BYTES_MAX = 64 * 2**20  # of the files of one run
ANSWERS_MAX = 100_000  # about one run


class File(NamedTuple):
    """A file with a diagnoser's answers. `name` is the file's path below the folder that the user gave."""

    name: str
    content: bytes


class AnswerReader(Parameters, abc.ABC):
    """The base class of readers of diagnosers' answers. In a folder, a reader takes the files whose names match
    `pattern`."""

    pattern: ClassVar[str] = r".*\.json"

    utc_offset_h: float = Field(0, ge=-14, le=14, description="Zone of times that name none, in hours from UTC.")

    def finds(self, path: pathlib.Path) -> bool:
        """Returns True if the path is a file, or a folder with a file for this reader. Raises `AnswersError`."""
        return path.is_file() or (path.is_dir() and bool(_names(path, self.pattern)))

    def read(self, files: Sequence[File]) -> Iterator[Answer]:
        for file in files:
            yield from self.answers(file)

    @abc.abstractmethod
    def answers(self, file: File) -> Iterator[Answer]:
        """Yields the answers in one file of a diagnoser. Raises `AnswersError` for an invalid file."""

    def moment(self, told: object, file: File, line: int | None = None) -> int | None:
        """Converts a time to ns since 1970, and `None` to `None`. Raises `AnswersError` for an invalid time."""
        try:
            return None if told is None else neutral.wall_ns(told, self.utc_offset_h)
        except ValueError as error:
            raise AnswersError(file.name, line, str(error)) from None


_FAMILY = Family("reader of answers", "harness.diagnosis.readers", "READER")
reader_names = _FAMILY.names


def build_reader(text: str) -> AnswerReader:
    """Builds a reader from its name, or from YAML such as `lines: {regex: …}`. Raises `UsageError`."""
    try:
        given = yaml.safe_load(text)
        name, parameters = next(iter(given.items())) if isinstance(given, Mapping) and given else (given, {})
        reader: AnswerReader = _FAMILY.load(_FAMILY.known(str(name))).model_validate(parameters)
        return reader
    except ValidationError as error:
        problem = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    except (ValueError, yaml.YAMLError) as error:
        problem = "; ".join(str(error).splitlines())
    raise UsageError(f"--read {text[:SHOWN_MAX]}: {problem}")


def read_answers(path: pathlib.Path, reader: AnswerReader) -> list[Answer]:
    """Returns the answers in a file, or in the files of a folder. Raises `AnswersError` for an invalid file."""
    found = list(itertools.islice(reader.read(_files(path, reader.pattern)), ANSWERS_MAX + 1))
    if len(found) > ANSWERS_MAX:
        raise AnswersError(str(path), None, f"more than {ANSWERS_MAX:,} answers")
    return found


def _files(path: pathlib.Path, pattern: str) -> list[File]:
    folder, names, files, left = path.absolute().parent, [path.name], list[File](), BYTES_MAX
    try:
        if path.is_dir():
            folder, names = path, _names(path, pattern)
        if not 0 < len(names) <= FILES_MAX:
            raise AnswersError(str(path), None, f"{len(names)} files match {pattern}; allowed are 1 to {FILES_MAX}")
        for name in names:
            files.append(File(name, untrusted_files.read(folder, name, left)))
            left -= len(files[-1].content)
    except (OSError, FaultError) as error:
        raise AnswersError(str(path), None, f"it cannot be read: {error}") from None
    return files


def _names(folder: pathlib.Path, pattern: str) -> list[str]:
    found = untrusted_files.files_below(folder, ".")
    return [name for name in found if re.fullmatch(pattern, name.rpartition("/")[2])]


def json_of(file: File) -> Any:
    """Returns the JSON value in a file. Raises `AnswersError` if the file is not JSON."""
    try:
        return json.loads(file.content)
    except (ValueError, RecursionError) as error:
        raise AnswersError(file.name, None, f"it is not JSON: {error}") from None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def listed(value: object, file: File, otherwise: str) -> list[Mapping[str, Any]]:
    """Returns the mappings in a list. For any value but a list, raises `AnswersError` with the text `otherwise`."""
    if not isinstance(value, list):
        raise AnswersError(file.name, None, otherwise)
    return mappings(value)


def text(value: object, most: int = neutral.WORDS_MAX) -> str:
    return value[:most] if isinstance(value, str) else ""


def whole(value: object, most: int) -> int | None:
    """Converts a number or decimal digits to a whole number from 0 to `most`, or returns `None` if impossible."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def ranks(value: object, file: File) -> tuple[Suspect, ...]:
    """Returns the suspects for a list of rank numbers. Raises `AnswersError` if the value is no list of ranks."""
    told = value if isinstance(value, list) else [None]
    if len(told) > SUSPECTS_MAX or None in (found := [whole(each, neutral.RANK_MAX) for each in told]):
        raise AnswersError(file.name, None, f"{str(value)[:SHOWN_MAX]} is no list of at most {SUSPECTS_MAX} ranks")
    return tuple(Suspect(rank) for rank in found)


_WORDS = (  # the first that is found in a text decides
    (Kind.GPU, r"\bxid\b|ecc|nvlink|cuda|\bgpu|dcgm|nvml|hbm"),
    (Kind.CORRUPTION, r"corrupt|checksum|\bsdc\b|bit.?flip|silent data"),
    (Kind.BAD_DATA, r"\bnan\b|loss spike|diverg|bad data|data ?loader"),
    (Kind.STORAGE, r"storage|disk|file ?system|\bnfs\b|lustre|checkpoint|i/o|\bio\b|no space"),
    (Kind.NETWORK, r"network|\bnic\b|infiniband|\bib\b|\brdma|\blink|ethernet|partition"),
    (Kind.STRAGGLER, r"straggl|slow|throttl|thermal|overheat"),
    (Kind.HANG, r"hang|hung|stall|stuck|time.?out|deadlock|no heartbeat|no step"),
    (Kind.CRASH, r"crash|oom|out of memory|killed|fail|error|exit|not respond|unreachable|reboot|down|terminat|evict"),
)
_PATTERNS = [(kind, re.compile(words, re.IGNORECASE)) for kind, words in _WORDS]


def kind_by_words(told: str) -> Kind:
    """Returns the kind of failure that a name or a free text mentions, or `UNKNOWN` for a text without known words."""
    if told in [*Kind]:
        return Kind(told)
    return next((kind for kind, words in _PATTERNS if words.search(told[: neutral.WORDS_MAX])), Kind.UNKNOWN)


def decision_of(told: object) -> Decision | None:
    return Decision(told) if isinstance(told, str) and told in [*Decision] else None
