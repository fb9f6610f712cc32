"""Generated plates of small molecules, of which the most soluble of each ring system were picked. Needs RDKit."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from setgrad.datasets._table_task import TableTask, resolve_two, stack_sets
from setgrad.datasets._task import spawn_generators
from setgrad.errors import MissingDependencyError

# Ring systems with two places for substituents.
_RINGS = (
    "c1ccc({a})cc1{b}",
    "c1ccnc({a})c1{b}",
    "c1cc2ccccc2c({a})c1{b}",
    "c1csc({a})c1{b}",
    "C1CCN({a})CC1{b}",
    "c1coc({a})c1{b}",
    "C1CC({a})CCC1{b}",
    "O=C1NC({a})CC1{b}",
    "c1nc({a})[nH]c1{b}",
    "c1ccc2c(c1)[nH]c({a})c2{b}",
)
_SUBSTITUENTS = ("C", "CCC", "C(C)C", "CCO", "C(=O)O", "C(=O)N", "C#N", "C(F)(F)F", "CN(C)C", "COC", "CCCC")
_RINGS_OF_A_PLATE, _FEWEST, _MOST = 6, 2, 5
_LEAST_SOLUBLE = -1.7
_DEFAULT_COUNTS = (300, 100)
_DESCRIPTION = (
    "One row for each compound on a plate, 12 to 30 on a plate, and whether it was picked: of each ring system, the "
    "scaffold, the most soluble compound, if it is soluble enough. Molecules are a ring system with two substituents. "
    "Their solubility is computed from their structure by Delaney's equation, with noise, and not in the table; "
    "scaffold, weight, logP and the other columns are computed by RDKit."
)


def make_solubility(*, random_state: int = 0, n_train: int | None = None, n_test: int | None = None) -> TableTask:
    """Return the tables of the plates: 300 to learn from and 100 to test on by default.

    Raises:
        MissingDependencyError: If RDKit is not installed.
    """
    import pyarrow as pa

    counts = resolve_two(n_train, n_test, _DEFAULT_COUNTS)
    columns, solubility = _make_library()
    types = {
        "plate": pa.string(),
        "compound": pa.string(),
        "smiles": pa.string(),
        "scaffold": pa.string(),
        "weight": pa.float64(),
        "logp": pa.float64(),
        "surface": pa.float64(),
        "rotatable": pa.int64(),
        "aromatic": pa.float64(),
        "picked": pa.bool_(),
    }
    train, test = (
        stack_sets(_draw_plates(rng, columns, solubility, count, first), types)
        for rng, count, first in zip(spawn_generators(random_state, 2), counts, (1, counts[0] + 1), strict=True)
    )
    return TableTask("solubility", _DESCRIPTION, train, test, "plate", "compound", "picked")


@functools.cache
def _make_library() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of all molecules, and their log solubilities."""
    try:
        from rdkit import Chem
        from rdkit.Chem import Descriptors
        from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
    except ImportError as error:
        raise MissingDependencyError(
            'the solubility table needs RDKit, which reads molecules: pip install "setgrad[chem]"'
        ) from error
    forms = itertools.product(_RINGS, _SUBSTITUENTS, _SUBSTITUENTS)
    smiles = list(dict.fromkeys(Chem.CanonSmiles(ring.format(a=first, b=second)) for ring, first, second in forms))
    molecules = [Chem.MolFromSmiles(text) for text in smiles]
    # By name, as RDKit lists them: type checkers do not see all of these functions.
    compute = dict(Descriptors.descList)
    weight, logp, surface, rotatable = (
        np.array([compute[name](molecule) for molecule in molecules])
        for name in ("MolWt", "MolLogP", "TPSA", "NumRotatableBonds")
    )
    aromatic = np.array([np.mean([atom.GetIsAromatic() for atom in molecule.GetAtoms()]) for molecule in molecules])
    # J. S. Delaney, J. Chem. Inf. Comput. Sci. 44, 1000 (2004).
    solubility = 0.16 - 0.63 * logp - 0.0062 * weight + 0.066 * rotatable - 0.74 * aromatic
    columns = {
        "compound": np.array([f"C{number:04d}" for number in range(len(smiles))]),
        "smiles": np.array(smiles),
        "scaffold": np.array([MurckoScaffoldSmiles(mol=molecule) for molecule in molecules]),
        "weight": weight.round(2),
        "logp": logp.round(3),
        "surface": surface.round(2),
        "rotatable": rotatable,
        "aromatic": aromatic.round(3),
    }
    return columns, solubility


def _draw_plates(
    rng: np.random.Generator, columns: dict[str, np.ndarray], solubility: np.ndarray, count: int, first: int
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each plate: several molecules of each of six ring systems."""
    scaffolds = np.unique(columns["scaffold"])
    for number in range(first, first + count):
        groups = [
            rng.choice(np.flatnonzero(columns["scaffold"] == name), rng.integers(_FEWEST, _MOST + 1), replace=False)
            for name in rng.choice(scaffolds, _RINGS_OF_A_PLATE, replace=False)
        ]
        shown = rng.permutation(np.concatenate(groups))
        measured = solubility[shown] + 0.1 * rng.standard_normal(len(shown))
        same = columns["scaffold"][shown][:, None] == columns["scaffold"][shown]
        is_best = measured >= np.where(same, measured, -np.inf).max(1)
        picked = is_best & (measured > _LEAST_SOLUBLE)
        if not picked.any():
            picked = measured == measured.max()
        yield {
            "plate": f"p{number:04d}",
            **{name: values[shown] for name, values in columns.items()},
            "picked": picked,
        }
