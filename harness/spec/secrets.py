"""Handles secrets: a scenario names environment variables of the harness, and no file of a run shows their values.

An environment variable is a secret if a word of its name ends with TOKEN, KEY, SECRET, PASSWORD or the like. A scenario
and its plan hold no secret's value, only a reference such as `env: {HF_TOKEN: "${HF_TOKEN}"}`. If a trainer prints a
secret, the secret is overwritten in the run's files after the run.
"""

import json
import os
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harness.errors import FaultError, UsageError
from harness.log import untrusted_files

_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|\d|$)", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
FILE_BYTES_MAX = 2**30
LENGTH_MIN = 6  # anything shorter is found in every second line by chance, and protects nothing


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def refuse_literals(env: Mapping[str, str]) -> dict[str, str]:
    """Raises `ValueError` if the scenario contains a secret's value. The error does not show the secret's value."""
    for name, value in env.items():
        if is_secret(name) and not _REFERENCE.fullmatch(value):
            raise ValueError(f'{name} looks like a secret; write {name}: "${{{name}}}" to take it from the environment')
    return dict(env)


def resolve(env: Mapping[str, str]) -> dict[str, str]:
    """Replaces references by values from the harness's own environment. Raises `UsageError` for an unset variable."""
    found = {}
    for name, value in env.items():
        reference = _REFERENCE.fullmatch(value)
        if reference and reference[1] not in os.environ:
            raise UsageError(f"{name}: ${{{reference[1]}}} is not set in the harness's environment")
        found[name] = os.environ[reference[1]] if reference else value
    return found


def references(env: Mapping[str, str]) -> list[str]:
    """Returns the environment variables to which a scenario refers. Raises `UsageError` if a variable is unset."""
    resolve(env)
    found = {reference[1] for value in env.values() if (reference := _REFERENCE.fullmatch(value))}
    return sorted(found)


def make_unreadable(run_dir: pathlib.Path, references: list[str]) -> int:
    """Overwrites the values of secret environment variables in a run's files. Returns how many files were changed."""
    unset = [name for name in references if name not in os.environ]
    if unset:
        raise FaultError(
            f"{run_dir}: {', '.join(unset)} is not set here, so its value cannot be looked for in the run's files; "
            "set it and call chaos heal again, or delete the run"
        )
    named = {name: value for name, value in os.environ.items() if is_secret(name) or name in references}
    secrets = {value for value in named.values() if len(value) >= LENGTH_MIN and not value.startswith("/")}
    return sum(redact(run_dir / folder, secrets) for folder in ("events", "logs", "answers", "drill", "second-restart"))


UNDO = make_unreadable


def redact(folder: pathlib.Path, secrets: Collection[str]) -> int:
    """Replaces each character of a secret in the folder's files by an asterisk. Returns how many files were changed.
    Raises `FaultError` at the end if some files could not be searched."""
    root, changed, errors = folder.parent, 0, []
    for path in untrusted_files.files_below(root, folder.name) if secrets else []:
        try:
            changed += _redact_file(root, path, sorted(secrets, key=len, reverse=True))
        except FileNotFoundError:
            continue
        except (FaultError, OSError) as error:
            errors.append(f"{path}: {error}")
    if errors:
        raise FaultError("secrets may still be in " + "; ".join(errors))
    return changed


def _redact_file(root: pathlib.Path, path: str, secrets: Sequence[str]) -> bool:
    with os.fdopen(untrusted_files.open_file(root, path, os.O_RDWR), "r+b") as file:
        if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
            raise FaultError(f"larger than {FILE_BYTES_MAX} bytes, so it is not looked through")
        data = file.read(FILE_BYTES_MAX)
        if not any(form in data for secret in secrets for form in _forms(secret)):
            return False
        lines = data.split(b"\n")
        file.seek(0)
        file.write(b"\n".join(_redact_line(line, secrets, path.endswith(".jsonl")) for line in lines))
    return True


def _redact_line(line: bytes, secrets: Sequence[str], is_json: bool) -> bytes:
    if is_json:
        try:
            record = json.loads(line)
        except ValueError:
            record = None  # cut by a kill, or empty
        if record is not None:
            clean = _redact_value(record, secrets)
            return line if clean == record else json.dumps(clean, separators=(",", ":")).encode().ljust(len(line))
    for secret in secrets:
        for form in _forms(secret):
            line = line.replace(form, b"*" * len(form))
    return line


def _forms(secret: str) -> set[bytes]:
    return {form.encode() for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])}


def _redact_value(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {_redact_value(key, secrets): _redact_value(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, secrets) for item in value]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "*" * len(secret))
    return value
