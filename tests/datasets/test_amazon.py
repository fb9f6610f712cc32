"""The published Amazon registries: counts, splits and the other products of each set."""

from pathlib import Path

import numpy as np
import pytest

from setgrad.datasets import AMAZON_CATEGORIES, AMAZON_PROTOCOLS, Task, amazon
from setgrad.sets import Choices

PROTOCOLS = pytest.mark.parametrize("protocol", AMAZON_PROTOCOLS)

# Registries with 2 < |S| < 30, counted independently of the loader.
COUNTS = {
    "apparel": 4675,
    "bath": 3195,
    "bedding": 4524,
    "carseats": 483,
    "diaper": 6108,
    "feeding": 8202,
    "furniture": 280,
    "gear": 4277,
    "health": 2995,
    "media": 1485,
    "safety": 267,
    "toys": 2421,
}


@pytest.fixture(scope="module")
def folder(data_dir: Path) -> Path:
    folder = data_dir / "amazon_baby_registry"
    if not folder.is_dir():
        pytest.skip(f"no Amazon registries at {folder}; set SETGRAD_DATA to the folder that holds them")
    return folder


def products(part: Choices) -> np.ndarray:
    return np.asarray(part.item_ids).reshape(-1, 30)


def numbers(part: Choices) -> list[int]:
    return list(part.set_ids or [])


def masks(part: Choices) -> np.ndarray:
    return part.subsets.values.numpy().reshape(-1, 30)


def lines(folder: Path, category: str) -> list[list[int]]:
    text = (folder / f"1_100_100_100_{category}_regs.csv").read_text()
    return [[int(n) for n in line.split(",")] for line in text.splitlines()]


@pytest.mark.parametrize("category", AMAZON_CATEGORIES)
def test_splits_are_thirds_of_the_usable_registries(folder: Path, category: str) -> None:
    task = amazon(category, data_dir=folder.parent)
    total, third = COUNTS[category], COUNTS[category] // 3
    assert [len(part) for part in (task.train, task.validation, task.test)] == [third, third, total - 2 * third]
    for part in (task.train, task.validation, task.test):
        assert (part.sets.layout.host_lengths == 30).all()
        assert part.sets.item_shape == (384,)
        sizes = masks(part).sum(1)
        assert sizes.min() >= 3 and sizes.max() < 30
        assert (np.diff(np.sort(products(part), axis=1), axis=1) > 0).all()


@PROTOCOLS
@pytest.mark.parametrize("category", ["toys", "furniture", "carseats"])
def test_chosen_products_are_those_of_the_line_in_the_file(folder: Path, category: str, protocol: str) -> None:
    task = amazon(category, protocol, data_dir=folder.parent)
    registries = lines(folder, category)
    vectors = np.load(folder / "minilm_l6_v2_item_embeddings.npz", allow_pickle=False)[category]
    all_numbers: list[int] = []
    for part in (task.train, task.validation, task.test):
        items, chosen = products(part), masks(part)
        for number, row, mask in zip(numbers(part), items, chosen, strict=True):
            assert set(row[mask]) == set(registries[number - 1])
        assert np.array_equal(part.sets.values.numpy().reshape(-1, 30, 384), vectors[items - 1])
        all_numbers += numbers(part)
    assert all_numbers == [n for n, row in enumerate(registries, start=1) if 2 < len(row) < 30]


@pytest.mark.parametrize("category", ["toys", "safety"])
def test_farthest_adds_the_least_similar_products(folder: Path, category: str) -> None:
    vectors = np.load(folder / "minilm_l6_v2_item_embeddings.npz", allow_pickle=False)[category].astype(float)
    part = amazon(category, "farthest", data_dir=folder.parent).test
    for row, mask in zip(products(part) - 1, masks(part), strict=True):
        mean = vectors[row[mask]].mean(0)
        cosine = vectors @ mean / np.linalg.norm(mean) / np.linalg.norm(vectors, axis=1)
        outside = np.setdiff1d(np.arange(len(vectors)), row)
        assert cosine[row[~mask]].max() <= cosine[outside].min() + 1e-9


def test_random_adds_every_other_product_equally_often(folder: Path) -> None:
    task = amazon("feeding", "random", data_dir=folder.parent)
    actual, expected = np.zeros(100), np.zeros(100)
    items, chosen = products(task.train) - 1, masks(task.train)
    np.add.at(actual, items[~chosen], 1)
    for row, mask in zip(items, chosen, strict=True):
        free = np.setdiff1d(np.arange(100), row[mask])
        expected[free] += (30 - mask.sum()) / len(free)
    assert np.abs(actual - expected).max() < 5 * np.sqrt(expected.max())


@PROTOCOLS
def test_chosen_products_are_at_random_positions(folder: Path, protocol: str) -> None:
    chosen = masks(amazon("bath", protocol, data_dir=folder.parent).train)
    assert np.abs(chosen.mean(0) - chosen.mean()).max() < 5 * np.sqrt(chosen.mean() / len(chosen))


def test_the_seed_changes_items_but_not_registries(folder: Path) -> None:
    def load(protocol: str, seed: int) -> Task:
        return amazon("safety", protocol, random_state=seed, data_dir=folder.parent)

    for protocol in AMAZON_PROTOCOLS:
        one, same, other = (products(load(protocol, seed).train) for seed in (0, 0, 1))
        assert np.array_equal(one, same) and not np.array_equal(one, other)
    by_farthest = [np.sort(products(load("farthest", seed).train), axis=1) for seed in (0, 1)]
    by_random = [np.sort(products(load("random", seed).train), axis=1) for seed in (0, 1)]
    assert np.array_equal(by_farthest[0], by_farthest[1]) and not np.array_equal(by_random[0], by_random[1])


def test_smaller_counts_return_the_first_sets_of_each_split(folder: Path) -> None:
    whole = amazon("safety", data_dir=folder.parent)
    part = amazon("safety", data_dir=folder.parent, n_train=4, n_validation=0, n_test=10_000)
    assert numbers(part.train) == numbers(whole.train)[:4]
    assert np.array_equal(products(part.train), products(whole.train)[:4])
    assert len(part.validation) == 0 and part.test.set_ids == whole.test.set_ids
