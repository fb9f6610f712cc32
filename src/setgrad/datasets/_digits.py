"""Set anomaly on real images: which of these handwritten digits do not belong?"""

from __future__ import annotations

import numpy as np
import torch

from setgrad.datasets._task import Task, fill_counts, generators
from setgrad.errors import MissingDependencyError
from setgrad.sets import Choices, Sets

# Shares of the images of every digit that go to training, validation and test.
_SHARES = (0.5, 0.2, 0.3)
_USUAL = (1000, 300, 500)
_SMALLEST, _LARGEST = 8, 20
_FEWEST_ODD, _MOST_ODD = 2, 4

_DESCRIPTION = (
    "Handwritten digits, 8 x 8 pixels. A set holds 8 to 20 images, all of one digit but for 2 to 4 odd ones, each "
    "of another digit; the odd ones are to be found. Sizes differ from set to set and no image is in two splits. "
    "Told the true size, a random subset has a mean Jaccard of 0.15, the images farthest from the mean of their set "
    "about 0.7."
)
_SOURCE = (
    "Bundled with scikit-learn (load_digits): test part of 'Optical Recognition of Handwritten Digits', "
    "E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, doi:10.24432/C50P49, CC BY 4.0."
)


def digits(
    *, random_state: int = 0, n_train: int | None = None, n_validation: int | None = None, n_test: int | None = None
) -> Task:
    """Find the odd ones out among images of one digit; needs scikit-learn, which carries the images.

    Items are the 64 pixels, from 0 to 1. There are 1000, 300 and 500 sets unless told otherwise. `item_ids` of a
    split are the numbers of the images in `load_digits`. The task is modelled on the set anomalies in CelebA of
    Özcan et al. (see `gaussian`); no two odd images of a set share a digit, so the majority is never in doubt.

    Example:
        >>> task = digits(n_train=3, n_validation=2, n_test=2)
        >>> task.train.sets.item_shape
        torch.Size([64])
    """
    counts = fill_counts((n_train, n_validation, n_test), _USUAL)
    pixels, labels = _bundled()
    divide, *rngs = generators(random_state, 4)
    parts = _parts(divide, labels)
    train, validation, test = (
        _split(rng, pixels, labels, part, count) for rng, part, count in zip(rngs, parts, counts, strict=True)
    )
    return Task("digits", _DESCRIPTION, train, validation, test, _SOURCE)


def _bundled() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            'the digits task needs scikit-learn, which carries the images: pip install "setgrad[demo]"'
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16.0).astype(np.float32), labels


def _parts(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    """Divide the images of every digit by the same shares, so that each split has enough of each."""
    ends = np.cumsum(_SHARES)[:-1]
    images = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    pieces = [np.split(numbers, (ends * len(numbers)).astype(int)) for numbers in images]
    return [np.concatenate(part) for part in zip(*pieces, strict=True)]


def _split(rng: np.random.Generator, pixels: np.ndarray, labels: np.ndarray, part: np.ndarray, count: int) -> Choices:
    pools = [part[labels[part] == digit] for digit in range(10)]
    lengths = rng.integers(_SMALLEST, _LARGEST + 1, size=count)
    # The odd ones stay a minority in the smallest sets too.
    odd = np.minimum(rng.integers(_FEWEST_ODD, _MOST_ODD + 1, size=count), (lengths - 1) // 2)
    images, chosen = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=bool)]
    for length, strangers in zip(lengths, odd, strict=True):
        majority, *others = rng.permutation(10)[: strangers + 1]
        alike = rng.choice(pools[majority], length - strangers, replace=False)
        members = np.concatenate([alike, [rng.choice(pools[digit]) for digit in others]])
        order = rng.permutation(length)
        images.append(members[order])
        chosen.append(order >= length - strangers)
    numbers = np.concatenate(images)
    sets = Sets.from_lengths(torch.from_numpy(pixels[numbers]), lengths)
    mask = sets.with_values(torch.from_numpy(np.concatenate(chosen)))
    return Choices(sets, mask, item_ids=numbers)
