"""What is broken is named: bugs that show in the log alone."""

import pytest
from mutants.bent import BROKEN, NEIGHBOURS, Bent
from scorecards import assert_verdict


@pytest.mark.parametrize("mutant", [*BROKEN, *NEIGHBOURS], ids=lambda mutant: mutant.name)
def test_the_right_verdict_for_the_right_reason(mutant: Bent) -> None:
    assert_verdict(mutant.judge(), mutant.verdict, mutant.reason)
