"""Finds in a node's log why the node's command ended: the first error of the worker that ended the command.

A launcher restarts failed workers, which all write into one log. After the last failure, the launcher prints an error
and a table. The launcher's message on each failure marks where the output of the next workers begins.
"""

import pathlib
import re
import signal
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from harness.errors import FaultError
from harness.log.untrusted_files import tail

TAIL_BYTES = 256 * 2**10
LENGTH_MAX = 300

_FAILED_LIFE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")  # torch's elastic launcher, 1.9 and later
_OF_A_RANK = r"\[[^\]]{1,40}\]:? ?"  # torch's own, or the launcher's
_OF_A_PROGRAM = r"[a-z][\w.-]{0,39}: (?=\S*(?:Error|Exception)\b)"
_PREFIX = re.compile(f"^(?:{_OF_A_RANK}|{_OF_A_PROGRAM})")
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Timeout)\b(?::|$)")
_CLOSED = "RendezvousClosedError"  # says the launcher of a node when that of another node has given up
_OF_THE_LAUNCHER = re.compile(r"ChildFailedError|SignalException|^E\d{4} .*torch/distributed/elastic")
_OF_A_LOST_PEER = re.compile(
    r"Connection (closed|reset|refused|was likely closed)|connectFullMesh|DistBackendError|DistNetworkError|"
    r"DistStoreError|[Bb]roken pipe|Socket[ _]?[Tt]imeout|[Tt]imed out waiting|wait timeout|remote process exited|"
    r"NCCL (communicator|watchdog)|\[\S*/gloo/transport/|RendezvousClosedError"
)


class Telling(IntEnum):
    ERROR = 0
    SIGNAL = 1
    LOST_PEER = 2  # another process ended first
    LINE = 3
    NOTHING = 4


class Words(NamedTuple):
    telling: Telling
    text: str


def first_error(logs: Sequence[pathlib.Path]) -> str:
    """Returns the log line that best explains why a command ended, with the log's name. Never raises or blocks."""
    (telling, text), log = min(((words_of(log), log) for log in logs), key=lambda found: found[0].telling)
    return text if telling is Telling.NOTHING else f"{text} ({log.parent.name}/{log.name})"


def words_of(log: pathlib.Path) -> Words:
    try:
        lines = [line.strip() for line in tail(log.parent, log.name, TAIL_BYTES).splitlines() if line.strip()]
    except FileNotFoundError:
        return Words(Telling.NOTHING, "it left no log")
    except (OSError, FaultError) as error:
        return Words(Telling.NOTHING, f"its log cannot be read: {error}")
    if not lines:
        return Words(Telling.NOTHING, "its log is empty")
    life, failed = _last_life(lines)
    telling, text = _most_telling(life, failed)
    return Words(telling, text[:LENGTH_MAX])


def _last_life(lines: Sequence[str]) -> tuple[list[str], re.Match[str] | None]:
    ends = [(place, match) for place, line in enumerate(lines) if (match := _FAILED_LIFE.search(line))]
    if not ends:
        return [line for line in lines if not _OF_THE_LAUNCHER.search(line)], None
    after = [line for line in lines[ends[-1][0] + 1 :] if not _OF_THE_LAUNCHER.search(line)]
    said = [line for line in after if _ERROR.match(_PREFIX.sub("", line))]
    if any(_CLOSED not in line for line in said):  # it was to start again, and that failed
        return after, None
    begin = ends[-2][0] + 1 if len(ends) > 1 else 0
    life = [line for line in lines[begin : ends[-1][0]] if not _OF_THE_LAUNCHER.search(line)]
    return life, ends[-1][1]


def _most_telling(life: Sequence[str], failed: re.Match[str] | None) -> Words:
    said = [_PREFIX.sub("", line) for line in life]
    errors = [line for line in said if _ERROR.match(line)]
    if own := [line for line in errors if not _OF_A_LOST_PEER.search(line)]:
        return Words(Telling.ERROR, next((line for line in own if not line.endswith(":")), own[0]))
    if failed and int(failed[1]) < 0:
        return Words(Telling.SIGNAL, f"the worker with local rank {failed[2]} was ended by {_signal(-int(failed[1]))}")
    if errors:
        return Words(Telling.LOST_PEER, errors[0])
    hints = [line for line in said if "Error" in line or "error:" in line]
    if hints or said:
        return Words(Telling.LINE, (hints or said)[-1])
    ended = f"a worker ended with {failed[1]} and wrote nothing" if failed else "only its launcher wrote into its log"
    return Words(Telling.LINE, ended)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
