"""Fixtures of the tests of tables: every file ending, and chunks so small that sets span several."""

import pytest

from setgrad.sets import _formats
from tests.sets.tables import ENDINGS


@pytest.fixture(params=ENDINGS)
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read chunks of two rows, and CSV blocks of a few."""
    monkeypatch.setattr(_formats, "CHUNK_ROWS", 2)
    monkeypatch.setattr(_formats, "CSV_BLOCK_BYTES", 64)
    monkeypatch.setattr(_formats, "CSV_COLUMN_BYTES", 0)
