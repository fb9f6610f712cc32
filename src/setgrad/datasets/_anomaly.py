"""Set anomaly on photographs and handwritten digits: which of 8 images do not belong to the others?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from setgrad.datasets._folder import data_folder, read_arrays, unreadable
from setgrad.datasets._task import Task, equal_size_choices, resolve_counts, spawn_generators
from setgrad.errors import DataError, FileFormatError, MissingDependencyError, unknown_name
from setgrad.sets import Choices

# As in Ou et al., 2022, and Özcan et al., 2024, arXiv:2412.11239: 8 images, 2 or 3 of them odd.
SET_SIZE = 8
MAX_ODD = 3
_MIN_ODD = 2

# Numbers of people in the training and validation splits, of 40; the other ten are in the test split.
_PEOPLE = (24, 6)
# Number of images of MNIST's training half in the validation split.
_VALIDATION_IMAGES = 10_000


@final
@dataclass(frozen=True)
class _Images:
    """Grey images `(n, height, width)` in bytes, the class of each, and the indices of the images of each split."""

    pixels: np.ndarray
    labels: np.ndarray
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]


@final
@dataclass(frozen=True)
class _ImageSource:
    """A collection of images: its reader, the default numbers of sets, and the texts of the task."""

    read: Callable[[str | Path | None, np.random.Generator], _Images]
    default_counts: tuple[int, int, int]
    description: str
    source: str


def anomaly(
    images: str,
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Return the task of finding the 2 or 3 odd ones among 8 images of one person or of one digit.

    The sets are constructed like those from CelebA in Ou et al. (NeurIPS 2022) and Özcan et al. (2024,
    arXiv:2412.11239, appendix I.1): the normal images share a property, and the odd ones are drawn from all images
    without it. Items are grey images `(1, height, width)` from 0 to 1. No image is in two splits, and no person of
    Olivetti either. `item_ids` are the numbers of the images from 0; for MNIST the test half follows the 60,000 images
    of the training half.

    Args:
        images: One of `ANOMALY_IMAGES`: "olivetti" (faces) or "mnist" (digits).
        random_state: Seed of the splits and of the sets.
        data_dir: The folder that contains `olivetti` or `mnist`; by default the environment variable `SETGRAD_DATA`.
        n_train: Number of training sets; by default 2000 for Olivetti and the published 10,000 for MNIST.
        n_validation: Number of validation sets; 1000 by default.
        n_test: Number of test sets; 1000 by default.

    Raises:
        OptionError: If the images are unknown, or a number is not an integer of at least 0.
        DataError: If a file is missing or has too few images.
        FileFormatError: If a file is damaged.
        MissingDependencyError: If SciPy is needed and not installed.

    Examples:
        >>> anomaly("cats")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown images 'cats'; choose one of: olivetti, mnist
    """
    if images not in _IMAGE_SOURCES:
        raise unknown_name("images", images, _IMAGE_SOURCES)
    source = _IMAGE_SOURCES[images]
    counts = resolve_counts((n_train, n_validation, n_test), source.default_counts)
    split_rng, *rngs = spawn_generators(random_state, 4)
    data = source.read(data_dir, split_rng)
    train, validation, test = (
        _make_split(rng, data, part, count) for rng, part, count in zip(rngs, data.parts, counts, strict=True)
    )
    return Task(f"anomaly:{images}", source.description, train, validation, test, source.source)


def draw_set(rng: np.random.Generator, normal: np.ndarray, odd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of 8 images, 2 or 3 of them odd and at random positions, and the mask of the odd ones.

    Args:
        rng: The generator.
        normal: Indices of the images to draw the normal ones from.
        odd: Indices of the images to draw the odd ones from.
    """
    is_odd = rng.permutation(SET_SIZE) < rng.integers(_MIN_ODD, MAX_ODD + 1)
    members = np.zeros(SET_SIZE, dtype=np.int64)
    members[~is_odd] = rng.choice(normal, (~is_odd).sum(), replace=False)
    members[is_odd] = rng.choice(odd, is_odd.sum(), replace=False)
    return members, is_odd


def _make_split(rng: np.random.Generator, images: _Images, part: np.ndarray, count: int) -> Choices:
    labels = images.labels[part]
    same = {label: part[labels == label] for label in np.unique(labels)}
    other = {label: part[labels != label] for label in same}
    usable = [label for label in same if len(same[label]) >= SET_SIZE and len(other[label]) >= MAX_ODD]
    if count and not usable:
        raise DataError(f"no class has {SET_SIZE} images in each split; more images are needed")
    members = np.zeros((count, SET_SIZE), dtype=np.int64)
    mask = np.zeros((count, SET_SIZE), dtype=bool)
    for index in range(count):
        label = usable[rng.integers(len(usable))]
        members[index], mask[index] = draw_set(rng, same[label], other[label])
    indices = members.reshape(-1)
    values = torch.from_numpy(images.pixels[indices])[:, None].float().div_(255)
    return equal_size_choices(values, mask, item_ids=indices)


def _read_olivetti(data_dir: str | Path | None, rng: np.random.Generator) -> _Images:
    path = data_folder(data_dir, "olivetti", "the Olivetti faces") / "olivettifaces.mat"
    faces = _read_matrix(path, "faces")
    if faces.shape != (4096, 400) or faces.dtype != np.uint8:
        raise FileFormatError(f"{path}: bytes of shape (4096, 400) were expected, not {faces.dtype} {faces.shape}")
    # A column of the matrix is an image, stored column by column; each person has ten consecutive images.
    pixels = np.ascontiguousarray(faces.T.reshape(400, 64, 64).transpose(0, 2, 1))
    people = rng.permutation(40)
    groups = np.split(people, np.cumsum(_PEOPLE))
    train, validation, test = ((10 * np.sort(group)[:, None] + np.arange(10)).reshape(-1) for group in groups)
    return _Images(pixels, np.arange(400) // 10, (train, validation, test))


def _read_matrix(path: Path, name: str) -> np.ndarray:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingDependencyError(f'{path} cannot be read without SciPy: pip install "setgrad[demo]"') from error
    if not path.is_file():
        raise DataError(f"{path} is missing; it holds the matrix {name!r} of bytes, one image in each column")
    try:
        matrix: np.ndarray = loadmat(path, variable_names=[name])[name]
    except KeyError:
        raise FileFormatError(f"{path} has no matrix named {name!r}; download the file again") from None
    except Exception as error:  # SciPy's reader raises errors of many types on a damaged file
        raise unreadable(path, error) from error
    return matrix


def _read_mnist(data_dir: str | Path | None, rng: np.random.Generator) -> _Images:
    path = data_folder(data_dir, "mnist", "the digits of MNIST") / "mnist.npz"
    x_train, y_train, x_test, y_test = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.ndim != 3 or x.shape[1:] != (28, 28) or x.dtype != np.uint8 or y.shape != (len(x),):
            raise FileFormatError(
                f"{path}: images of 28 x 28 bytes with one label each were expected, not {x.dtype} {x.shape} "
                f"with labels {y.shape}; download the file again"
            )
    order = rng.permutation(len(x_train))
    validation = min(_VALIDATION_IMAGES, len(order) // 6)
    parts = order[validation:], order[:validation], np.arange(len(x_train), len(x_train) + len(x_test))
    return _Images(np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test]).astype(np.int64), parts)


_IMAGE_SOURCES = {
    "olivetti": _ImageSource(
        _read_olivetti,
        (2000, 1000, 1000),
        "Photographs of faces, 64 x 64 pixels. A set holds 8: 5 or 6 of one person, and 2 or 3 of other people, which "
        "are to be found. The people of training, validation and test (24, 6 and 10) are different. If the true "
        "size is known, a random subset has a mean Jaccard of 0.22, and the images farthest from the mean of their set "
        "about 0.75.",
        "Olivetti (ORL) faces, AT&T Laboratories Cambridge, 1992 to 1994, published without a licence: do not "
        "redistribute. Sets as in Z. Ou et al., NeurIPS 2022, on CelebA.",
    ),
    "mnist": _ImageSource(
        _read_mnist,
        (10_000, 1000, 1000),
        "Handwritten digits, 28 x 28 pixels. A set holds 8 images: 5 or 6 of one digit, and 2 or 3 of other digits, "
        "which are to be found. Training and validation share no image, and test uses MNIST's own test half. If the "
        "true size is known, a random subset has a mean Jaccard of 0.22, and the images farthest from the mean of "
        "their set about 0.5.",
        "MNIST, Y. LeCun, C. Cortes and C. Burges, 1998, published without a clear licence: do not redistribute. Sets "
        "as in Z. Ou et al., NeurIPS 2022, on CelebA.",
    ),
}
ANOMALY_IMAGES = tuple(_IMAGE_SOURCES)
