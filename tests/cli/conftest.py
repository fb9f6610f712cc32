"""A small table, a model that the command line fitted on it, and a function that calls the command."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from setgrad.cli import main

TINY = ["--dim", "16", "--heads", "2", "--max-epochs", "2", "--random-state", "0", "--verbose", "0", "--device", "cpu"]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        result = json.loads(self.out)
        assert isinstance(result, dict)
        return result


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*words: object) -> Result:
        capsys.readouterr()
        code = main([str(word) for word in words])
        caught = capsys.readouterr()
        return Result(code, caught.out, caught.err)

    return call


@pytest.fixture(scope="module", autouse=True)
def grow_few_trees(few_trees: Callable[..., AbstractContextManager[None]]) -> Iterator[None]:
    """Only tests/trees is about how much trees learn."""
    with few_trees():
        yield


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Return options of a quick fit."""
    return TINY


def table_rows(seed: int, sets: int = 20) -> list[list[str]]:
    """Return the rows of a table; chosen are the two items of a basket with the largest price."""
    rng = np.random.default_rng(seed)
    rows = [["basket", "product", "price", "stars", "bought", "load"]]
    for basket in range(sets):
        price, stars = rng.normal(size=(2, rng.integers(4, 9)))
        best = set(np.argsort(-price)[:2].tolist())
        for place in range(len(price)):
            chosen = "true" if place in best else "false"
            rows.append([f"b{basket}", f"p{place}", f"{price[place]:.5f}", f"{stars[place]:.5f}", chosen, "1.5"])
    return rows


def write_rows(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def rows() -> list[list[str]]:
    return table_rows(0)


@pytest.fixture(scope="session")
def put() -> Callable[[Path, list[list[str]]], Path]:
    return write_rows


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> Path:
    return write_rows(tmp_path_factory.mktemp("table") / "baskets.csv", rows)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Path:
    """Fit a model by the command line; tests that change it make a copy."""
    folder = tmp_path_factory.mktemp("fit") / "model"
    words = ["--set-id", "basket", "--item-id", "product", "--chosen", "bought", "--features", "price,stars"]
    assert main(["fit", str(table), *words, "-o", str(folder), *TINY]) == 0
    return folder
