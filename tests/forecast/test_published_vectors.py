"""The simulator is held to what others published, one test a figure."""

import pytest

from harness.forecast import published_vectors
from harness.forecast.published_vectors import VECTORS, Vector, check_all, markdown


@pytest.mark.parametrize("vector", VECTORS, ids=lambda each: f"{each.source}: {each.figure}")
def test_a_published_figure(vector: Vector) -> None:
    assert vector.low <= vector.ours() <= vector.high, f"published: {vector.published}"


def test_each_source_is_there() -> None:
    reproduced = [each for each in VECTORS if not each.why]
    assert len({(each.source, each.figure) for each in VECTORS}) == len(VECTORS)
    assert len(reproduced) >= 30 and len({each.source for each in reproduced}) == 6


def test_a_missed_figure_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Vector("a source", "a figure", "1", 0.9, 1.1, "inputs", lambda: 2.0)
    monkeypatch.setattr(published_vectors, "VECTORS", [wrong])
    (row,) = check_all()
    assert not row.ok and "0.9 to 1.1, **missed**" in markdown([row])
