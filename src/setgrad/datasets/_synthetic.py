"""Gaussian and Moons, the synthetic tasks of two papers on learning set functions.

Built as in Özcan, Shi and Ioannidis, "Learning Set Functions with Implicit Differentiation" (arXiv:2412.11239,
appendix I.1), who took them over from Ou et al., "Learning Neural Set Functions Under the Optimal Subset Oracle"
(NeurIPS 2022).

A fair coin picks one of two classes for each set. The subset to find is 10 points of that class; the other 90
points of the set come from the other class. So neither class is right as such: what counts is to be the minority.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from setgrad.datasets._task import Counts, Task, fill_counts, generators
from setgrad.errors import OptionError
from setgrad.sets import Choices, Sets

# Class 0 has this mean and class 1 its negative.
GAUSSIAN_MEAN = np.full(2, 0.5**0.5)
GAUSSIAN_VARIANCE = 0.25

# The published generator adds noise first, then doubles and moves the points, so the noise is doubled too.
MOONS_NOISE = 0.1
MOONS_SCALE = 2.0
MOONS_SHIFT = np.array([-1.0, -0.2])

_USUAL = (1000, 1000, 1000)
_SOURCE = (
    "Generated, so no licence is needed. Construction: Z. Ou et al., 'Learning Neural Set Functions Under the Optimal "
    "Subset Oracle', NeurIPS 2022; G. Özcan et al., arXiv:2412.11239, appendix I.1."
)

Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def gaussian(
    *,
    random_state: int = 0,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
    set_size: int = 100,
    subset_size: int = 10,
) -> Task:
    """Find the points of the rarer of two Gaussians with means ±(1/√2, 1/√2) and covariance I/4.

    The classes overlap, so nobody scores 100: see `bayes_jaccard` for the limit. Every split has 1000 sets of 100
    points, 10 of them to be found, unless told otherwise.

    Example:
        >>> task = gaussian(n_train=5, n_validation=2, n_test=2)
        >>> sets, subsets = task.train
        >>> sets[0].shape, int(subsets[0].sum())
        (torch.Size([100, 2]), 10)
    """
    return _task("gaussian", _draw_gaussian, random_state, (n_train, n_validation, n_test), set_size, subset_size)


def moons(
    *,
    random_state: int = 0,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
    set_size: int = 100,
    subset_size: int = 10,
) -> Task:
    """Find the points of the rarer of two interleaved half circles, noise of standard deviation 0.1.

    As published, each class has as many evenly spaced angles as the set has points, and a set takes some of them
    without repeating one. That matters: with independent angles the best linear score separates the classes about two
    points of Jaccard better. Sizes as in `gaussian`.

    Example:
        >>> task = moons(random_state=1, n_train=5, n_validation=2, n_test=2)
        >>> task
        Task('moons': 5 training, 2 validation, 2 test sets)
    """
    return _task("moons", _draw_moons, random_state, (n_train, n_validation, n_test), set_size, subset_size)


def half_circles(angles: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Points `(..., 2)` on the outer (label 0) or inner (label 1) half circle, at angles from 0 to π.

    Example:
        >>> half_circles(np.array([0.0, 0.0]), np.array([0, 1])).tolist()
        [[1.0, 0.0], [0.0, 0.5]]
    """
    outer = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return np.where(np.asarray(labels)[..., None] == 0, outer, np.array([1.0, 0.5]) - outer)


def _draw_gaussian(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    sign = 1.0 - 2.0 * labels[..., None]
    return sign * GAUSSIAN_MEAN + np.sqrt(GAUSSIAN_VARIANCE) * rng.standard_normal((*labels.shape, 2))


def _draw_moons(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    grid = np.tile(np.linspace(0.0, np.pi, labels.shape[1]), (len(labels), 1))
    first, second = (rng.permuted(grid, axis=1) for _ in range(2))
    clean = half_circles(np.where(labels == 0, first, second), labels)
    return (clean + MOONS_NOISE * rng.standard_normal(clean.shape)) * MOONS_SCALE + MOONS_SHIFT


def _task(name: str, draw: Draw, random_state: int, wanted: Counts, set_size: int, subset_size: int) -> Task:
    counts = fill_counts(wanted, _USUAL)
    if not 0 <= subset_size <= set_size:
        raise OptionError(f"subset_size must lie between 0 and set_size={set_size}, not {subset_size}")
    train, validation, test = (
        _split(rng, draw, count, set_size, subset_size)
        for rng, count in zip(generators(random_state, 3), counts, strict=True)
    )
    description = (
        f"Two classes of points in the plane; {subset_size} of the {set_size} points of each set belong to the rarer "
        "class and are to be found. Which class is the rarer one changes from set to set."
    )
    return Task(name, description, train, validation, test, _SOURCE)


def _split(rng: np.random.Generator, draw: Draw, count: int, set_size: int, subset_size: int) -> Choices:
    label = rng.integers(2, size=(count, 1))
    # Points of a class are exchangeable: putting the chosen ones at random places shuffles the set.
    first = np.tile(np.arange(set_size) < subset_size, (count, 1))
    chosen = rng.permuted(first, axis=1)
    points = draw(rng, np.where(chosen, label, 1 - label)).astype(np.float32)
    sets = Sets.from_lengths(torch.from_numpy(points.reshape(-1, 2)), np.full(count, set_size))
    return Choices(sets, sets.with_values(torch.from_numpy(chosen.reshape(-1))))
