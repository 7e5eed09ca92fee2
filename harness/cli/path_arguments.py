"""Checks the folders and files that the command line names, so that a wrong path cannot stop a command halfway."""

import os
import pathlib
import stat
from collections.abc import Callable

from harness.errors import UsageError


def folder(option: str) -> Callable[[pathlib.Path], pathlib.Path]:
    """Returns a function that checks a folder given for `option`. The folder may be missing, but `UsageError` is raised
    if a part of its path is a file."""

    def check(given: pathlib.Path) -> pathlib.Path:
        for place in (given, *given.parents):
            try:
                os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:  # a name that is too long
                raise UsageError(f"{option} {given}: {error.strerror}") from error
            try:
                mode = os.stat(place).st_mode
            except OSError as error:
                raise UsageError(f"{option} {given}: {place}: {error.strerror}") from error
            if not stat.S_ISDIR(mode):
                raise UsageError(f"{option} {given}: {place} is not a folder")
            break
        return given

    return check


def file_to_write(option: str) -> Callable[[pathlib.Path | None], pathlib.Path | None]:
    """Returns a function that checks a file given for `option`. The file may be missing, but `UsageError` is raised for
    a folder, device or pipe."""

    def check(given: pathlib.Path | None) -> pathlib.Path | None:
        if given is not None:
            folder(option)(given.parent)
            if given.exists() and not given.is_file():
                raise UsageError(f"{option} {given}: not a regular file; it is left alone")
        return given

    return check
