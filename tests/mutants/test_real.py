"""A few of the broken trainers, run for real; all of them: `make verdict-matrix`."""

from __future__ import annotations

import inspect
import pathlib

import pytest
from mutants import trainer
from mutants.catalogue import CONTROLS, MUTANTS, QUICK, Real
from mutants.rehearsal import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("mutants")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [*CONTROLS[:1], *(mutant for mutant in MUTANTS if mutant.name in QUICK)],
    ids=lambda mutant: mutant.name,
)
def test_the_right_verdict_for_the_right_reason(mutant: Real, folder: pathlib.Path) -> None:
    card = run(mutant.bug, mutant.rehearsal, folder)
    assert mutant.accepts(card), (card.verdict, card.reasons)


def test_every_bug_and_every_variation_is_in_the_catalogue() -> None:
    assert {mutant.bug for mutant in MUTANTS} == set(trainer.BUGS)
    assert {control.bug for control in CONTROLS} == {None, *trainer.VARIATIONS}
    assert all(inspect.isfunction(bug) for bug in (trainer.BUGS | trainer.VARIATIONS).values())
