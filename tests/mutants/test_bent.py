"""What is broken is named: bugs that show in the log alone."""

from __future__ import annotations

import pytest
from mutants.bent import BROKEN, NEIGHBOURS, Bent


@pytest.mark.parametrize("mutant", [*BROKEN, *NEIGHBOURS], ids=lambda mutant: mutant.name)
def test_the_right_verdict_for_the_right_reason(mutant: Bent) -> None:
    card = mutant.judge()
    assert card.verdict is mutant.verdict, card.reasons
    assert any(mutant.reason in text for text in card.reasons), card.reasons
