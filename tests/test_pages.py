"""What the pages show runs: every block of Python, and every command of the first page."""

import functools
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import setgrad as sg
from setgrad.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "src" / "setgrad").glob("*/README.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.parent.name if page.parent != ROOT else 'first'}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M))
]
COMMANDS = re.findall(r"^setgrad .*$", PAGES[0].read_text(encoding="utf-8"), re.M)


def _table(baskets: int, items: int = 6) -> dict[str, np.ndarray]:
    """Baskets of products, of which the two with the largest x were bought."""
    rng = np.random.default_rng(baskets)
    x = rng.normal(size=(baskets, items))
    return {
        "basket": np.repeat(np.arange(baskets), items),
        "sku": np.tile(np.arange(items), baskets),
        "brand": rng.integers(0, 3, baskets * items),
        "price": rng.integers(5, 30, baskets * items).astype(float),
        "x": x.reshape(-1),
        "bought": (x.argsort(1).argsort(1) >= items - 2).reshape(-1),
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages read, in the folder that we are in."""
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for name, baskets in (("baskets", 24), ("new_baskets", 5), ("held_out", 8), ("choices", 6)):
        parquet.write_table(pyarrow.table(_table(baskets)), tmp_path / f"{name}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@functools.cache
def _fitted(sets: sg.Sets, subsets: sg.Sets) -> sg.SubsetSelector:
    return sg.SubsetSelector(random_state=0, max_epochs=2, verbose=0, device="cpu").fit(sets, subsets)


def _names() -> dict[str, Any]:
    """What the blocks take as given."""
    table = _table(24)
    sets = sg.Sets.from_lengths(torch.tensor(table["x"])[:, None].float(), [6] * 24)
    subsets = sets.with_values(torch.tensor(table["bought"]))
    return {
        "sg": sg,
        "sets": sets,
        "subsets": subsets,
        "sel": _fitted(sets, subsets),
        "prices": sets.with_values(torch.tensor(table["price"])),
        "brands": sets.with_values(torch.tensor(table["brand"])),
        "weights": [10.0] * 6,
        **{f"x{i}": torch.randn(i, 2) for i in range(3)},
        "picks": sg.Sets.from_list([[True, False, False, False, True, True]] * 6),
    }


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_python_runs(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few sets and epochs: the pages are to run here, not to learn.
    monkeypatch.setattr(
        sg.datasets, "load_task", functools.partial(sg.datasets.load_task, n_train=30, n_validation=9, n_test=9)
    )
    monkeypatch.setattr(sg, "SubsetSelector", functools.partial(sg.SubsetSelector, max_epochs=2))
    with torch.random.fork_rng():
        exec(compile(block, "block", "exec"), _names())


def test_the_commands_of_the_first_page_run(folder: Path) -> None:
    assert len(COMMANDS) == 4
    for command in COMMANDS:
        assert main(shlex.split(command)[1:]) == 0, command
        if "-o" in command:
            assert os.path.exists(shlex.split(command)[shlex.split(command).index("-o") + 1])
