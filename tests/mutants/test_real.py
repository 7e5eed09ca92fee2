"""A few of the broken trainers, run for real; all of them: `make verdict-matrix`."""

import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from verdict_matrix import trainer
from verdict_matrix.catalogue import CONTROLS, MUTANTS, QUICK
from verdict_matrix.rehearsal import REHEARSALS, Real, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("mutants")


SOME = [*CONTROLS[:1], *(mutant for mutant in MUTANTS if mutant.name in QUICK)]
MARKED = [pytest.param(each, marks=[pytest.mark.healthy] * (each in CONTROLS), id=each.name) for each in SOME]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MARKED)
def test_the_right_verdict_for_the_right_reason(
    mutant: Real, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REHEARSALS[mutant.rehearsal]["workload"], "restore_drill", False)
    card = run(mutant, folder)
    assert mutant.accepts(card), (card.verdict, card.reasons)


def test_every_bug_and_every_variation_is_in_the_catalogue() -> None:
    assert {mutant.bug for mutant in MUTANTS} == set(trainer.BUGS)
    assert {control.bug for control in CONTROLS} == {None, *trainer.VARIATIONS}
    assert all(inspect.isfunction(bug) for bug in (trainer.BUGS | trainer.VARIATIONS).values())


@pytest.mark.parametrize("bug", [*trainer.BUGS, *trainer.VARIATIONS])
def test_what_a_bug_puts_in_takes_what_was_there_before(bug: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The trainer's functions get new parameters now and then; a bug that does not take them is only a crash."""
    child = os.fork()
    if child == 0:
        os._exit(_install(bug))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, capfd.readouterr().err


def _install(bug: str) -> int:
    try:
        before = dict(_functions())
        (trainer.BUGS | trainer.VARIATIONS)[bug]()
        for name, function in _functions():
            if function is not before.get(name, function):
                taken = inspect.signature(before[name]).parameters.values()
                inspect.signature(function).bind(*(each for each in taken if each.kind == each.POSITIONAL_OR_KEYWORD))
    except BaseException as error:
        print(f"{bug}: {error!r}", file=sys.stderr, flush=True)
        return 1
    return 0


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All functions and methods of the reference trainer, by module and name."""
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("reference_trainer"):
            continue
        for name, value in vars(module).items():
            if inspect.isfunction(value):
                yield f"{module_name}.{name}", value
            elif inspect.isclass(value) and value.__module__ == module_name:
                for method, function in vars(value).items():
                    if inspect.isfunction(function):
                        yield f"{module_name}.{name}.{method}", function
