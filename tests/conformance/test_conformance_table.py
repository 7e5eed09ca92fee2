"""The page about backends says what the backends say."""

from __future__ import annotations

from conformance.checks import CHECKS
from conformance.table import IN_THE_LIFE_OF_A_RUN, declared

from harness.backends.contract import Verb


def test_every_verb_has_a_check_of_its_own() -> None:
    assert CHECKS.keys() | IN_THE_LIFE_OF_A_RUN.keys() == set(Verb)
    assert not CHECKS.keys() & IN_THE_LIFE_OF_A_RUN.keys()


def test_every_reason_is_a_reason() -> None:
    for column, lacks in declared().items():
        assert all(len(reason) > 10 for reason in lacks.values()), column
