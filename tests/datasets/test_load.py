"""`load_task`: names, variants, and errors for unknown names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import setgrad
from setgrad.datasets import LOADERS, load_task, task_names
from setgrad.errors import DataError, OptionError


def test_task_names_are_unique_and_cover_all_loaders() -> None:
    count = sum(max(1, len(loader.variants)) for loader in LOADERS.values())
    assert len(task_names()) == len(set(task_names())) == count
    assert sum(name.startswith("amazon:") for name in task_names()) == 12 * 2
    assert {name.partition(":")[0] for name in task_names()} == set(LOADERS)


@pytest.mark.parametrize("name", ["gaussian", "moons", "clusters"])
def test_load_task_calls_the_function_of_that_name(name: str) -> None:
    task = load_task(name, random_state=3)
    direct = getattr(setgrad.datasets, name)(random_state=3)
    assert task.name == name
    assert torch.equal(task.test.sets.values, direct.test.sets.values)


def test_counts_are_passed_to_the_loader() -> None:
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
def test_variants_may_be_part_of_the_name_or_arguments(
    folder: Path, name: str, category: str | None, protocol: str | None, full: str
) -> None:
    assert load_task(name, category=category, protocol=protocol, data_dir=folder).name == full
    assert full in task_names()


def test_every_count_applies_to_its_split(folder: Path) -> None:
    task = load_task("amazon:toys", data_dir=folder, n_train=0, n_validation=1)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [0, 1, 1]


def test_every_task_has_a_source_and_a_description(folder: Path) -> None:
    for name in ("gaussian", "moons", "clusters", "amazon:toys"):
        task = load_task(name, n_train=1, data_dir=folder if name.startswith("amazon") else None)
        assert "licence" in task.source and len(task.description) > 50


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("suns", {}, "unknown data set 'suns'; choose one of: gaussian, moons, digits, clusters, amazon"),
        ("", {}, "unknown data set ''"),
        ("moons:full", {}, "'moons' has no variants"),
        ("moons", {"category": "toys"}, "'moons' has no variants"),
        ("amazon", {}, "'amazon' is a family of data sets; load one of them, such as 'amazon:toys:random'"),
        ("amazon", {"protocol": "random"}, "'amazon' is a family of data sets"),
        ("amazon:toys:random:more", {}, "has too many parts"),
        ("anomaly:cats", {}, "unknown images 'cats'; choose one of: olivetti, mnist"),
        ("bundles:books", {}, "unknown bundle category 'books'; choose one of: clothing, electronic, food"),
        ("compounds:biosnap", {}, "unknown compound data set 'biosnap'; choose one of: davis, kiba"),
        ("amazon:toy", {}, "unknown Amazon category 'toy'; choose one of: apparel"),
        ("amazon:toys:near", {}, "unknown Amazon protocol 'near'; choose one of: farthest, random"),
    ],
)
def test_wrong_names_raise_errors(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_task(name, **options)


def test_loaders_list_the_files_and_packages_they_need() -> None:
    assert (LOADERS["moons"].needs, LOADERS["digits"].needs) == ("", "scikit-learn")
    assert LOADERS["celeba"].needs == "data files in the folder SETGRAD_DATA, Pillow"


def test_errors_about_arguments_can_be_written_as_flags(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        load_task("moons", random_state=-1)
    assert caught.value.as_flags() == "--random-state must be an integer of at least 0, not -1"
    with pytest.raises(DataError) as missing:
        load_task("celeba", data_dir=tmp_path / "data_dir")
    assert missing.value.as_flags().startswith(f"there is no folder {tmp_path / 'data_dir' / 'celeba'}; set")
    assert "pass --data-dir: the folder that contains celeba" in missing.value.as_flags()
