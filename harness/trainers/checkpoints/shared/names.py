"""Derives facts from the names of files and folders, such as the step of a checkpoint."""

import re

STEP_MAX = 10**9

_ZONE = r"(?:Z|[+-]\d\d:?\d\d)?"
_NO_STEP = re.compile(  # a number in a name that tells something else: a date, a UUID, a part of several
    r"(?:\d{4}-\d\d?-\d\d?|(?<!\d)\d\d?-\d\d?-\d{4})(?!\d)"
    rf"(?:[T _.-]?\d\d?[-:._h]\d\d?(?:[-:._m]\d\d?)?(?:[.,]\d+)?{_ZONE})?"
    rf"|(?<!\d)(?:19|20)\d\d[01]\d[0-3]\d[T _.-]?[0-2]\d[0-5]\d(?:[0-5]\d)?(?:[.,_]\d+)?{_ZONE}(?!\d|-\d\d?-\d)"
    r"|(?<![0-9a-f])[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}(?![0-9a-f])"
    r"|\d+[._-]?of[._-]?\d+",
    re.IGNORECASE,
)
_WORDS = "global_?steps?", "steps?", "iter(?:ation)?s?"  # for what surely counts steps
_OTHERS = "checkpoint", "ckpt"
_NUMBER = r"[=_\-]?0*(\d{1,10})(?![0-9a-z]|\.\d)"
_STEP, _COUNT = (
    re.compile(rf"(?:^|[^a-z])(?:{'|'.join(words)}){_NUMBER}", re.IGNORECASE) for words in (_WORDS, _OTHERS)
)
_DAY = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
_EPOCH = re.compile(r"epoch", re.IGNORECASE)
_RANK = re.compile(r"[._-]?(?:(?:mp|dp|zero_pp|pp|tp)_)*ranks?[=_\-]?\d+", re.IGNORECASE)
_TEMPORARY = re.compile(r"^\.?(?:tmp|temp)[-_.]|^\.tmp|[._-](?:tmp|temp|part|partial|incomplete|writing)(?:[-_.]|$)")
_POINTER = re.compile(r"^(?:latest|last|newest)(?:[._-].*)?$|^latest_checkpointed_iteration\.txt$", re.IGNORECASE)


def step_in(name: str) -> int | None:
    """Returns the step in a name such as `step-00000020`, `checkpoint-500`, `epoch=1-step=300.ckpt` or `iter_0000010`.

    Returns `None` if the name has no step. A number that is part of an epoch, a date, a time or a hash is no step.
    """
    plain = _NO_STEP.sub("", name)
    if _EPOCH.search(plain) and "step" not in plain.lower():
        return None
    found = _STEP.findall(plain) or [number for number in _COUNT.findall(plain) if not _DAY.fullmatch(number)]
    step = int(found[-1]) if found else STEP_MAX + 1
    return step if step <= STEP_MAX else None


def is_ambiguous(name: str) -> bool:
    """Returns True if a checkpoint's name does not say whether its number counts steps or checkpoints."""
    return step_in(name) is None or not _STEP.search(_NO_STEP.sub("", name))


def step_of(name: str, known: int | None) -> int | None:
    """Returns the step in a checkpoint's name, or the larger of this step and `known` if the name is ambiguous."""
    named = step_in(name)
    return named if known is None or not is_ambiguous(name) else max(known, named or 0)


def of_save(path: str) -> str:
    """Returns the last part of a checkpoint's path as its name. If the name is only a number, such as `40`, returns
    `checkpoint-40`. If a folder above names a step or an epoch, a number may be a rank and is returned as it is."""
    above, _, name = path.rpartition("/")
    if not name.isdecimal() or any(step_in(part) is not None or _EPOCH.search(part) for part in above.split("/")):
        return name
    return f"checkpoint-{name}"


def is_unique(name: str) -> bool:
    """Returns True if a name holds a date or an id, so that no later checkpoint gets this name."""
    return bool(_NO_STEP.search(name))


def without_rank(name: str) -> str:
    """Returns a file's name without its rank, so that the files of all ranks in one checkpoint get the same name."""
    return _RANK.sub("", name)


def is_temporary(path: str) -> bool:
    return any(_TEMPORARY.search(part) for part in path.split("/"))


def is_pointer(path: str) -> bool:
    return bool(_POINTER.match(path.rpartition("/")[2]))
