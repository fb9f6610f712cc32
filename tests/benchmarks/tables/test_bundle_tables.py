"""Tables of bundles, and the command."""

import csv
import html
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.lib.records import read_records
from benchmarks.tables.bundle_tables import as_table, read_products
from setgrad.datasets import load_task


def test_rows_have_the_texts_and_the_numbers_of_their_product(data_dir: Path) -> None:
    task = load_task("bundles:food", data_dir=data_dir, n_train=3, n_validation=1, n_test=1)
    folder = data_dir / "bundle_sun2022" / "food"
    rows = as_table(task.train, read_products(folder)).to_pylist()
    assert len(rows) == task.train.sets.layout.total and len({row["bundle"] for row in rows}) == 3
    texts = {}
    for name in ("titles", "categories"):
        with (folder / f"item_{name}.csv").open(encoding="utf-8", newline="") as file:
            texts[name] = {row[0]: html.unescape(row[1]) for row in csv.reader(file)}
    for row, vector, product in zip(rows, task.train.sets.values.tolist(), task.train.item_ids, strict=True):
        assert row["vector"] == vector and row["product"] == product
        assert (row["title"], row["categories"]) == tuple(texts[name][str(product)] for name in texts)
    assert [row["chosen"] for row in rows] == task.train.subsets.values.tolist()


def test_command_runs_and_resumes(
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    few_trees: Callable[[], AbstractContextManager[None]],
) -> None:
    results = tmp_path / "a.jsonl"
    run = ["bundle-tables", "--quick", "--device", "cpu", "--seeds", "1", "--data-dir", str(data_dir)]
    run += ["--results", str(results), "--models", "text"]
    with few_trees():
        assert main(run) == 0
    assert main(run) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 trials" in shown and "## bundles:food" in shown
    (record,) = read_records(results)
    assert all(0 <= record[score] <= 100 for score in ("nothing", "one", "own_size"))
    # An item that is given is one that is right.
    assert record["one"] > 20
