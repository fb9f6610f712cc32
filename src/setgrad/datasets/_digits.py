"""Set anomaly on images bundled with scikit-learn: which handwritten digits do not belong to the others?"""

from __future__ import annotations

import numpy as np
import torch

from setgrad.datasets._task import Task, resolve_counts, spawn_generators
from setgrad.errors import MissingDependencyError
from setgrad.sets import Choices, Sets

# Shares of the images of every digit in the training, validation and test splits.
_SHARES = (0.5, 0.2, 0.3)
_DEFAULT_COUNTS = (1000, 300, 500)
_MIN_SIZE, _MAX_SIZE = 8, 20
_MIN_ODD, _MAX_ODD = 2, 4

_DESCRIPTION = (
    "Handwritten digits, 8 x 8 pixels. A set holds 8 to 20 images of one digit, except for 2 to 4 odd ones, each "
    "of another digit; the odd ones are to be found. Sizes differ from set to set and no image is in two splits. "
    "If the true size is known, a random subset has a mean Jaccard of 0.15, and the images farthest from the mean of "
    "their set about 0.7."
)
_SOURCE = (
    "Bundled with scikit-learn (load_digits): test part of 'Optical Recognition of Handwritten Digits', "
    "E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, doi:10.24432/C50P49, CC BY 4.0."
)


def digits(
    *, random_state: int = 0, n_train: int | None = None, n_validation: int | None = None, n_test: int | None = None
) -> Task:
    """Return the task of finding the odd ones out among images of one digit.

    Items are the 64 pixels, from 0 to 1. `item_ids` are the indices of the images in scikit-learn's `load_digits`. The
    task follows the set anomalies on CelebA of Özcan et al. (2024, arXiv:2412.11239). The odd images of a set show
    different digits, so the majority is always clear.

    Args:
        random_state: Seed of the splits and of the sets.
        n_train: Number of training sets; 1000 by default.
        n_validation: Number of validation sets; 300 by default.
        n_test: Number of test sets; 500 by default.

    Raises:
        OptionError: If a number is not an integer of at least 0.
        MissingDependencyError: If scikit-learn, which contains the images, is not installed.

    Examples:
        >>> task = digits(n_train=3, n_validation=2, n_test=2)
        >>> task.train.sets.item_shape
        torch.Size([64])
    """
    counts = resolve_counts((n_train, n_validation, n_test), _DEFAULT_COUNTS)
    pixels, labels = _load_images()
    split_rng, *rngs = spawn_generators(random_state, 4)
    parts = _split_images(split_rng, labels)
    train, validation, test = (
        _make_split(rng, pixels, labels, part, count) for rng, part, count in zip(rngs, parts, counts, strict=True)
    )
    return Task("digits", _DESCRIPTION, train, validation, test, _SOURCE)


def _load_images() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            'the digits task needs scikit-learn, which contains the images: pip install "setgrad[demo]"'
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16.0).astype(np.float32), labels


def _split_images(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    """Return the indices of the images of each split; every digit is split by the same shares."""
    ends = np.cumsum(_SHARES)[:-1]
    images = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    by_digit = [np.split(indices, (ends * len(indices)).astype(int)) for indices in images]
    return [np.concatenate(part) for part in zip(*by_digit, strict=True)]


def _make_split(
    rng: np.random.Generator, pixels: np.ndarray, labels: np.ndarray, part: np.ndarray, count: int
) -> Choices:
    by_digit = [part[labels[part] == digit] for digit in range(10)]
    lengths = rng.integers(_MIN_SIZE, _MAX_SIZE + 1, size=count)
    # The odd ones are a minority in the smallest sets too.
    odd_counts = np.minimum(rng.integers(_MIN_ODD, _MAX_ODD + 1, size=count), (lengths - 1) // 2)
    images, masks = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=bool)]
    for length, odd_count in zip(lengths, odd_counts, strict=True):
        majority, *others = rng.permutation(10)[: odd_count + 1]
        normal = rng.choice(by_digit[majority], length - odd_count, replace=False)
        members = np.concatenate([normal, [rng.choice(by_digit[digit]) for digit in others]])
        order = rng.permutation(length)
        images.append(members[order])
        masks.append(order >= length - odd_count)
    indices = np.concatenate(images)
    sets = Sets.from_lengths(torch.from_numpy(pixels[indices]), lengths)
    return Choices(sets, sets.with_values(torch.from_numpy(np.concatenate(masks))), item_ids=indices)
