"""Set anomaly on photographs and handwriting: which of these 8 images do not belong?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from setgrad.datasets._folder import data_folder, read_arrays
from setgrad.datasets._task import Task, fill_counts, generators
from setgrad.errors import DataError, FileFormatError, MissingDependencyError, unknown_name
from setgrad.sets import Choices, Sets

# As in the set anomalies of the papers: 8 images, 2 or 3 of them odd.
SET_SIZE = 8
MOST_ODD = 3
_FEWEST_ODD = 2

# Train and validation people of the 40; the other ten are for testing.
_PEOPLE = (24, 6)
# Images of MNIST's training half that are kept for validation.
_HELD_OUT = 10_000


@dataclass(frozen=True)
class _Images:
    """Grey images `(n, height, width)` in bytes, the class of each, and the numbers of the images of each split."""

    pixels: np.ndarray
    labels: np.ndarray
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Pictures:
    """One source of images, and what to say about it."""

    read: Callable[[str | Path | None, np.random.Generator], _Images]
    usual: tuple[int, int, int]
    description: str
    source: str


def anomaly(
    pictures: str,
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Find the 2 or 3 odd ones among 8 images of one person ("olivetti") or of one digit ("mnist").

    The sets are made as Ou et al. (NeurIPS 2022) and Özcan et al. (arXiv:2412.11239, appendix I.1) make theirs from
    CelebA: the normal images share a property, the odd ones are drawn from all images without it. Items are grey
    images `(1, height, width)` from 0 to 1. No image is in two splits, and no person of Olivetti either. `item_ids`
    are the numbers of the images from 0, for MNIST with the test half after the 60,000 images of the training half.

    Args:
        pictures: One of `ANOMALY_IMAGES`.
        random_state: Seed of the splits and of the sets.
        data_dir: The folder that contains `olivetti` or `mnist`; the environment variable `SETGRAD_DATA` if None.
        n_train: Number of training sets; if None, 2000 of Olivetti and the published 10,000 of MNIST. Validation and
            test have 1000 sets each.
        n_validation: See `n_train`.
        n_test: See `n_train`.

    Example:
        >>> anomaly("cats")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown pictures 'cats'; choose one of: olivetti, mnist
    """
    if pictures not in _PICTURES:
        raise unknown_name("pictures", pictures, _PICTURES)
    chosen = _PICTURES[pictures]
    counts = fill_counts((n_train, n_validation, n_test), chosen.usual)
    divide, *rngs = generators(random_state, 4)
    images = chosen.read(data_dir, divide)
    train, validation, test = (
        _split(rng, images, part, count) for rng, part, count in zip(rngs, images.parts, counts, strict=True)
    )
    return Task(f"anomaly:{pictures}", chosen.description, train, validation, test, chosen.source)


def draw_set(rng: np.random.Generator, normal: np.ndarray, strange: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw 8 numbers of images, 2 or 3 of them strange and at random places, and say which these are."""
    odd = rng.permutation(SET_SIZE) < rng.integers(_FEWEST_ODD, MOST_ODD + 1)
    members = np.zeros(SET_SIZE, dtype=np.int64)
    members[~odd] = rng.choice(normal, (~odd).sum(), replace=False)
    members[odd] = rng.choice(strange, odd.sum(), replace=False)
    return members, odd


def _split(rng: np.random.Generator, images: _Images, part: np.ndarray, count: int) -> Choices:
    labels = images.labels[part]
    alike = {label: part[labels == label] for label in np.unique(labels)}
    others = {label: part[labels != label] for label in alike}
    able = [label for label in alike if len(alike[label]) >= SET_SIZE and len(others[label]) >= MOST_ODD]
    if count and not able:
        raise DataError(f"no class has {SET_SIZE} images in each split; more images are needed")
    members = np.zeros((count, SET_SIZE), dtype=np.int64)
    chosen = np.zeros((count, SET_SIZE), dtype=bool)
    for number in range(count):
        label = able[rng.integers(len(able))]
        members[number], chosen[number] = draw_set(rng, alike[label], others[label])
    flat = members.reshape(-1)
    values = torch.from_numpy(images.pixels[flat])[:, None].float().div_(255)
    sets = Sets.from_lengths(values, np.full(count, SET_SIZE))
    return Choices(sets, sets.with_values(torch.from_numpy(chosen.reshape(-1))), item_ids=flat)


def _read_olivetti(data_dir: str | Path | None, rng: np.random.Generator) -> _Images:
    path = data_folder(data_dir, "olivetti", "the Olivetti faces") / "olivettifaces.mat"
    faces = _read_matrix(path, "faces")
    if faces.shape != (4096, 400) or faces.dtype != np.uint8:
        raise FileFormatError(f"{path}: bytes of shape (4096, 400) were expected, not {faces.dtype} {faces.shape}")
    # A column is an image, stored column by column; ten follow each other for each person.
    pixels = np.ascontiguousarray(faces.T.reshape(400, 64, 64).transpose(0, 2, 1))
    people = rng.permutation(40)
    groups = np.split(people, np.cumsum(_PEOPLE))
    train, validation, test = ((10 * np.sort(group)[:, None] + np.arange(10)).reshape(-1) for group in groups)
    return _Images(pixels, np.arange(400) // 10, (train, validation, test))


def _read_matrix(path: Path, name: str) -> np.ndarray:
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(f'{path} needs SciPy to be read: pip install "setgrad[demo]"') from error
    if not path.is_file():
        raise DataError(f"{path} is missing; it holds the matrix {name!r} of bytes, one image in each column")
    try:
        matrix: np.ndarray = loadmat(path, variable_names=[name])[name]
    except KeyError:
        raise FileFormatError(f"{path} holds no matrix named {name!r}; take a fresh copy of the file") from None
    except Exception as error:  # SciPy's reader fails in many ways on a damaged file
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error
    return matrix


def _read_mnist(data_dir: str | Path | None, rng: np.random.Generator) -> _Images:
    path = data_folder(data_dir, "mnist", "the digits of MNIST") / "mnist.npz"
    x_train, y_train, x_test, y_test = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.ndim != 3 or x.shape[1:] != (28, 28) or x.dtype != np.uint8 or y.shape != (len(x),):
            raise FileFormatError(
                f"{path}: images of 28 x 28 bytes with one label each were expected, not {x.dtype} {x.shape} "
                f"with labels {y.shape}; take a fresh copy of the file"
            )
    order = rng.permutation(len(x_train))
    held = min(_HELD_OUT, len(order) // 6)
    parts = order[held:], order[:held], np.arange(len(x_train), len(x_train) + len(x_test))
    return _Images(np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test]).astype(np.int64), parts)


_PICTURES = {
    "olivetti": _Pictures(
        _read_olivetti,
        (2000, 1000, 1000),
        "Photographs of faces, 64 x 64 pixels. A set holds 8: 5 or 6 of one person, and 2 or 3 of other people, which "
        "are to be found. The people of training, validation and test (24, 6 and 10) are different. Told the true "
        "size, a random subset has a mean Jaccard of 0.22, the images farthest from the mean of their set about 0.75.",
        "Olivetti (ORL) faces, AT&T Laboratories Cambridge, 1992 to 1994, published without a licence: do not "
        "redistribute. Sets as in Z. Ou et al., NeurIPS 2022, on CelebA.",
    ),
    "mnist": _Pictures(
        _read_mnist,
        (10_000, 1000, 1000),
        "Handwritten digits, 28 x 28 pixels. A set holds 8 images: 5 or 6 of one digit, and 2 or 3 of other digits, "
        "which are to be found. Training and validation share no image, and test uses MNIST's own test half. Told the "
        "true size, a random subset has a mean Jaccard of 0.22, the images farthest from the mean of their set about "
        "0.5.",
        "MNIST, Y. LeCun, C. Cortes and C. Burges, 1998, published without a clear licence: do not redistribute. Sets "
        "as in Z. Ou et al., NeurIPS 2022, on CelebA.",
    ),
}
ANOMALY_IMAGES = tuple(_PICTURES)
