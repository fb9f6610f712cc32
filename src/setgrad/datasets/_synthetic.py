"""Gaussian and Moons, two synthetic tasks from the literature on learning set functions.

Constructed as in Özcan, Shi and Ioannidis, 2024, "Learning Set Functions with Implicit Differentiation",
arXiv:2412.11239, appendix I.1, and earlier in Ou et al., 2022, "Learning Neural Set Functions Under the Optimal Subset
Oracle", NeurIPS.

For each set a fair coin picks one of two classes. The subset to find is 10 points of that class; the other 90 points
come from the other class. Neither class is right by itself: the subset is the minority.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from setgrad.datasets._task import Counts, Task, equal_size_choices, resolve_counts, spawn_generators
from setgrad.errors import OptionError
from setgrad.sets import Choices

# Class 0 has this mean and class 1 its negative.
GAUSSIAN_MEAN = np.full(2, 0.5**0.5)
GAUSSIAN_VARIANCE = 0.25

# The published generator adds noise before it scales and shifts the points, so the noise is scaled too.
MOONS_NOISE = 0.1
MOONS_SCALE = 2.0
MOONS_SHIFT = np.array([-1.0, -0.2])

_DEFAULT_COUNTS = (1000, 1000, 1000)
_SOURCE = (
    "Generated, so no licence is needed. Construction: Z. Ou et al., 'Learning Neural Set Functions Under the Optimal "
    "Subset Oracle', NeurIPS 2022; G. Özcan et al., arXiv:2412.11239, appendix I.1."
)

# Draws points `(count, set_size, 2)` for class labels `(count, set_size)`.
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
    """Return the task of finding the points of the rarer of two Gaussians.

    The Gaussians have means ±(1/√2, 1/√2) and covariance I/4. They overlap, so no method scores 100 %:
    `bayes_jaccard` computes the limit.

    Args:
        random_state: Seed of all random draws.
        n_train: Number of training sets; 1000 by default.
        n_validation: Number of validation sets; 1000 by default.
        n_test: Number of test sets; 1000 by default.
        set_size: Number of points of a set.
        subset_size: Number of points of the rarer class.

    Raises:
        OptionError: If a number is negative or not an integer, or `subset_size` is larger than `set_size`.

    Examples:
        >>> task = gaussian(n_train=5, n_validation=2, n_test=2)
        >>> sets, subsets = task.train
        >>> sets[0].shape, int(subsets[0].sum())
        (torch.Size([100, 2]), 10)
    """
    return _make_task("gaussian", _draw_gaussian, random_state, (n_train, n_validation, n_test), set_size, subset_size)


def moons(
    *,
    random_state: int = 0,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
    set_size: int = 100,
    subset_size: int = 10,
) -> Task:
    """Return the task of finding the points of the rarer of two interleaved half circles.

    The noise has standard deviation 0.1. As published, each class has as many evenly spaced angles as the set has
    points, and the points of a set have different angles. With independent angles the best linear score separates the
    classes about two points of Jaccard better.

    Args:
        random_state: Seed of all random draws.
        n_train: Number of training sets; 1000 by default.
        n_validation: Number of validation sets; 1000 by default.
        n_test: Number of test sets; 1000 by default.
        set_size: Number of points of a set.
        subset_size: Number of points of the rarer class.

    Raises:
        OptionError: If a number is negative or not an integer, or `subset_size` is larger than `set_size`.

    Examples:
        >>> task = moons(random_state=1, n_train=5, n_validation=2, n_test=2)
        >>> task
        Task('moons': 5 training, 2 validation, 2 test sets)
    """
    return _make_task("moons", _draw_moons, random_state, (n_train, n_validation, n_test), set_size, subset_size)


def half_circles(angles: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return points `(..., 2)` on the outer (label 0) or inner (label 1) half circle, at angles from 0 to π.

    Examples:
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
    outer, inner = (rng.permuted(grid, axis=1) for _ in range(2))
    clean = half_circles(np.where(labels == 0, outer, inner), labels)
    return (clean + MOONS_NOISE * rng.standard_normal(clean.shape)) * MOONS_SCALE + MOONS_SHIFT


def _make_task(name: str, draw: Draw, random_state: int, requested: Counts, set_size: int, subset_size: int) -> Task:
    counts = resolve_counts(requested, _DEFAULT_COUNTS)
    if not 0 <= subset_size <= set_size:
        raise OptionError(f"subset_size must lie between 0 and set_size={set_size}, not {subset_size}")
    train, validation, test = (
        _make_split(rng, draw, count, set_size, subset_size)
        for rng, count in zip(spawn_generators(random_state, 3), counts, strict=True)
    )
    description = (
        f"Two classes of points in the plane; {subset_size} of the {set_size} points of each set belong to the rarer "
        "class and are to be found. Which class is the rarer one changes from set to set."
    )
    return Task(name, description, train, validation, test, _SOURCE)


def _make_split(rng: np.random.Generator, draw: Draw, count: int, set_size: int, subset_size: int) -> Choices:
    label = rng.integers(2, size=(count, 1))
    # Points of a class are exchangeable, so permuting the mask shuffles the set.
    mask = rng.permuted(np.tile(np.arange(set_size) < subset_size, (count, 1)), axis=1)
    points = draw(rng, np.where(mask, label, 1 - label)).astype(np.float32)
    return equal_size_choices(torch.from_numpy(points.reshape(-1, 2)), mask)
