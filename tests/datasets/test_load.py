"""The one door: names, variants, and what it says to a name it does not know."""

from pathlib import Path

import numpy as np
import pytest
import torch

import setgrad
from setgrad.datasets import LOADERS, load_task, task_names
from setgrad.errors import OptionError


def test_every_task_has_a_name_of_its_own() -> None:
    assert (
        len(task_names()) == len(set(task_names())) == sum(max(1, len(loader.variants)) for loader in LOADERS.values())
    )
    assert sum(name.startswith("amazon:") for name in task_names()) == 12 * 2
    assert {name.partition(":")[0] for name in task_names()} == set(LOADERS)


@pytest.mark.parametrize("name", ["gaussian", "moons"])
def test_load_is_the_function_of_that_name(name: str) -> None:
    task = load_task(name, random_state=3)
    direct = getattr(setgrad.datasets, name)(random_state=3)
    assert task.name == name
    assert torch.equal(task.test.sets.values, direct.test.sets.values)


def test_counts_reach_the_loader() -> None:
    task = load_task("moons", n_train=3, n_validation=2, n_test=1)
    assert repr(task) == "Task('moons': 3 training, 2 validation, 1 test sets)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "amazon_baby_registry"
    folder.mkdir()
    np.savez(folder / "minilm_l6_v2_item_embeddings.npz", toys=np.random.default_rng(0).standard_normal((31, 2)))
    (folder / "1_100_100_100_toys_regs.csv").write_text("1,2,3\n4,5,6\n7,8,9\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "category", "protocol", "full"),
    [
        ("amazon:toys", None, None, "amazon:toys:farthest"),
        ("amazon:toys:farthest", None, None, "amazon:toys:farthest"),
        ("amazon:toys:random", None, None, "amazon:toys:random"),
        ("amazon", "toys", None, "amazon:toys:farthest"),
        ("amazon", "toys", "random", "amazon:toys:random"),
        ("amazon:toys", None, "random", "amazon:toys:random"),
    ],
)
def test_variants(folder: Path, name: str, category: str | None, protocol: str | None, full: str) -> None:
    assert load_task(name, category=category, protocol=protocol, data_dir=folder).name == full
    assert full in task_names()


def test_every_count_goes_to_its_own_split(folder: Path) -> None:
    task = load_task("amazon:toys", data_dir=folder, n_train=0, n_validation=1)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [0, 1, 1]


def test_every_task_says_where_it_comes_from(folder: Path) -> None:
    for task in (
        load_task("gaussian", n_train=1),
        load_task("moons", n_train=1),
        load_task("amazon:toys", data_dir=folder),
    ):
        assert "licence" in task.source and len(task.description) > 50


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("suns", "unknown data set 'suns'; choose one of: gaussian, moons, digits, amazon"),
        ("", "unknown data set ''"),
        ("moons:full", "'moons' has no variants"),
        ("amazon", "'amazon' is a family of data sets; ask for one of them, such as 'amazon:toys:random'"),
        ("amazon:toys:random:more", "says too much"),
        ("amazon:toy", "unknown Amazon category 'toy'; choose one of: apparel"),
        ("amazon:toys:near", "unknown Amazon protocol 'near'; choose one of: farthest, random"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_task(name)


def test_protocol_without_category() -> None:
    with pytest.raises(OptionError, match="'amazon' is a family of data sets"):
        load_task("amazon", protocol="random")


def test_category_of_a_task_without_variants() -> None:
    with pytest.raises(OptionError, match="'moons' has no variants"):
        load_task("moons", category="toys")
