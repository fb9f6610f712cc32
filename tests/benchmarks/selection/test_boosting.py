"""Gradient boosting: its features against loops, and what it learns from a set."""

import numpy as np
import pytest
import torch

from benchmarks.selection.baselines import BASELINES, TREES, applies, score_baseline
from benchmarks.selection.boosting import Boosting, group_features
from setgrad.datasets import Task
from setgrad.sets import Choices, Sets


def _draw(rng: np.random.Generator, count: int) -> Choices:
    # Two items are above the others by 3 deviations, but sets differ by much more than that.
    chosen = rng.random((count, 10)).argsort(1) < 2
    values = rng.normal(size=(count, 10)) + 3 * chosen + 100 * rng.normal(size=(count, 1))
    return Choices.of(values[..., None].tolist(), [np.flatnonzero(row).tolist() for row in chosen])


@pytest.fixture(scope="module")
def task() -> Task:
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    return Task("generated", "", _draw(rng, 100), _draw(rng, 50), _draw(rng, 50), "")


def test_features_equal_those_of_a_loop() -> None:
    values = torch.tensor([[1.0, 5.0], [2.0, 5.0], [2.0, 7.0], [9.0, -1.0], [3.0, 3.0]])
    found = group_features(Sets.from_lengths(values, [4, 0, 1]))
    rows = []
    for part in (values[:4].numpy(), values[4:].numpy()):
        for item in part:
            spread = part.std(0)
            z_scores = np.where(spread > 0, (item - part.mean(0)) / np.where(spread > 0, spread, 1), 0)
            # The item itself is equal to itself, and is no other item.
            halves = (part < item).sum(0) + ((part == item).sum(0) - 1) / 2
            shares = halves / max(1, len(part) - 1)
            distance = np.linalg.norm(item - part.mean(0))
            rows.append([*item, *z_scores, *shares, distance, len(part)])
    np.testing.assert_allclose(found, rows, rtol=1e-6, atol=1e-6)


def test_features_of_many_sets_are_those_of_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 4, (600,), generator=generator).tolist()
    sets = Sets.from_lengths(torch.randint(0, 3, (sum(lengths), 2), generator=generator).float(), lengths)
    alone = [group_features(sets[number : number + 1]) for number in range(len(sets))]
    np.testing.assert_array_equal(group_features(sets), np.concatenate(alone))
    assert group_features(sets[:0]).shape == (0, 8)


@pytest.mark.parametrize("name", TREES)
def test_items_are_compared_with_their_set(name: str, task: Task) -> None:
    found = score_baseline(name, task, 0)
    # The two largest of each set have 90 or so.
    assert min(found["true_size"], found["own_size"]) > 75
    assert found == score_baseline(name, task, 0)


@pytest.mark.parametrize("ranker", [False, True])
def test_scores_depend_on_the_seed_and_not_on_the_threads(
    ranker: bool, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Threads of LightGBM wait for each other in every round, and take long where the cores are busy.
    monkeypatch.setattr("benchmarks.selection.boosting._ROUNDS", 20)
    one, two, other = (Boosting(ranker, threads)(task, seed)(task.test) for threads, seed in ((1, 0), (2, 0), (1, 1)))
    assert torch.equal(one, two) and not torch.equal(one, other)


@pytest.mark.parametrize("ranker", [False, True])
def test_empty_sets_change_nothing(ranker: bool, task: Task) -> None:
    with_empty = Choices.of([[], *task.train.sets.to_list()], [[], *task.train.subsets.to_list()])
    scores = [
        Boosting(ranker, 1)(Task("made", "", train, task.validation, train, ""), 0)
        for train in (task.train, with_empty)
    ]
    assert torch.equal(scores[0](task.test), scores[1](task.test))


def test_trees_need_vectors() -> None:
    assert set(TREES) <= set(BASELINES)
    for name in TREES:
        for task in ("moons", "amazon:toys:random", "bundles:food", "anomaly:mnist:pixels", "digits", "clusters"):
            assert applies(name, task)
        assert not applies(name, "compounds:kiba:diverse") and not applies(name, "anomaly:mnist")
