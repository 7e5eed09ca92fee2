"""Finds the files that a command names: as a word, after `=`, in a comma-separated list, or in a line of shell code."""

import importlib
import itertools
import os
import pathlib
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder

FILES_MAX = 1000
PARTS_MAX = 10_000
PART_BYTES_MAX = 256 * 2**20  # a larger file counts if it is a word of its own
SCRIPT_BYTES_MAX = 2**20
_MODULE = re.compile(r"[A-Za-z_][\w.]*")
_WRITTEN = re.compile(
    r"(?:^|[-_.])(?:logs?|out|outputs?|results?|save|dump|trace|pid|metrics)(?:[-_.]|$)", re.IGNORECASE
)
_SHELL_SCRIPTS = (".sh", ".bash")


def named_files(words: Sequence[str], folders: Sequence[str], modules: Sequence[str] = ()) -> list[pathlib.Path]:
    """Returns the local files that the arguments `words` name. Modules are searched in `folders`, and not imported."""
    importlib.invalidate_caches()
    whole = dict.fromkeys(word for word in words if os.path.isfile(word))
    tokens = [token for word in words for token in _tokens(word)]
    found = {**whole, **dict.fromkeys(_of(tokens, folders, modules))}
    for script in [name for name in found if name.endswith(_SHELL_SCRIPTS)]:
        found |= dict.fromkeys(_of(_tokens(_text(script)), folders))
    return [pathlib.Path(name) for name in itertools.islice(found, max(FILES_MAX, len(whole)))]


def _of(tokens: Sequence[str], folders: Sequence[str], modules: Sequence[str] = ()) -> Iterator[str]:
    called = [name for option, name in itertools.pairwise(tokens) if option in ("-m", "--module")]
    for name in dict.fromkeys([*modules, *called]):
        yield from _module(name, folders)
    parts = itertools.islice((part for token in tokens for part in _parts(token)), PARTS_MAX)
    yield from (part for part in parts if os.path.isfile(part) and os.path.getsize(part) <= PART_BYTES_MAX)


def _tokens(text: str) -> list[str]:
    if not re.search(r"\s", text):
        return [text]
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(_read_only(itertools.islice(lexer, PARTS_MAX)))
    except ValueError:  # a quote is not closed
        return text.split()[:PARTS_MAX]


def _read_only(tokens: Iterator[str]) -> Iterator[str]:
    """Yields the words of a shell line except its output files, because output differs after each run."""
    written = tee = False
    for token in tokens:
        operator = not token.strip("();<>|&")
        tee = not operator and (tee or token == "tee")
        if not (operator or written or tee):
            yield token
        written = operator and ">" in token


def _parts(token: str) -> Iterator[str]:
    key, _, after = token.partition("=")
    if _WRITTEN.search(key):  # it differs after each run
        after = ""
    for text in filter(None, (token, after)):
        yield text
        if "," in text:
            yield from filter(None, text.split(","))


def _text(script: str) -> str:
    try:
        with open(script, errors="replace") as file:
            return file.read(SCRIPT_BYTES_MAX)
    except OSError:
        return ""


def _module(name: str, folders: Sequence[str]) -> Iterator[str]:
    if not _MODULE.fullmatch(name):
        return
    path: Sequence[str] = folders
    places, so_far = name.split("."), ""
    for place in places:
        so_far = f"{so_far}.{place}" if so_far else place
        spec = PathFinder.find_spec(so_far, list(path))
        if spec is None:
            return
        if spec.origin and os.path.isfile(spec.origin):
            yield spec.origin
        path = list(spec.submodule_search_locations or ())
    yield from filter(os.path.isfile, (os.path.join(folder, "__main__.py") for folder in path))
