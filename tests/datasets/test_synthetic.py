"""Gaussian and Moons: the construction of Özcan et al., 2024, arXiv:2412.11239."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch

from setgrad.datasets import Task, bayes_jaccard, gaussian, moons
from setgrad.datasets._synthetic import GAUSSIAN_MEAN, MOONS_SCALE, MOONS_SHIFT, half_circles
from setgrad.errors import DataError, OptionError
from setgrad.sets import Choices

MAKERS = pytest.mark.parametrize("make", [gaussian, moons], ids=lambda make: make.__name__)


def points_and_masks(choices: Choices) -> tuple[np.ndarray, np.ndarray]:
    sets, subsets = choices
    return sets.padded()[0].double().numpy(), subsets.padded()[0].numpy()


@MAKERS
def test_default_sizes_are_the_published_ones(make: Callable[..., Task]) -> None:
    task = make()
    assert task.name == make.__name__
    for sets, subsets in (task.train, task.validation, task.test):
        assert len(sets) == 1000
        assert (sets.layout.host_lengths == 100).all()
        assert sets.values.shape == (100_000, 2) and sets.dtype == torch.float32
        assert (subsets.padded()[0].sum(1) == 10).all()


@MAKERS
def test_chosen_items_are_at_random_positions(make: Callable[..., Task]) -> None:
    _, chosen = points_and_masks(make().train)
    # 1000 sets, 10 % at every position: the standard deviation is 0.0095
    assert np.abs(chosen.mean(0) - 0.1).max() < 0.045


@MAKERS
def test_sizes_may_be_chosen(make: Callable[..., Task]) -> None:
    task = make(n_train=3, n_validation=0, n_test=1, set_size=7, subset_size=2)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [3, 0, 1]
    assert task.train.sets.values.shape == (21, 2)
    assert int(task.train.subsets.values.sum()) == 6


@MAKERS
def test_impossible_sizes_raise_errors(make: Callable[..., Task]) -> None:
    with pytest.raises(OptionError, match="between 0 and set_size=5, not 6"):
        make(set_size=5, subset_size=6)
    with pytest.raises(OptionError, match="n_validation must be an integer of at least 0, not -1"):
        make(n_validation=-1)
    with pytest.raises(OptionError, match=r"n_train must be an integer of at least 0, not 2\.5"):
        make(n_train=2.5)
    for seed in (-1, 1.5, None):
        with pytest.raises(OptionError, match=f"random_state must be an integer of at least 0, not {seed}"):
            make(random_state=seed)


def test_gaussian_classes_have_the_published_moments() -> None:
    x, chosen = points_and_masks(gaussian().train)
    along = x @ GAUSSIAN_MEAN
    rare = np.sign((along * chosen).sum(1))
    common = np.sign((along * ~chosen).sum(1))
    assert (rare == -common).all()
    assert 440 < (rare > 0).sum() < 560
    # Flipped so that the rare class is always at +mean, both classes have known moments.
    for own, sign in ((chosen, 1), (~chosen, -1)):
        flipped = (x * rare[:, None, None])[own]
        assert np.allclose(flipped.mean(0), sign * GAUSSIAN_MEAN, atol=0.02)
        assert np.allclose(np.cov(flipped.T), np.eye(2) / 4, atol=0.012)


def test_moons_classes_lie_on_half_circles_with_noise() -> None:
    x, chosen = points_and_masks(moons().train)
    clean = (x - MOONS_SHIFT) / MOONS_SCALE
    grid = np.linspace(0, np.pi, 200)
    distance = np.stack(
        [
            np.linalg.norm(clean[:200, :, None] - half_circles(grid, np.full(200, label)), axis=-1).min(-1)
            for label in (0, 1)
        ]
    )
    nearer = distance.argmin(0)
    rare = (nearer * chosen[:200]).sum(1) > 5
    assert 70 < rare.sum() < 130
    assert (nearer == np.where(chosen[:200], rare[:, None], ~rare[:, None])).mean() > 0.998
    # Noise across the arc has standard deviation 0.1; its mean absolute value is 0.1 * sqrt(2 / pi).
    assert distance.min(0).mean() == pytest.approx(0.1 * np.sqrt(2 / np.pi), rel=0.03)


def test_half_circles_equal_those_of_scikit_learn() -> None:
    make_moons = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn").make_moons
    points, labels = make_moons(n_samples=60, shuffle=False, noise=None)
    angles = np.tile(np.linspace(0, np.pi, 30), 2)
    assert np.allclose(half_circles(angles, labels), points, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_bayes_jaccard_is_the_published_limit(seed: int) -> None:
    assert 0.895 < bayes_jaccard(gaussian(random_state=seed, n_train=0, n_validation=0).test) < 0.915


@pytest.mark.parametrize("sizes", [{"n_test": 0}, {"n_test": 2, "subset_size": 0}])
def test_bayes_jaccard_of_empty_subsets_raises_an_error(sizes: dict[str, int]) -> None:
    with pytest.raises(DataError, match="at least one set, and no empty subset"):
        bayes_jaccard(gaussian(n_train=0, n_validation=0, **sizes).test)


def test_bayes_jaccard_equals_enumeration_of_all_subsets() -> None:
    choices = gaussian(n_train=200, n_validation=0, n_test=0, set_size=6, subset_size=2).train
    scores = []
    for x, mask in zip(*points_and_masks(choices), strict=True):
        options = []
        for sign in (1, -1):
            for pair in combinations(range(6), 2):
                picked = np.isin(np.arange(6), pair)
                centres = np.where(picked[:, None], sign, -sign) * GAUSSIAN_MEAN
                options.append((-((x - centres) ** 2).sum() / (2 * 0.25), picked))
        best = max(options, key=lambda option: option[0])[1]
        scores.append((best & mask).sum() / (best | mask).sum())
    assert bayes_jaccard(choices) == pytest.approx(np.mean(scores), abs=1e-12)


def test_moons_have_different_evenly_spaced_angles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setgrad.datasets._synthetic.MOONS_NOISE", 0.0)
    x, chosen = points_and_masks(moons(n_train=20, n_validation=1, n_test=1, set_size=30, subset_size=12).train)
    clean = (x - MOONS_SHIFT) / MOONS_SCALE
    inner = half_circles(np.linspace(0, np.pi, 30), np.ones(30))
    outer = half_circles(np.linspace(0, np.pi, 30), np.zeros(30))
    for points, own in zip(clean, chosen, strict=True):
        for part, size in ((points[own], 12), (points[~own], 18)):
            gaps = [np.linalg.norm(part[:, None] - circle, axis=-1) for circle in (inner, outer)]
            gap = min(gaps, key=lambda g: g.min(1).max())
            assert gap.min(1).max() < 1e-5
            assert len(set(gap.argmin(1))) == size
