"""Data files that several benchmarks read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from setgrad.errors import DataError

_OLIVETTI_PEOPLE = (24, 6)
_MNIST_VALIDATION = 10_000


@final
@dataclass(frozen=True, eq=False)
class Images:
    """Bytes `(n, height, width)`, one label each, and the indices of training, validation and test images."""

    pixels: np.ndarray
    labels: np.ndarray
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]


def data_folder(data_dir: str | Path | None, name: str, content: str) -> Path:
    """Return the folder `name` inside `data_dir`, or inside the folder that SETGRAD_DATA names.

    Raises:
        DataError: there is no such folder; `content` says in the message what it should hold.
    """
    root = data_dir or os.environ.get("SETGRAD_DATA")
    remedy = f"pass --data-dir, or set SETGRAD_DATA: the folder that contains {name}"
    if not root:
        raise DataError(f"{content} are not part of setgrad; {remedy}")
    folder = Path(root) / name
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; {remedy}")
    return folder


def read_arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Return arrays of an `.npz` archive. Nothing is unpickled."""
    if not path.is_file():
        raise DataError(f"{path} is missing; it holds the arrays {', '.join(names)}")
    with np.load(path, allow_pickle=False) as archive:
        return [archive[name] for name in names]


def read_images(name: str, data_dir: str | Path | None, rng: np.random.Generator) -> Images:
    """Return "mnist" or "olivetti", cut as the tasks of `setgrad.datasets.anomaly` are: no person is in two parts."""
    return _read_olivetti(data_dir, rng) if name == "olivetti" else _read_mnist(data_dir, rng)


def shift_and_mirror(images: Tensor, generator: torch.Generator, max_shift: int = 4) -> Tensor:
    """Return the images `(n, height, width)` moved by up to `max_shift` pixels, and half of them mirrored."""
    count, height, width = images.shape
    padded = nn.functional.pad(images[:, None], [max_shift] * 4, mode="replicate")[:, 0]
    device = images.device
    down, right = torch.randint(2 * max_shift + 1, (2, count, 1, 1), generator=generator, device=device)
    rows, columns = (torch.arange(n, device=device) for n in (height, width))
    mirror = torch.rand(count, 1, 1, generator=generator, device=device) < 0.5
    columns = torch.where(mirror, columns.flip(0), columns)
    return padded[torch.arange(count, device=device)[:, None, None], rows[:, None] + down, columns + right]


def _read_olivetti(data_dir: str | Path | None, rng: np.random.Generator) -> Images:
    from scipy.io import loadmat

    path = data_folder(data_dir, "olivetti", "the Olivetti faces") / "olivettifaces.mat"
    if not path.is_file():
        raise DataError(f"{path} is missing; it holds the matrix 'faces' of bytes, one image in each column")
    faces = loadmat(path, variable_names=["faces"])["faces"]
    # A column is an image, stored column by column. Each person has ten consecutive images.
    pixels = np.ascontiguousarray(faces.T.reshape(400, 64, 64).transpose(0, 2, 1))
    groups = np.split(rng.permutation(40), np.cumsum(_OLIVETTI_PEOPLE))
    train, validation, test = ((10 * np.sort(group)[:, None] + np.arange(10)).reshape(-1) for group in groups)
    return Images(pixels, np.arange(400) // 10, (train, validation, test))


def _read_mnist(data_dir: str | Path | None, rng: np.random.Generator) -> Images:
    path = data_folder(data_dir, "mnist", "the digits of MNIST") / "mnist.npz"
    x_train, y_train, x_test, y_test = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    order = rng.permutation(len(x_train))
    held = min(_MNIST_VALIDATION, len(order) // 6)
    parts = order[held:], order[:held], np.arange(len(x_train), len(x_train) + len(x_test))
    return Images(np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test]).astype(np.int64), parts)
