"""Seals the event log of a stored fault-free run, so that no later run is compared with a changed log.

The seal is a keyed digest (HMAC-SHA-256, RFC 2104) of the event files. The key is on this host's own disk, so that a
node on another host that can write to the reports cannot make a seal. `docs/security.md` names the attacks that a seal
does not stop.
"""

import contextlib
import hashlib
import hmac
import os
import pathlib
import secrets
import stat
import tempfile

from harness.errors import ChaosError, EventLogError, FaultError
from harness.log import files, untrusted_files

STATE_ENV = "CHAOS_STATE"
SEAL = "complete"  # file name in the folder of a fault-free run, the same as in older versions
_KEY = "seal-key"
_KEY_BYTES = 32
_BLOCK = 2**20


def state_folder() -> pathlib.Path:
    """Returns the folder for this user's secrets on this host: `CHAOS_STATE`, or else a folder in /var/tmp. Raises
    `ChaosError` if another user owns the folder or could write to it."""
    folder = pathlib.Path(os.environ.get(STATE_ENV) or f"/var/tmp/chaos-{os.geteuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = os.lstat(folder)
    except OSError as error:
        raise ChaosError(f"{folder}: {error.strerror}; set {STATE_ENV} to another folder") from error
    safe = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022 and status.st_uid == os.geteuid()
    if not safe:
        raise ChaosError(f"{folder}: not a folder that only you can write; set {STATE_ENV} to another one")
    return folder


def digest_of(events: pathlib.Path) -> str:
    """Returns the digest of the names and contents of all files of an event log. Raises `EventLogError` for a file that
    does not belong in an event log."""
    total = hashlib.sha256()
    for source in files.find(events):
        content = hashlib.sha256()
        with os.fdopen(files.open_source(source), "rb") as file:
            while block := file.read(_BLOCK):
                content.update(block)
        total.update(f"{source.folder or ''}/{source.file}\0{content.hexdigest()}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def put(folder: pathlib.Path) -> None:
    """Seals the event log of a stored run against changes. Raises `ChaosError`, `EventLogError` or `OSError` if the log
    cannot be read, or the seal cannot be made or written."""
    untrusted_files.replace(folder, SEAL, _seal(folder, digest_of(folder / "events")).encode(), mode=0o444)


def holds(folder: pathlib.Path) -> bool:
    """Returns True if this run's event log and folder name are unchanged since the log was sealed on this host."""
    try:
        given = untrusted_files.read(folder, SEAL, 1024)
        return hmac.compare_digest(given, _seal(folder, digest_of(folder / "events")).encode())
    except (OSError, FaultError, EventLogError):
        return False


def _seal(folder: pathlib.Path, digest: str) -> str:
    """Returns the seal: an HMAC of the event log's digest and of the run folder's name, which stands for the plan."""
    told = f"{folder.name.partition('.')[0]}:{digest}"
    return hmac.new(_key(state_folder()), told.encode(), hashlib.sha256).hexdigest()


def _key(folder: pathlib.Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        key = untrusted_files.read(folder, _KEY, _KEY_BYTES)
        if len(key) == _KEY_BYTES:
            return key
    # Written in one move: two processes that make it at once agree on one.
    descriptor, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(name, folder / _KEY)
    finally:
        os.unlink(name)
    return untrusted_files.read(folder, _KEY, _KEY_BYTES)
