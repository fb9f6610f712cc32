"""Set anomaly on the handwritten digits of scikit-learn."""

import re
from math import comb

import numpy as np
import pytest

from setgrad.datasets import Task, digits
from setgrad.errors import MissingDependencyError
from tests.datasets.helpers import hide, splits


@pytest.fixture(scope="module")
def task() -> Task:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    return digits()


@pytest.fixture(scope="module")
def bundled(task: Task) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def test_the_default_numbers_of_sets(task: Task) -> None:
    assert [len(part) for part in splits(task)] == [1000, 300, 500]
    assert task.train.sets.item_shape == (64,)


def test_items_are_the_images_of_their_ids(task: Task, bundled: tuple[np.ndarray, np.ndarray]) -> None:
    for part in splits(task):
        assert np.allclose(part.sets.values.numpy() * 16, bundled[0][part.item_ids])


def test_odd_images_are_a_minority_of_different_digits(task: Task, bundled: tuple[np.ndarray, np.ndarray]) -> None:
    for part in splits(task):
        ids, offsets = np.asarray(part.item_ids), part.sets.layout.host_offsets
        for index, mask in enumerate(part.subsets):
            images = ids[offsets[index] : offsets[index + 1]]
            labels, chosen = bundled[1][images], mask.numpy()
            majority = np.unique(labels[~chosen])
            assert len(majority) == 1 and majority[0] not in labels[chosen]
            assert len(set(labels[chosen])) == chosen.sum() < (~chosen).sum()
            assert len(set(images)) == len(images)


def test_sets_have_every_size_in_the_range(task: Task) -> None:
    for part in splits(task):
        assert set(part.sets.layout.host_lengths) == set(range(8, 21))
        assert {int(mask.sum()) for mask in part.subsets} == {2, 3, 4}


def test_chosen_items_are_at_random_positions(task: Task) -> None:
    first = np.array([bool(mask[0]) for mask in task.train.subsets])
    last = np.array([bool(mask[-1]) for mask in task.train.subsets])
    expected = float(np.mean([float(mask.float().mean()) for mask in task.train.subsets]))
    assert abs(first.mean() - expected) < 0.06 and abs(last.mean() - expected) < 0.06


def test_no_image_is_in_two_splits(task: Task) -> None:
    train, validation, test = (set(np.asarray(part.item_ids).tolist()) for part in splits(task))
    assert not train & validation and not train & test and not validation & test
    assert min(len(train), len(validation), len(test)) > 300


def test_the_scores_in_the_description_are_right(task: Task) -> None:
    def chance(n: int, k: int) -> float:
        return sum(comb(k, h) * comb(n - k, k - h) / comb(n, k) * h / (2 * k - h) for h in range(k + 1))

    def farthest(x: np.ndarray, chosen: np.ndarray) -> float:
        picked = np.argsort(-np.linalg.norm(x - x.mean(0), axis=1))[: chosen.sum()]
        hits = chosen[picked].sum()
        return hits / (2 * chosen.sum() - hits)

    random_score, distance_score = (float(number) for number in re.findall(r"0\.\d+", task.description))
    sizes = [(n, min(k, (n - 1) // 2)) for n in range(8, 21) for k in (2, 3, 4)]
    assert np.mean([chance(n, k) for n, k in sizes]) == pytest.approx(random_score, abs=0.006)
    scores = [farthest(x.numpy(), mask.numpy()) for x, mask in zip(*task.test, strict=True)]
    assert np.mean(scores) == pytest.approx(distance_score, abs=0.06)


def test_missing_scikit_learn_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "sklearn.datasets")
    with pytest.raises(MissingDependencyError, match=r'pip install "setgrad\[demo\]"'):
        digits()
