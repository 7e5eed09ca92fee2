"""Virtual environments that hold exactly what a requirements.txt names, each made once."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import venv

ROOT = pathlib.Path(__file__).resolve().parents[1]


def environment(requirements: str, place: pathlib.Path, title: str) -> str:
    """Returns the interpreter of the environment with these requirements, the text of a requirements.txt."""
    made = place / hashlib.sha256(requirements.encode()).hexdigest()[:12]
    if not (made / "complete").exists():
        print(f"Making the environment of {title}", flush=True)
        venv.create(made, clear=True, with_pip=True)
        listed = made / "requirements.txt"
        listed.write_text(requirements)
        pip = [str(made / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "install", "-r", str(listed)]
        subprocess.run(pip, check=True)
        (made / "complete").touch()
    return str(made / "bin" / "python3")


def patched(python: str, change: pathlib.Path) -> str:
    """Returns the interpreter of a copy of an environment whose packages have this change. Equal files are links."""
    origin = pathlib.Path(python).parents[1]
    made = origin.with_name(f"{origin.name}-{hashlib.sha256(change.read_bytes()).hexdigest()[:12]}")
    if not (made / "complete").exists():
        shutil.rmtree(made, ignore_errors=True)
        without = shutil.ignore_patterns("complete")
        shutil.copytree(origin, made, symlinks=True, copy_function=os.link, ignore=without)
        (packages,) = (made / "lib").glob("python*/site-packages")
        patch(packages, change)
        (made / "complete").touch()
    return str(made / "bin" / "python3")


def patch(folder: pathlib.Path, change: pathlib.Path) -> None:
    """Changes files as a patch says. Raises `subprocess.CalledProcessError` if it does not fit exactly."""
    subprocess.run(["patch", "--silent", "--fuzz=0", "-p1", "-d", str(folder), "-i", str(change)], check=True)
