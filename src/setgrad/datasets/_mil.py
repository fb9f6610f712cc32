"""Multiple-instance learning: bags of instances with one label for each bag."""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.datasets._folder import data_folder, read_arrays, unreadable
from setgrad.datasets._task import spawn_generators
from setgrad.errors import DataError, FileFormatError, OptionError, unknown_name
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False, repr=False)
class Bags:
    """Bags and their labels.

    Attributes:
        name: The name with which `mil` reads the same bags.
        sets: The bags; their items are the instances.
        labels: Whether each bag is positive, `(b,)` bool.
        groups: The group of each bag, `(b,)`. Bags that share an instance are in one group and belong in the same part
            of every split.
        source: Where the data come from, and under which licence.
    """

    name: str
    sets: Sets
    labels: Tensor
    groups: np.ndarray
    source: str

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        positive = int(self.labels.sum())
        return f"Bags({self.name!r}: {len(self)} bags, {positive} positive, {len(self.sets.values)} instances)"


@final
@dataclass(frozen=True)
class _File:
    """A file of bags: its name, the number of features, and the source of the data."""

    name: str
    features: int
    source: str


_MUSK = "T. Dietterich, R. Lathrop and T. Lozano-Pérez, Artificial Intelligence 89, 1997: molecules and their shapes"
_COREL = "S. Andrews, I. Tsochantaridis and T. Hofmann, NIPS 2002: images of Corel and their segments"
_PACKAGE = "as in the package mil 1.0.5 (MIT)"
_NO_LICENCE = "from a public copy without a licence: do not redistribute"
_FILES = {
    "musk1": _File("musk1.csv.gz", 166, f"{_MUSK}; {_PACKAGE}"),
    "musk2": _File("musk2.csv.gz", 166, f"{_MUSK}; {_PACKAGE}"),
    "elephant": _File("elephant.csv.gz", 230, f"{_COREL}; {_PACKAGE}"),
    "fox": _File("fox_mat.npz", 230, f"{_COREL}; {_NO_LICENCE}"),
    "tiger": _File("tiger_mat.npz", 230, f"{_COREL}; {_NO_LICENCE}"),
    "protein": _File("protein.csv.gz", 9, f"thioredoxin-fold proteins and their windows; {_PACKAGE}"),
    "birds": _File("birds_brown_creeper.csv.gz", 38, f"birdsong and its syllables, F. Briggs et al., 2012; {_PACKAGE}"),
    "dogs": _File("corel_dogs.csv.gz", 9, f"images of Corel and their regions, Y. Chen et al., 2006; {_PACKAGE}"),
}
MIL_DATASETS = tuple(_FILES)


def mil(name: str, *, data_dir: str | Path | None = None) -> Bags:
    """Return one of the classical collections of bags, with the features of the files.

    The features are not standardised; standardise them with the statistics of the training bags.

    Args:
        name: One of `MIL_DATASETS`: "musk1", "musk2", "elephant", "fox", "tiger", "protein", "birds" (whether the
            brown creeper sings) or "dogs".
        data_dir: The folder that contains `mil`; by default the environment variable `SETGRAD_DATA`.

    Raises:
        OptionError: If the name is unknown.
        DataError: If the file is missing.
        FileFormatError: If the file is damaged.

    Examples:
        >>> mil("musk3")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown set of bags 'musk3'; choose one of: musk1, musk2, elephant, fox...
    """
    if name not in _FILES:
        raise unknown_name("set of bags", name, _FILES)
    file = _FILES[name]
    path = data_folder(data_dir, "mil", "the sets of bags") / file.name
    labels, bag_ids, features = _read_table(path) if path.suffix == ".gz" else _read_archive(path)
    if features.ndim != 2 or features.shape[1] != file.features or not len(labels) == len(bag_ids) == len(features):
        raise FileFormatError(
            f"{path}: a label, a bag and {file.features} features for each instance were expected, not arrays of "
            f"shapes {labels.shape}, {bag_ids.shape} and {features.shape}"
        )
    if not np.isfinite(features).all() or not np.isin(labels, (0, 1)).all():
        raise FileFormatError(f"{path} holds a feature that is not finite, or a label that is neither 0 nor 1")
    order = np.argsort(bag_ids, kind="stable")
    labels, bag_ids, features = labels[order], bag_ids[order], features[order]
    _, first, lengths = np.unique(bag_ids, return_index=True, return_counts=True)
    bag_of = np.repeat(np.arange(len(first)), lengths)
    if not np.array_equal(labels, labels[first][bag_of]):
        raise FileFormatError(f"{path}: instances of one bag have different labels; download the file again")
    sets = Sets.from_lengths(torch.from_numpy(features.astype(np.float32)), lengths)
    return Bags(name, sets, torch.from_numpy(labels[first] == 1), _find_groups(features, bag_of), file.source)


def bag_folds(bags: Bags, count: int = 10, *, random_state: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the indices of the training and test bags of each fold, for stratified cross-validation.

    Every fold has about the same share of positive bags. Every bag is in one test part, and bags of one group are in
    the same fold.

    Args:
        bags: The bags to split.
        count: Number of folds, at least 2.
        random_state: Seed of the shuffling.

    Raises:
        OptionError: If there are fewer groups than folds, or fewer than two folds.

    Examples:
        >>> sets = Sets.from_list([torch.zeros(1, 1)] * 4)
        >>> bags = Bags("four", sets, torch.tensor([True, False, True, False]), np.array([0, 1, 2, 3]), "nowhere")
        >>> [len(test) for _, test in bag_folds(bags, 2)]
        [2, 2]
    """
    if not 2 <= count <= len(np.unique(bags.groups)):
        raise OptionError(f"{len(np.unique(bags.groups))} groups of bags cannot be split into {count} folds")
    rng = spawn_generators(random_state, 1)[0]
    labels = bags.labels.cpu().numpy().astype(np.int64)
    groups = [np.flatnonzero(bags.groups == g) for g in rng.permutation(np.unique(bags.groups))]
    fold_counts = np.zeros((count, 2), dtype=np.int64)
    fold_of = np.zeros(len(bags), dtype=np.int64)
    # Large groups first; each group joins the fold with the fewest bags of its labels.
    for group in sorted(groups, key=len, reverse=True):
        label_counts = np.bincount(labels[group], minlength=2)
        fold = np.lexsort((fold_counts.sum(1), fold_counts @ label_counts))[0]
        fold_counts[fold] += label_counts
        fold_of[group] = fold
    return [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(count)]


def _read_table(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
        table = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds label, bag and features of every instance") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise unreadable(path, error) from error
    return table[:, 0], table[:, 1], table[:, 2:]


def _read_archive(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels, bag_ids, features = read_arrays(path, ("y", "bag", "X"))
    return labels.reshape(-1), bag_ids.reshape(-1), features


def _find_groups(features: np.ndarray, bag_of: np.ndarray) -> np.ndarray:
    """Return the group of each bag: the lowest index of the bags it is connected to by shared instances."""
    instance_of = np.unique(features, axis=0, return_inverse=True)[1].reshape(-1)
    group = np.arange(bag_of[-1] + 1)
    while True:
        lowest = np.full(instance_of.max() + 1, len(group))
        np.minimum.at(lowest, instance_of, group[bag_of])
        linked = group.copy()
        np.minimum.at(linked, bag_of, lowest[instance_of])
        if np.array_equal(linked, group):
            return group
        group = linked
