"""Set anomaly on CelebA: which of these 8 faces lack both of the things that the others share?"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from setgrad._progress import track
from setgrad.datasets._anomaly import MOST_ODD, SET_SIZE, draw_set
from setgrad.datasets._folder import data_folder, read_lines
from setgrad.datasets._task import Task, fill_counts, generators
from setgrad.errors import DataError, FileFormatError, MissingDependencyError
from setgrad.sets import Choices, Sets

_USUAL = (10_000, 1000, 1000)
_SIDE = 64
_PHOTOGRAPHS, _ATTRIBUTES, _PARTITION = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"
_DESCRIPTION = (
    "Photographs of faces, 64 x 64 pixels in colour. A set holds 8: two attributes of the 40 are chosen, 5 or 6 faces "
    "have both, and 2 or 3 have neither and are to be found. Splits are CelebA's own, which share no person. Told the "
    "true size, a random subset has a mean Jaccard of 0.22."
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
    """Find the 2 or 3 faces that have neither of two attributes among 8; the others have both.

    The two attributes are two that a face drawn at random has. As in the published code the shorter side of a
    photograph becomes 64 pixels and the middle is kept; unlike it, all 40 attributes are used (it loses the last),
    splits are CelebA's own (it draws all three from all faces), and items `(3, 64, 64)` run from 0 to 1.

    Only photographs that are in some set are read, each once. A set takes 0.4 MB, so the published numbers of sets
    take 4.7 GB; ask for fewer where that is too much. Needs Pillow. `item_ids` are names of files.

    Args:
        random_state: Seed of the sets.
        data_dir: The folder that contains `celeba`, with `img_align_celeba/`, `list_attr_celeba.txt` and
            `list_eval_partition.txt` in it; the environment variable `SETGRAD_DATA` if None.
        n_train: Number of training sets; the published 10,000 if None. Validation and test have 1000 each.
        n_validation: See `n_train`.
        n_test: See `n_train`.

    Example:
        >>> celeba(data_dir="nowhere")
        Traceback (most recent call last):
        setgrad.errors.DataError: there is no folder ...
    """
    counts = fill_counts((n_train, n_validation, n_test), _USUAL)
    folder = data_folder(data_dir, "celeba", "the photographs of CelebA")
    names, present = _read_attributes(folder / _ATTRIBUTES)
    part = _read_partition(folder / _PARTITION, names)
    train, validation, test = (
        _split(rng, folder / _PHOTOGRAPHS, names[part == number], present[part == number], count)
        for number, (rng, count) in enumerate(zip(generators(random_state, 3), counts, strict=True))
    )
    return Task("celeba", _DESCRIPTION, train, validation, test, _SOURCE)


def _read_attributes(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Names of the photographs, and which attributes each has, `(photographs, attributes)`."""
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
            "attributes follow; take a fresh copy of the file"
        )
    return np.asarray(names, dtype=str), np.asarray(rows, dtype=bool).reshape(-1, width)


def _read_partition(path: Path, names: np.ndarray) -> np.ndarray:
    """Number of the split of each photograph: 0 for training, 1 for validation, 2 for test."""
    lines = read_lines(path, "the name of each photograph and the number of its split")
    pairs = [line.split() for line in lines]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2 or pair[1] not in ("0", "1", "2"):
            raise FileFormatError(f"{path}, line {number}: a name and 0, 1 or 2 were expected")
    found = {name: int(split) for name, split in pairs}
    missing = [name for name in names.tolist() if name not in found]
    if missing:
        raise FileFormatError(f"{path} does not name {missing[0]}; take both lists from the same copy of CelebA")
    return np.asarray([found[name] for name in names.tolist()], dtype=np.int64)


def _split(rng: np.random.Generator, folder: Path, names: np.ndarray, present: np.ndarray, count: int) -> Choices:
    pairs = rng.choice(present.shape[1] ** 2, count, p=_weights(present)) if count else np.zeros(0, dtype=np.int64)
    # One attribute after the other in memory: each set looks at two of them.
    columns = np.ascontiguousarray(present.T)
    members = np.zeros((count, SET_SIZE), dtype=np.int64)
    chosen = np.zeros((count, SET_SIZE), dtype=bool)
    for number, pair in enumerate(pairs):
        one, two = columns[pair // len(columns)], columns[pair % len(columns)]
        both, neither = np.flatnonzero(one & two), np.flatnonzero(~(one | two))
        members[number], chosen[number] = draw_set(rng, both, neither)
    flat = members.reshape(-1)
    sets = Sets.from_lengths(_photographs(folder, names, flat), np.full(count, SET_SIZE))
    return Choices(sets, sets.with_values(torch.from_numpy(chosen.reshape(-1))), item_ids=names[flat])


def _weights(present: np.ndarray) -> np.ndarray:
    """Probability of each pair of attributes, flat: two that a random face has, if enough faces have both or neither.

    The same as drawing faces until one gives a usable pair, but it always comes to an end.
    """
    has = present.astype(np.float64)
    ways = has.sum(1, keepdims=True) * (has.sum(1, keepdims=True) - 1)
    weights = has.T @ (has / np.maximum(ways, 1))
    usable = (has.T @ has >= SET_SIZE) & ((1 - has).T @ (1 - has) >= MOST_ODD)
    weights = np.where(usable & ~np.eye(len(weights), dtype=bool), weights, 0).reshape(-1)
    if not weights.sum():
        raise DataError(
            f"no two attributes are shared by {SET_SIZE} of the {len(present)} faces of a split and missing in "
            f"{MOST_ODD}; more photographs are needed"
        )
    return weights / weights.sum()


def _photographs(folder: Path, names: np.ndarray, wanted: np.ndarray) -> Tensor:
    """Read each photograph once, and put it wherever it is wanted."""
    values = torch.zeros(len(wanted), 3, _SIDE, _SIDE)
    order = np.argsort(wanted, kind="stable")
    numbers, starts = np.unique(wanted[order], return_index=True)
    places = np.split(order, starts[1:])

    def put(number: int, where: np.ndarray) -> None:
        values[torch.from_numpy(where)] = _photograph(folder / str(names[number]))

    # Pillow decodes outside the interpreter's lock; the places of two photographs never overlap.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(put, numbers.tolist(), places[: len(numbers)])
        for _ in track(range(len(numbers)), "reading photographs", len(numbers)):
            next(done)
    return values


def _photograph(path: Path) -> Tensor:
    """One photograph, its shorter side made 64 pixels long and the middle kept, `(3, 64, 64)` from 0 to 1."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(f'{path} needs Pillow to be read: pip install "setgrad[demo]"') from error
    try:
        with Image.open(path) as picture:
            shorter = min(picture.size)
            width, height = (_SIDE * side // shorter for side in picture.size)
            left, top = round((width - _SIDE) / 2), round((height - _SIDE) / 2)
            small = picture.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.array(small.crop((left, top, left + _SIDE, top + _SIDE)))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; unpack img_align_celeba.zip there") from None
    except (OSError, ValueError, SyntaxError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255)
