"""Sets of drug-target pairs: drawing, filtering, and a cache in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from setgrad._files import atomic_write
from setgrad._progress import track
from setgrad.datasets._diversity import exemplars, fingerprints, most_active, tanimoto
from setgrad.datasets._folder import read_arrays
from setgrad.datasets._pairs import Pairs
from setgrad.datasets._task import Counts, equal_size_choices, resolve_counts, spawn_generators
from setgrad.datasets._tokens import protein_tokens, smiles_tokens
from setgrad.errors import DataError, FileFormatError, unknown_name
from setgrad.sets import Choices

COMPOUND_PROTOCOLS = ("diverse", "active")
PROTOCOL_TEXTS = {
    "diverse": "one compound of each cluster of similar ones among the most active third is to be found",
    "active": "the 15 most active ones are to be found",
}

_DEFAULT_COUNTS = (1000, 100, 100)
_SET_SIZE, _ACTIVE_SIZE = 300, 15
_MAX_DRAWS = 100
_SPLITS = ("train", "validation", "test")
_FORMAT = 1

# Returns the mask of the chosen pairs from the indices of the pairs of a set; None if the set has no clear answer.
Oracle = Callable[[np.ndarray], np.ndarray | None]


@final
@dataclass(frozen=True)
class PairTask:
    """Everything that determines a task, except for the pairs themselves."""

    name: str
    protocol: str
    random_state: int
    counts: tuple[int, int, int]

    @staticmethod
    def of(name: str, protocol: str, random_state: int, requested: Counts) -> PairTask:
        """Return the task, after a check of the protocol and the numbers of sets."""
        if protocol not in COMPOUND_PROTOCOLS:
            raise unknown_name("compound protocol", protocol, COMPOUND_PROTOCOLS)
        return PairTask(name, protocol, random_state, resolve_counts(requested, _DEFAULT_COUNTS))

    @property
    def filename(self) -> str:
        """Name of the file that stores the task."""
        counts = "-".join(str(count) for count in self.counts)
        return f"{self.name}-{self.protocol}-seed{self.random_state}-{counts}.npz"


def make_splits(task: PairTask, read: Callable[[], Pairs], cache: str | Path | None) -> list[Choices]:
    """Return the three splits, from the file in the folder `cache` if it exists; otherwise build and store them."""
    folder = cache if cache is not None else os.environ.get("SETGRAD_CACHE")
    path = Path(folder) / task.filename if folder else None
    if path is not None and path.is_file():
        arrays = _read_cache(path)
    else:
        arrays = _build(task, read())
        if path is not None:
            with atomic_write(path) as draft, draft.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
    return [_to_choices(arrays, split) for split in _SPLITS]


def _build(task: PairTask, pairs: Pairs) -> dict[str, np.ndarray]:
    packed = None
    if task.protocol == "diverse":
        packed, is_readable = fingerprints(pairs.smiles)
        pairs = pairs.filter_drugs(is_readable)
    if len(pairs) < _SET_SIZE:
        raise DataError(f"a set holds {_SET_SIZE} pairs, but only {len(pairs)} are usable; more data are needed")
    oracle = _active_oracle(pairs) if packed is None else _diverse_oracle(pairs, packed)
    arrays = {
        "format": np.array(_FORMAT),
        "drugs": smiles_tokens(pairs.smiles),
        "targets": protein_tokens(pairs.proteins),
    }
    for rng, split, count in zip(spawn_generators(task.random_state, 3), _SPLITS, task.counts, strict=True):
        members, mask = _draw_sets(rng, len(pairs), oracle, count, f"{split} sets")
        arrays[f"{split}_drug"] = pairs.drug[members].astype(np.int32)
        arrays[f"{split}_target"] = pairs.target[members].astype(np.int32)
        arrays[f"{split}_ids"] = pairs.ids[members].astype(np.int64)
        arrays[f"{split}_chosen"] = mask
    return arrays


def _draw_sets(
    rng: np.random.Generator, pairs: int, oracle: Oracle, count: int, label: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the pairs of `count` sets and the masks of the chosen ones, both `(count, 300)`."""
    members = np.zeros((count, _SET_SIZE), dtype=np.int64)
    mask = np.zeros((count, _SET_SIZE), dtype=bool)
    for index in track(range(count), label, count):
        for _ in range(_MAX_DRAWS):
            members[index] = rng.choice(pairs, _SET_SIZE, replace=False)
            answer = oracle(members[index])
            if answer is not None:
                mask[index] = answer
                break
        else:
            raise DataError(
                f"{_MAX_DRAWS} draws of {_SET_SIZE} pairs gave no set with a clear answer: too many pairs have one "
                "activity; use data with more distinct values"
            )
    return members, mask


def _active_oracle(pairs: Pairs) -> Oracle:
    def choose(members: np.ndarray) -> np.ndarray | None:
        mask = most_active(pairs.activity[members], _ACTIVE_SIZE)
        return mask if mask.any() else None

    return choose


def _diverse_oracle(pairs: Pairs, packed: np.ndarray) -> Oracle:
    def choose(members: np.ndarray) -> np.ndarray | None:
        activity, drug = pairs.activity[members], pairs.drug[members]
        active = np.flatnonzero(most_active(activity, _SET_SIZE // 3))
        if not len(active):
            return None
        # Each compound is represented by its most active pair: copies of it would form a cluster of their own.
        active = active[np.lexsort((members[active], -activity[active]))]
        drugs, first = np.unique(drug[active], return_index=True)
        centres = exemplars(tanimoto(packed[drugs]))
        if centres is None:
            return None
        mask = np.zeros(len(members), dtype=bool)
        mask[active[first[centres]]] = True
        return mask

    return choose


def _read_cache(path: Path) -> dict[str, np.ndarray]:
    fields = ("drug", "target", "ids", "chosen")
    names = ["format", "drugs", "targets", *(f"{split}_{field}" for split in _SPLITS for field in fields)]
    remedy = "delete the file to build the task again"
    try:
        arrays = dict(zip(names, read_arrays(path, names), strict=True))
    except FileFormatError as error:
        raise FileFormatError(f"{error}, or {remedy}") from error
    if int(arrays["format"]) != _FORMAT:
        raise FileFormatError(f"{path} is in format {int(arrays['format'])}, not {_FORMAT}; {remedy}")
    for split in _SPLITS:
        for name in ("drug", "target"):
            indices = arrays[f"{split}_{name}"]
            if indices.size and not 0 <= indices.min() <= indices.max() < len(arrays[f"{name}s"]):
                raise FileFormatError(f"{path}, array {split}_{name}: there is no such {name}; {remedy}")
        if len({arrays[f"{split}_{field}"].shape for field in fields}) > 1:
            raise FileFormatError(f"{path}: the arrays of the {split} sets have different shapes; {remedy}")
    return arrays


def _to_choices(arrays: dict[str, np.ndarray], split: str) -> Choices:
    drug, target = arrays[f"{split}_drug"], arrays[f"{split}_target"]
    drugs, targets = arrays["drugs"], arrays["targets"]
    # Filled in place, without a second copy: 300,000 pairs take 330 MB.
    tokens = np.empty((drug.size, drugs.shape[1] + targets.shape[1]), dtype=np.uint8)
    tokens[:, : drugs.shape[1]] = drugs[drug.reshape(-1)]
    tokens[:, drugs.shape[1] :] = targets[target.reshape(-1)]
    return equal_size_choices(
        torch.from_numpy(tokens), arrays[f"{split}_chosen"], item_ids=arrays[f"{split}_ids"].reshape(-1)
    )
