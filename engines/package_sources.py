"""Gives a minimal system in a folder this host's sources of packages: pip's, apt's, and the CA bundle.

    python3 package_sources.py ROOT

Prints the local folders that those settings name, one a line, which ROOT must be able to read at the same place.
All of it comes from the host's own settings; nothing else of the host goes along.
"""

from __future__ import annotations

import ast
import configparser
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import urllib.parse

PIP_SETTINGS = {
    *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"),
    *("cert", "client-cert", "proxy", "timeout", "default-timeout", "retries"),
}
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
APT_SETTINGS = (
    "Acquire::http",
    "Acquire::https",
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
    "Acquire::Retries",
)
CA_BUNDLE = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
OURS = pathlib.Path(__file__).resolve().parents[1] / ".venv/bin/python"


def pip_settings() -> dict[str, str]:
    """What pip is told on this host about where packages are: files first, as the environment wins over them."""
    for python in (sys.executable, str(OURS)):
        done = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            break
    else:
        sys.exit("package_sources.py: no pip on this host; run `make setup` first")
    named = [line.partition("=") for line in done.stdout.splitlines()]
    named.sort(key=lambda each: each[0].startswith(":env:"))
    settings = {name.rpartition(".")[2]: ast.literal_eval(value) for name, _, value in named}
    return {name: value for name, value in settings.items() if name in PIP_SETTINGS}


def folders(settings: dict[str, str]) -> set[str]:
    """Local folders among pip's sources. The pages of an index may name files beside it, so its parent is meant."""
    found = set()
    for name in ("index-url", "extra-index-url", "find-links"):
        for word in settings.get(name, "").split():
            path = urllib.parse.unquote(urllib.parse.urlsplit(word).path) if word.startswith("file:") else word
            if os.path.isabs(path) and os.path.isdir(path):
                found.add(path if name == "find-links" else os.path.dirname(path.rstrip("/")))
    return found


def main(root: pathlib.Path) -> None:
    settings = pip_settings()
    written = configparser.RawConfigParser()
    written["global"] = settings
    with open(root / "etc/pip.conf", "w", encoding="utf-8") as file:
        written.write(file)
    apt = subprocess.run(["apt-config", "dump", *APT_SETTINGS], capture_output=True, text=True, check=True, timeout=60)
    (root / "etc/apt/apt.conf.d/90host").write_text(apt.stdout)
    wanted = {name for base in PROXIES for name in (base, base.upper())} | set(CERTIFICATES)
    exported = {name: os.environ[name] for name in sorted(wanted) if os.environ.get(name)}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in exported.items()]
    (root / "package-settings").write_text("".join(lines))
    bundles = {CA_BUNDLE, *(pathlib.Path(exported[name]) for name in CERTIFICATES if name in exported)}
    for bundle in bundles | {pathlib.Path(settings[name]) for name in ("cert", "client-cert") if name in settings}:
        if bundle.is_file():
            copy = root / bundle.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle, copy)
    print("\n".join(sorted(folders(settings))))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
