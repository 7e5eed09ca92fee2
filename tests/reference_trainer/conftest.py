from __future__ import annotations

from collections.abc import Iterator

import pytest
from job import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()
