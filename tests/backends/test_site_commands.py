"""A command of the site's own: what it prints, and how it fails."""

import os

import pytest

from harness.backends.site_commands import answer_of
from harness.errors import BackendError


def test_what_it_prints_is_the_answer() -> None:
    assert answer_of(["echo", "here"], os.environ, 10) == "here\n"


@pytest.mark.parametrize(
    ("command", "limit_s", "said"),
    [
        (["no-such-program"], 10, "no-such-program: not found, or not executable"),
        (["sh", "-c", "echo first >&2; echo quota exceeded >&2; exit 3"], 10, "quota exceeded"),
        (["sh", "-c", "exit 7"], 10, "exit code 7"),
        (["sleep", "60"], 0.2, r"sleep did not answer within 0\.2 s"),
    ],
)
def test_a_failure_is_said_in_one_line(command: list[str], limit_s: float, said: str) -> None:
    with pytest.raises(BackendError, match=said) as failed:
        answer_of(command, os.environ, limit_s)
    assert "\n" not in str(failed.value)
