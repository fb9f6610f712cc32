"""Fixtures of this room: every format, and pieces so small that sets span them."""

import pytest

from setgrad.sets import _formats
from tests.sets.tables import ENDINGS


@pytest.fixture(params=ENDINGS)
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces of two rows, and CSV blocks of a few."""
    monkeypatch.setattr(_formats, "PIECE_ROWS", 2)
    monkeypatch.setattr(_formats, "CSV_BLOCK_BYTES", 64)
