"""`Pairs`, drug-target pairs with a measured activity, and the reader of Davis and KIBA."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from setgrad.datasets._folder import data_folder, unreadable
from setgrad.errors import DataError, FileFormatError


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Measured drug-target pairs.

    Attributes:
        smiles: The drugs.
        proteins: The targets.
        drug: Index into `smiles` for each pair.
        target: Index into `proteins` for each pair.
        activity: Activity of each pair; larger is more active.
        ids: Id of each pair.
    """

    smiles: list[str]
    proteins: list[str]
    drug: np.ndarray
    target: np.ndarray
    activity: np.ndarray
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.drug)

    def filter_drugs(self, mask: np.ndarray) -> Pairs:
        """Return the pairs of the drugs where the mask is true."""
        rows = mask[self.drug]
        return replace(
            self, drug=self.drug[rows], target=self.target[rows], activity=self.activity[rows], ids=self.ids[rows]
        )


# The same matrices as in the files named Y, which are Python 2 pickles and therefore not read.
_MATRICES = {
    "davis": "drug-target_interaction_affinities_Kd__Davis_et_al.2011v1.txt",
    "kiba": "kiba_binding_affinity_v2.txt",
}


def read_deepdta(dataset: str, data_dir: str | Path | None) -> Pairs:
    """Return the pairs of "davis" or "kiba" from the files of DeepDTA; ids are positions in the matrix, row by row."""
    folder = data_folder(data_dir, "deepdta", "Davis and KIBA") / dataset
    drugs = _read_named(folder / "ligands_iso.txt")
    proteins = _read_named(folder / "proteins.txt")
    matrix = _read_matrix(folder / _MATRICES[dataset], (len(drugs), len(proteins)))
    known = np.flatnonzero(~np.isnan(matrix))
    values = matrix.reshape(-1)[known]
    if dataset == "davis":
        if not (values > 0).all():
            raise FileFormatError(f"{folder / _MATRICES[dataset]}: every Kd must be above 0; download the file again")
        values = 9.0 - np.log10(values)
    drug, target = np.divmod(known, len(proteins))
    return Pairs(drugs, proteins, drug, target, values, known)


def _read_named(path: Path) -> list[str]:
    """Return the sequences of a JSON object of names and sequences, in the order of the matrix."""
    try:
        named = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds a JSON object of names and sequences") from None
    except ValueError as error:
        raise unreadable(path, error) from error
    if not isinstance(named, dict) or not named or not all(isinstance(text, str) and text for text in named.values()):
        raise FileFormatError(f"{path}: a JSON object of names and sequences was expected; download it again")
    return list(named.values())


def _read_matrix(path: Path, shape: tuple[int, int]) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"{path} is missing; each line is a drug, with one number for each protein")
    try:
        matrix = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise unreadable(path, error) from error
    if matrix.shape != shape or np.isinf(matrix).any() or np.isnan(matrix).all():
        raise FileFormatError(
            f"{path}: {shape[0]} lines of {shape[1]} finite numbers or nan were expected, one line for each drug and "
            f"one number for each protein, not {matrix.shape[0]} of {matrix.shape[1]}; download all files again"
        )
    return matrix
