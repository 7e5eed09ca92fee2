"""No program is called that is not in the list, the list names no other, and a missing one is named, never evidence."""

import os
import pathlib
import subprocess
import sys

import machine
import pytest
from called_programs import ROOT, Call, calls_in_python, calls_in_shell, calls_of_project

from harness import programs
from harness.cli.machine import programs_found
from harness.node import compiling

# By a path, by a function, or by a script that a script writes.
OTHERWISE_CALLED = set(["chromium", "etcd", "prometheus", "prometheus-alertmanager", "runc", "sed"])


def test_the_list_holds_every_program_that_is_called_and_no_other() -> None:
    calls = calls_of_project()
    unknown = [call for call in sorted(calls) if call.program not in programs.PROGRAMS]
    assert not unknown, "add it to harness/programs.py, with its package: " + "; ".join(map(str, unknown))
    assert set(programs.PROGRAMS) - {call.program for call in calls} - OTHERWISE_CALLED == set()
    with pytest.raises(KeyError):
        machine.need("no-such-program")
    for name, program in programs.PROGRAMS.items():
        assert name == program.name and program.package and program.use
        assert set(program.groups) <= set(programs.GROUPS)
    assert set(programs.FURTHER_PACKAGES) <= set(programs.GROUPS)
    assert set(programs.COMPILERS) == set(compiling.COMPILERS)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("subprocess.run(['one', '-x'])", {"one"}),
        ("subprocess.Popen(('/usr/bin/one',))", {"one"}),
        ("COMMAND = ['one']\nsubprocess.check_output([*COMMAND, '-v'])", {"one"}),
        ("[shutil.which(name) for name in ('one', 'two')]", {"one", "two"}),
        ("enter = ['nsenter', '-t', pid]\nfor c in ('one -l', 'two'):\n    subprocess.run([*enter, *c.split()])", {"nsenter", "one", "two"}),
        ("x = ['unshare', '--user', 'sh', '-c', 'one && exec two']", {"unshare", "sh", "one", "two"}),
        ("os.execvp('one', words)", {"one"}),
        ("subprocess.run([sys.executable, '-c', code]); print(['one'])", set()),
    ],
)  # fmt: skip
def test_calls_are_found_in_python(code: str, found: set[str]) -> None:
    assert {call.program for call in calls_in_python(code)} == found


def test_calls_are_found_in_shell() -> None:
    for text, found in (
        ("one -x | two; three && ! four", "one two three four"),
        ('x=$(one "$(two)" word); three "text; no # no"', "one two three"),
        ("case $x in start) one ;; stop | end) two ;; esac", "one two"),
        ("act() { one; }\nact two", "one"),
        ("one <<END\nno; no\nEND\ntwo # no; no", "one two"),
        ("list=(no no)\nif [ x = y ]; then one; fi; setsid --wait two three", "one setsid two"),
        ("for ((i = 0; i < 2; i++)); do one; done", "one"),
        ("(one && two) >file", "one two"),
    ):
        assert {call.program for call in calls_in_shell(text)} == {*found.split()}, text
    assert calls_in_shell("true\n\none 'a\nb'\ntwo", "x.sh") == {Call("one", "x.sh", 3), Call("two", "x.sh", 5)}


@pytest.fixture
def empty_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _install(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


def test_a_test_that_needs_a_missing_program_says_so_in_one_line(empty_path: pathlib.Path) -> None:
    _install(empty_path, "tc")
    with pytest.raises(pytest.skip.Exception) as skipped:
        machine.need("tc", "nft")
    assert "nft" in str(skipped.value) and "nftables" in str(skipped.value)
    assert "iproute2" not in str(skipped.value) and "\n" not in str(skipped.value)
    _install(empty_path, "nft")
    machine.need("tc", "nft")


def test_only_what_is_missing_is_installed(empty_path: pathlib.Path) -> None:
    assert programs.packages(["docker"]) == ["docker.io", "runc", "iptables", "curl", "debootstrap"]
    _install(empty_path, *programs.members("docker"))
    assert programs.packages(["docker"]) == [], "somebody who has a Docker daemon of their own needs none of ours"
    assert programs.packages(["tests"]) == ["iproute2", "nftables", "gcc", "openssl", "libc6-dev"]


def test_the_script_that_installs_asks_the_list() -> None:
    script = [sys.executable, str(ROOT / "harness" / "programs.py"), "tests", "browser"]
    done = subprocess.run(script, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "iproute2",
        "nftables",
        "gcc",
        "openssl",
        "libc6-dev",
        "chromium",
        "fonts-dejavu-core",
    ]
    script = [str(ROOT / "engines" / "provision.sh"), "dokcer"]
    done = subprocess.run(script, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 4, "a group that is not there is refused"
    assert "'dokcer'" in done.stderr and "docker" in done.stderr.replace("'dokcer'", "")


def test_the_doctor_names_what_is_missing_and_does_not_call_the_machine_unfit(empty_path: pathlib.Path) -> None:
    (tests,) = (finding for finding in programs_found() if finding.what.startswith("programs for tests,"))
    assert not tests.ok and not tests.needed
    assert "nft (nftables)" in tests.detail and "cc (gcc)" in tests.detail
    _install(empty_path, *programs.members("tests"))
    (tests,) = (finding for finding in programs_found() if finding.what.startswith("programs for tests,"))
    assert tests.ok
