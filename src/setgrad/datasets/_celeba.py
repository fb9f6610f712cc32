"""Set anomaly on CelebA: which of 8 faces lack the two attributes that the others have?"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from setgrad._progress import track
from setgrad.datasets._anomaly import MAX_ODD, SET_SIZE, draw_set
from setgrad.datasets._folder import data_folder, read_lines, unreadable
from setgrad.datasets._task import Task, equal_size_choices, resolve_counts, spawn_generators
from setgrad.errors import DataError, FileFormatError, MissingDependencyError
from setgrad.sets import Choices

_DEFAULT_COUNTS = (10_000, 1000, 1000)
_IMAGE_SIZE = 64
_PHOTOS, _ATTRIBUTES, _PARTITION = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"
_DESCRIPTION = (
    "Photographs of faces, 64 x 64 pixels in colour. A set holds 8: two attributes of the 40 are drawn, 5 or 6 faces "
    "have both, and 2 or 3 have neither and are to be found. Splits are CelebA's own, which share no person. If the "
    "true size is known, a random subset has a mean Jaccard of 0.22."
)
_SOURCE = (
    "CelebA, Z. Liu, P. Luo, X. Wang and X. Tang, ICCV 2015, for non-commercial research only (its own licence): do "
    "not redistribute. Sets as in Z. Ou et al., NeurIPS 2022, and G. Özcan et al., arXiv:2412.11239, appendix I.1."
)


def celeba(
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Return the task of finding the 2 or 3 of 8 faces that have neither of two attributes; the others have both.

    The two attributes are drawn from those of a random face. As in the published code of Ou et al. (2022), the shorter
    side of a photograph is resized to 64 pixels and the centre is cropped. Unlike there, all 40 attributes are used
    (the published code drops the last), splits are CelebA's own (it draws all three from all faces), and items
    `(3, 64, 64)` are scaled to [0, 1].

    Only photographs that are in a set are read, each once. A set takes 0.4 MB, so the default numbers of sets take
    4.7 GB; pass smaller ones if that is too much. Needs Pillow. `item_ids` are names of files.

    Args:
        random_state: Seed of the sets.
        data_dir: The folder that contains `celeba`, with `img_align_celeba/`, `list_attr_celeba.txt` and
            `list_eval_partition.txt` in it; by default the environment variable `SETGRAD_DATA`.
        n_train: Number of training sets; the published 10,000 by default.
        n_validation: Number of validation sets; 1000 by default.
        n_test: Number of test sets; 1000 by default.

    Raises:
        OptionError: If a number is not an integer of at least 0.
        DataError: If a file is missing, or there are too few faces.
        FileFormatError: If a file is damaged.
        MissingDependencyError: If Pillow is not installed.

    Examples:
        >>> celeba(data_dir="nowhere")
        Traceback (most recent call last):
        setgrad.errors.DataError: there is no folder ...
    """
    counts = resolve_counts((n_train, n_validation, n_test), _DEFAULT_COUNTS)
    folder = data_folder(data_dir, "celeba", "the photographs of CelebA")
    names, present = _read_attributes(folder / _ATTRIBUTES)
    split_of = _read_partition(folder / _PARTITION, names)
    train, validation, test = (
        _make_split(rng, folder / _PHOTOS, names[split_of == split], present[split_of == split], count)
        for split, (rng, count) in enumerate(zip(spawn_generators(random_state, 3), counts, strict=True))
    )
    return Task("celeba", _DESCRIPTION, train, validation, test, _SOURCE)


def _read_attributes(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the names of the photographs, and which attributes each has, `(photographs, attributes)`."""
    lines = read_lines(path, "the number of photographs, the names of the attributes, and a line for each photograph")
    width = len(lines[1].split()) if len(lines) > 1 else 0
    names, rows = [], []
    for number, line in enumerate(lines[2:], start=3):
        name, *marks = line.split() or [""]
        if len(marks) != width or not {"1", "-1"}.issuperset(marks):
            raise FileFormatError(f"{path}, line {number}: a name and {width} marks, 1 or -1, were expected")
        names.append(name)
        rows.append([mark == "1" for mark in marks])
    if width < 2 or lines[0].strip() != str(len(names)):
        raise FileFormatError(
            f"{path}: the first line says {lines[0] if lines else ''!r}, but {len(names)} photographs with {width} "
            "attributes follow; download the file again"
        )
    return np.asarray(names, dtype=str), np.asarray(rows, dtype=bool).reshape(-1, width)


def _read_partition(path: Path, names: np.ndarray) -> np.ndarray:
    """Return the split of each photograph: 0 for training, 1 for validation, 2 for test."""
    lines = read_lines(path, "the name of each photograph and the number of its split")
    pairs = [line.split() for line in lines]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2 or pair[1] not in ("0", "1", "2"):
            raise FileFormatError(f"{path}, line {number}: a name and 0, 1 or 2 were expected")
    split_of = {name: int(split) for name, split in pairs}
    missing = [name for name in names.tolist() if name not in split_of]
    if missing:
        raise FileFormatError(f"{path} does not contain {missing[0]}; use both lists of the same download of CelebA")
    return np.asarray([split_of[name] for name in names.tolist()], dtype=np.int64)


def _make_split(rng: np.random.Generator, folder: Path, names: np.ndarray, present: np.ndarray, count: int) -> Choices:
    pairs = rng.choice(present.shape[1] ** 2, count, p=_pair_weights(present)) if count else np.zeros(0, dtype=np.int64)
    # Each attribute is contiguous in memory: every set reads two of them.
    columns = np.ascontiguousarray(present.T)
    members = np.zeros((count, SET_SIZE), dtype=np.int64)
    mask = np.zeros((count, SET_SIZE), dtype=bool)
    for index, pair in enumerate(pairs):
        first, second = columns[pair // len(columns)], columns[pair % len(columns)]
        both, neither = np.flatnonzero(first & second), np.flatnonzero(~(first | second))
        members[index], mask[index] = draw_set(rng, both, neither)
    indices = members.reshape(-1)
    return equal_size_choices(_read_photos(folder, names, indices), mask, item_ids=names[indices])


def _pair_weights(present: np.ndarray) -> np.ndarray:
    """Return the probability of each pair of attributes, flat.

    A pair is drawn from the attributes of a random face, among the pairs that enough faces have or lack. This equals
    drawing faces until one gives a usable pair, but always terminates.
    """
    has = present.astype(np.float64)
    counts = has.sum(1, keepdims=True)
    weights = has.T @ (has / np.maximum(counts * (counts - 1), 1))
    usable = (has.T @ has >= SET_SIZE) & ((1 - has).T @ (1 - has) >= MAX_ODD)
    weights = np.where(usable & ~np.eye(len(weights), dtype=bool), weights, 0).reshape(-1)
    if not weights.sum():
        raise DataError(
            f"no two attributes are shared by {SET_SIZE} of the {len(present)} faces of a split and missing in "
            f"{MAX_ODD}; more photographs are needed"
        )
    return weights / weights.sum()


def _read_photos(folder: Path, names: np.ndarray, indices: np.ndarray) -> Tensor:
    """Return the photographs with these indices, `(n, 3, 64, 64)`; each file is read once."""
    values = torch.zeros(len(indices), 3, _IMAGE_SIZE, _IMAGE_SIZE)
    order = np.argsort(indices, kind="stable")
    unique, starts = np.unique(indices[order], return_index=True)
    rows_of = np.split(order, starts[1:])

    def read_into(index: int, rows: np.ndarray) -> None:
        values[torch.from_numpy(rows)] = _read_photo(folder / str(names[index]))

    # Pillow decodes without the global interpreter lock, and no two photographs write the same rows.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(read_into, unique.tolist(), rows_of[: len(unique)])
        for _ in track(range(len(unique)), "reading photographs", len(unique)):
            next(done)
    return values


def _read_photo(path: Path) -> Tensor:
    """Return one photograph, its shorter side resized to 64 pixels and its centre cropped, `(3, 64, 64)` in [0, 1]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(f'{path} cannot be read without Pillow: pip install "setgrad[demo]"') from error
    try:
        with Image.open(path) as image:
            shorter = min(image.size)
            width, height = (_IMAGE_SIZE * side // shorter for side in image.size)
            left, top = round((width - _IMAGE_SIZE) / 2), round((height - _IMAGE_SIZE) / 2)
            small = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.array(small.crop((left, top, left + _IMAGE_SIZE, top + _IMAGE_SIZE)))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; unpack img_align_celeba.zip in its folder") from None
    except (OSError, ValueError, SyntaxError) as error:
        raise unreadable(path, error) from error
    return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255)
