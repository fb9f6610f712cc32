"""Sets of drug-target pairs: drawn, filtered, kept in a file, and turned into splits."""

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
from setgrad.datasets._task import Counts, fill_counts, generators
from setgrad.datasets._tokens import protein_tokens, smiles_tokens
from setgrad.errors import DataError, FileFormatError, unknown_name
from setgrad.sets import Choices, Sets

COMPOUND_PROTOCOLS = ("diverse", "active")
RULES = {
    "diverse": "of the most active third, one compound for each cluster of similar ones, are to be found",
    "active": "the 15 most active ones are to be found",
}

_USUAL = (1000, 100, 100)
_SET_SIZE, _ACTIVE = 300, 15
_TRIES = 100
_SPLITS = ("train", "validation", "test")
_FORMAT = 1

# From the numbers of the pairs of a set to a mask of the chosen ones, or None if this set has no clear answer.
Oracle = Callable[[np.ndarray], np.ndarray | None]


@final
@dataclass(frozen=True)
class Recipe:
    """All that decides what a task holds, beside the pairs themselves."""

    name: str
    protocol: str
    random_state: int
    counts: tuple[int, int, int]

    @staticmethod
    def of(name: str, protocol: str, random_state: int, wanted: Counts) -> Recipe:
        """Check the protocol and fill in the usual numbers of sets."""
        if protocol not in COMPOUND_PROTOCOLS:
            raise unknown_name("compound protocol", protocol, COMPOUND_PROTOCOLS)
        return Recipe(name, protocol, random_state, fill_counts(wanted, _USUAL))

    @property
    def file(self) -> str:
        """Name of the file that keeps the task."""
        counts = "-".join(str(count) for count in self.counts)
        return f"{self.name}-{self.protocol}-random_state{self.random_state}-{counts}.npz"


def pair_splits(recipe: Recipe, read: Callable[[], Pairs], cache: str | Path | None) -> list[Choices]:
    """Three splits, from the file in the folder `cache` if there is one, and written to it if not."""
    folder = cache if cache is not None else os.environ.get("SETGRAD_CACHE")
    path = Path(folder) / recipe.file if folder else None
    if path is not None and path.is_file():
        arrays = _read(path)
    else:
        arrays = _build(recipe, read())
        if path is not None:
            with atomic_write(path) as draft, draft.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
    return [_choices(arrays, split) for split in _SPLITS]


def _build(recipe: Recipe, pairs: Pairs) -> dict[str, np.ndarray]:
    packed = None
    if recipe.protocol == "diverse":
        packed, readable = fingerprints(pairs.smiles)
        pairs = pairs.of_drugs(readable)
    if len(pairs) < _SET_SIZE:
        raise DataError(f"a set holds {_SET_SIZE} pairs, but only {len(pairs)} can be used; add more data")
    oracle = _active(pairs) if packed is None else _diverse(pairs, packed)
    arrays = {
        "format": np.array(_FORMAT),
        "drugs": smiles_tokens(pairs.smiles),
        "targets": protein_tokens(pairs.proteins),
    }
    for rng, split, count in zip(generators(recipe.random_state, 3), _SPLITS, recipe.counts, strict=True):
        members, chosen = _draw(rng, len(pairs), oracle, count, f"{split} sets")
        arrays[f"{split}_drug"] = pairs.drug[members].astype(np.int32)
        arrays[f"{split}_target"] = pairs.target[members].astype(np.int32)
        arrays[f"{split}_ids"] = pairs.ids[members].astype(np.int64)
        arrays[f"{split}_chosen"] = chosen
    return arrays


def _draw(rng: np.random.Generator, pairs: int, oracle: Oracle, count: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    members = np.zeros((count, _SET_SIZE), dtype=np.int64)
    chosen = np.zeros((count, _SET_SIZE), dtype=bool)
    for number in track(range(count), what, count):
        for _ in range(_TRIES):
            members[number] = rng.choice(pairs, _SET_SIZE, replace=False)
            answer = oracle(members[number])
            if answer is not None:
                chosen[number] = answer
                break
        else:
            raise DataError(
                f"{_TRIES} draws of {_SET_SIZE} pairs gave no set with a clear answer: too many pairs share one "
                "activity; use data with more distinct values"
            )
    return members, chosen


def _active(pairs: Pairs) -> Oracle:
    def choose(members: np.ndarray) -> np.ndarray | None:
        mask = most_active(pairs.activity[members], _ACTIVE)
        return mask if mask.any() else None

    return choose


def _diverse(pairs: Pairs, packed: np.ndarray) -> Oracle:
    def choose(members: np.ndarray) -> np.ndarray | None:
        activity, drug = pairs.activity[members], pairs.drug[members]
        active = np.flatnonzero(most_active(activity, _SET_SIZE // 3))
        if not len(active):
            return None
        # A compound takes part once, by its most active pair: copies of it would only stand for each other.
        active = active[np.lexsort((members[active], -activity[active]))]
        drugs, first = np.unique(drug[active], return_index=True)
        centres = exemplars(tanimoto(packed[drugs]))
        if centres is None:
            return None
        mask = np.zeros(len(members), dtype=bool)
        mask[active[first[centres]]] = True
        return mask

    return choose


def _read(path: Path) -> dict[str, np.ndarray]:
    wanted = ["format", "drugs", "targets", *(f"{s}_{a}" for s in _SPLITS for a in ("drug", "target", "ids", "chosen"))]
    remedy = "delete the file, and it is made again"
    try:
        arrays = dict(zip(wanted, read_arrays(path, wanted), strict=True))
    except FileFormatError as error:
        raise FileFormatError(f"{error}, or {remedy}") from error
    if int(arrays["format"]) != _FORMAT:
        raise FileFormatError(f"{path} is in format {int(arrays['format'])}, not {_FORMAT}; {remedy}")
    for split in _SPLITS:
        for name in ("drug", "target"):
            numbers = arrays[f"{split}_{name}"]
            if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(arrays[f"{name}s"]):
                raise FileFormatError(f"{path}, array {split}_{name}: there is no such {name}; {remedy}")
        if len({arrays[f"{split}_{name}"].shape for name in ("drug", "target", "ids", "chosen")}) > 1:
            raise FileFormatError(f"{path}: the arrays of the {split} sets have different shapes; {remedy}")
    return arrays


def _choices(arrays: dict[str, np.ndarray], split: str) -> Choices:
    drug, target = arrays[f"{split}_drug"], arrays[f"{split}_target"]
    drugs, targets = arrays["drugs"], arrays["targets"]
    # Filled in place: 300,000 pairs are 330 MB, and no second copy is wanted.
    tokens = np.empty((drug.size, drugs.shape[1] + targets.shape[1]), dtype=np.uint8)
    tokens[:, : drugs.shape[1]] = drugs[drug.reshape(-1)]
    tokens[:, drugs.shape[1] :] = targets[target.reshape(-1)]
    sets = Sets.from_lengths(torch.from_numpy(tokens), np.full(len(drug), drug.shape[1]))
    chosen = torch.from_numpy(arrays[f"{split}_chosen"].reshape(-1))
    return Choices(sets, sets.with_values(chosen), item_ids=arrays[f"{split}_ids"].reshape(-1))
