"""Secrets: named in a scenario, taken from the harness's own environment, and in no file of a run.

An environment variable is a secret by its name (a word of it ends with TOKEN, KEY, SECRET, PASSWORD …). A
scenario may not hold one; it refers to it, `env: {HF_TOKEN: "${HF_TOKEN}"}`, and the plan keeps the reference. What a
trainer prints nevertheless is made unreadable once the run is over.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Collection, Mapping

from harness.errors import UsageError

_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|\d|$)", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
LENGTH_MIN = 6  # anything shorter is found in every second line by chance, and protects nothing


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def refuse_literals(env: Mapping[str, str]) -> dict[str, str]:
    """Raises `ValueError`, without the value, for a secret that is written out."""
    for name, value in env.items():
        if is_secret(name) and not _REFERENCE.fullmatch(value):
            raise ValueError(f'{name} looks like a secret; write {name}: "${{{name}}}" to take it from the environment')
    return dict(env)


def resolve(env: Mapping[str, str]) -> dict[str, str]:
    """With references replaced by what the harness's own environment holds. Raises `UsageError` where that is unset."""
    found = {}
    for name, value in env.items():
        reference = _REFERENCE.fullmatch(value)
        if reference and reference[1] not in os.environ:
            raise UsageError(f"{name}: ${{{reference[1]}}} is not set in the harness's environment")
        found[name] = os.environ[reference[1]] if reference else value
    return found


def known(env: Mapping[str, str]) -> set[str]:
    """The values that must not be seen: of this environment and of the harness's."""
    both = [*env.items(), *os.environ.items()]
    return {value for name, value in both if is_secret(name) and len(value) >= LENGTH_MIN and not value.startswith("/")}


def redact(folder: pathlib.Path, secrets: Collection[str]) -> int:
    """Overwrites every secret in the files of the folder with as many asterisks; returns in how many files.

    Files keep their size, so that whoever still reads or appends to one is not disturbed.
    """
    words = {form.encode() for secret in secrets for form in (secret, json.dumps(secret)[1:-1])}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()] if words else []
    return sum(_redact_file(path, words) for path in files)


def _redact_file(path: pathlib.Path, words: Collection[bytes]) -> bool:
    data = path.read_bytes()
    clean = data
    for word in sorted(words, key=len, reverse=True):
        clean = clean.replace(word, b"*" * len(word))
    if clean == data:
        return False
    with path.open("r+b") as file:
        file.write(clean)
    return True
