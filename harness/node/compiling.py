"""Builds the C libraries that are loaded into processes of nodes, with the C compiler of the harness's machine."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

from harness.errors import CannotRunError

COMPILERS = ("cc", "gcc", "clang")
COMPILE_S_MAX = 60.0


def why_not() -> str | None:
    """Returns the reason why C libraries cannot be built on this machine, with a remedy, or `None` if there is a C
    compiler."""
    if any(map(shutil.which, COMPILERS)):
        return None
    return f"no C compiler ({', '.join(COMPILERS)}): install one, e.g. the package gcc"


def build(library: pathlib.Path, *arguments: str) -> None:
    """Builds a shared library. `arguments` are arguments of the compiler, such as source files and definitions. Raises
    `CannotRunError` if there is no C compiler, or if the compilation fails."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise CannotRunError(str(why_not()))
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S_MAX)
    if done.returncode != 0:
        raise CannotRunError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
