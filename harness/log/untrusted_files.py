"""Opens and changes files in folders that an untrusted node can change.

A node can replace any part of a path by a link at any moment. Therefore the harness opens each path name by name,
without following links, starting from a folder `root` that only the harness can write. Only regular files are opened:
opening a pipe could block, and opening a device could have any effect. The size of each read is limited.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from typing import IO, Any

from harness.errors import FaultError

FILE_BYTES_MAX = 64 * 2**20  # of what is read whole
TAIL_BYTES = 64 * 2**10
ENTRIES_MAX = 100_000  # looked at in one folder and below it
DEPTH_MAX = 64  # folders in one another; what lies deeper is not looked at

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def below(path: str) -> str:
    """Returns `path` if it is a relative path that does not lead out of its folder. Raises `ValueError` for any other
    path."""
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not below the run's folder; write it relative to that folder, without '..'")
    return path


# Folders


@contextlib.contextmanager
def folder_of(root: pathlib.Path, path: str) -> Iterator[tuple[int, str]]:
    """Makes a context that opens the folder that holds `root/path`, and gives this folder's descriptor and the last
    name of `path`. Raises `FaultError` if a part of the path is a link or not a folder, and `FileNotFoundError` if a
    part is missing."""
    *parents, name = _parts(path)
    with _walked(root, parents, root / path) as descriptor:
        yield descriptor, name


def opened_folder(root: pathlib.Path, path: str) -> contextlib.AbstractContextManager[int]:
    """Makes a context that opens the folder `root/path`, without following links. Raises the same errors as
    `folder_of`."""
    return _walked(root, _parts(path), root / path)


def _parts(path: str) -> list[str]:
    return [part for part in below(path).split("/") if part not in ("", ".")]


@contextlib.contextmanager
def _walked(root: pathlib.Path, parts: Sequence[str], path: pathlib.Path, made: int | None = None) -> Iterator[int]:
    descriptor = os.open(root, _FOLDER)
    try:
        for part in parts:
            if made is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, made, dir_fd=descriptor)
            try:
                inner = os.open(part, _FOLDER, dir_fd=descriptor)
            except FileNotFoundError:
                raise
            except OSError as error:
                why = f"{part} is not a plain folder ({error.strerror})"
                raise FaultError(f"{path}: {why}; it is left alone") from error
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(root: pathlib.Path, path: str, owner: tuple[int, int] | None = None, mode: int = 0o755) -> None:
    """Makes the folder `root/path` and missing parent folders, and gives the folder `root/path` to `owner` (user id,
    group id). Raises `FaultError` if a part of the path is a link or a file."""
    with _walked(root, _parts(path), root / path, made=mode) as descriptor:
        if owner is not None:
            os.fchown(descriptor, *owner)


def names_in(root: pathlib.Path, path: str) -> list[str]:
    """Returns the sorted names in the folder `root/path`, at most `ENTRIES_MAX`, or an empty list if the folder is
    missing."""
    try:
        with opened_folder(root, path) as descriptor, os.scandir(descriptor) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(ENTRIES_MAX), strict=False))
    except FileNotFoundError:
        return []


def files_below(root: pathlib.Path, path: str) -> list[str]:
    """Returns the sorted paths, relative to `root`, of at most `ENTRIES_MAX` regular files below `root/path`."""
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError), opened_folder(root, path) as descriptor:
        for place, folders, names, here in os.fwalk(".", dir_fd=descriptor, follow_symlinks=False):
            if place.count("/") >= DEPTH_MAX:
                folders.clear()
            for name in names:
                if len(found) >= ENTRIES_MAX:
                    return sorted(found)
                if _is_regular(name, here):
                    found.append(os.path.normpath(os.path.join(path, place, name)))
    return sorted(found)


def _is_regular(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def remove_tree(root: pathlib.Path, path: str) -> None:
    """Removes `root/path` and everything below it, without following links. A missing path is no error. Removes as much
    as possible, and then raises `FaultError` with the first path that is left, if any."""
    try:
        with contextlib.suppress(FileNotFoundError), folder_of(root, path) as (parent, name):
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
                shutil.rmtree(name, dir_fd=parent)  # raises for what is left
            else:
                os.unlink(name, dir_fd=parent)
    except OSError as error:
        raise FaultError(f"{root / path}: cannot be removed: {error.filename}: {error.strerror}") from error


# Files


def open_file(root: pathlib.Path, path: str, flags: int = os.O_RDONLY) -> int:
    """Opens the regular file `root/path`, and returns its descriptor. Raises `FileNotFoundError` if the file is
    missing, and `FaultError` if the path is a link or not a regular file."""
    with folder_of(root, path) as (parent, name):
        try:
            descriptor = os.open(name, flags & ~os.O_TRUNC | _PLAIN, 0o644, dir_fd=parent)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise FaultError(f"{root / path}: not a plain file ({error.strerror}); it is left alone") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FaultError(f"{root / path}: not a regular file; it is left alone")
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_reader(root: pathlib.Path, path: str) -> IO[bytes]:
    """Opens the regular file `root/path` for reading. Raises the same errors as `open_file`."""
    return os.fdopen(open_file(root, path), "rb")


def read(root: pathlib.Path, path: str, limit_bytes: int = FILE_BYTES_MAX) -> bytes:
    """Returns the content of the file `root/path`. Raises `FaultError` if the file is longer than `limit_bytes`, and
    the same errors as `open_file`."""
    with open_reader(root, path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise FaultError(f"{root / path}: more than {limit_bytes} bytes; it is not read")
    return content


def tail(root: pathlib.Path, path: str, limit_bytes: int = TAIL_BYTES) -> str:
    """Returns the last `limit_bytes` of a file as text, with invalid bytes replaced. Raises the same errors as
    `open_file`."""
    with open_reader(root, path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
        return file.read(limit_bytes).decode(errors="replace")


def replace(root: pathlib.Path, path: str, content: bytes, mode: int = 0o644, durable: bool = False) -> None:
    """Replaces the file `root/path` atomically. If `root/path` is a link, the link itself is replaced. If `durable` is
    True, the data is on the disk when the call returns. Raises `OSError` with the path of the file if the file cannot
    be replaced."""
    temporary = f".{secrets.token_hex(8)}"
    with folder_of(root, path) as (parent, name):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, mode, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(descriptor)
            os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(root / path)) from error
            raise


def remove(root: pathlib.Path, path: str) -> None:
    """Removes the file or link `root/path`. A missing file is no error."""
    with contextlib.suppress(FileNotFoundError), folder_of(root, path) as (parent, name):
        os.unlink(name, dir_fd=parent)


def status_of(root: pathlib.Path, path: str) -> os.stat_result | None:
    """Returns the status of `root/path` (as `os.lstat` does), or `None` if the path does not exist."""
    try:
        with folder_of(root, path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def link_of(root: pathlib.Path, path: str) -> str:
    with folder_of(root, path) as (parent, name):
        return os.readlink(name, dir_fd=parent)


def move_inside(root: pathlib.Path, source: str, target: str) -> None:
    """Renames the file or link `root/source` to `root/target`, and replaces an existing file at `root/target`. Raises
    `FaultError` if `root/source` is neither a regular file nor a link."""
    with folder_of(root, source) as (here, name), folder_of(root, target) as (there, new):
        mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise FaultError(f"{root / source}: neither a regular file nor a link; it is left alone")
        os.replace(name, new, src_dir_fd=here, dst_dir_fd=there)


def copy_out(root: pathlib.Path, path: str, target: pathlib.Path) -> None:
    """Copies the regular file `root/path` to `target`, outside of `root`. Raises the same errors as `open_file`."""
    with open_reader(root, path) as source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy, 2**20)
        status: Any = os.fstat(source.fileno())
        os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
