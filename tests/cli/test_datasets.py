"""The list of data sets, and data sets as tables."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import torch

import setgrad as sg


def test_the_list_has_all_data_sets(run: Callable) -> None:
    data = run("datasets", "--json").data
    assert data["names"] == sg.datasets.task_names()
    assert [entry["name"] for entry in data["datasets"]] == list(sg.datasets.LOADERS)
    shown = run("datasets").out
    for name, loader in sg.datasets.LOADERS.items():
        assert name in shown
        assert loader.summary in shown
        assert loader.needs in shown


def test_tables_are_listed_described_and_written(run: Callable, tmp_path: Path) -> None:
    listed = run("datasets", "--json").data["tables"]
    assert [entry["name"] for entry in listed] == sg.datasets.table_names()
    shop = sg.datasets.load_table("shop")
    result = run("datasets", "shop", "-o", tmp_path / "shop", "--json").data
    assert result["splits"]["train"] == {"sets": 600, "items": shop.train.num_rows}
    for path, table in zip(result["tables"], (shop.train, shop.test), strict=True):
        assert pyarrow.parquet.read_table(path).equals(table)
    shown = run("datasets", "shop").out
    assert "in_cart" in shown and shop.description.split(".")[0] in " ".join(shown.split())


def test_one_data_set_is_described(run: Callable) -> None:
    task = sg.datasets.load_task("digits")
    data = run("datasets", "digits", "--json").data
    assert data["description"] == task.description
    assert data["splits"]["test"] == {"sets": len(task.test), "items": task.test.sets.layout.total}
    shown = run("datasets", "digits").out
    assert task.description in shown
    assert "8 to 20" in shown


def test_tables_hold_the_data_set(run: Callable, tmp_path: Path) -> None:
    result = run("datasets", "digits", "-o", tmp_path / "deep" / "digits", "--random-state", "3", "--json").data
    task = sg.datasets.load_task("digits", random_state=3)
    for path, split in zip(result["tables"], (task.train, task.validation, task.test), strict=True):
        back = sg.read_table(path, set_id="set", item_id="item", chosen="chosen")
        assert torch.equal(back.sets.values, split.sets.values)
        assert torch.equal(back.subsets.values, split.subsets.values)
        assert back.sets.layout.same_as(split.sets.layout)
        assert list(back.item_ids) == list(split.item_ids)


def test_a_family_needs_a_variant(run: Callable) -> None:
    result = run("datasets", "amazon")
    assert result.code == 1
    assert "family of data sets" in result.err
