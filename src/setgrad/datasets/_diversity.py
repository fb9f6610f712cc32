"""The two filters of compound selection: what is active enough, and what stands for the others."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from setgrad._progress import track
from setgrad.errors import MissingDependencyError

_RADIUS, _BITS = 2, 2048
# Tried in turn until affinity propagation settles.
_DAMPINGS = (0.5, 0.7, 0.9)


def most_active(activity: np.ndarray, count: int) -> np.ndarray:
    """Tell which items are among the `count` most active ones.

    Where equal values straddle the limit all of them are left out, so that the answer never depends on an order.

    Example:
        >>> most_active(np.array([3.0, 9.0, 5.0, 5.0]), 2).tolist()
        [False, True, False, False]
    """
    if count >= len(activity):
        return np.ones(len(activity), dtype=bool)
    return activity > np.partition(activity, len(activity) - 1 - count)[len(activity) - 1 - count]


def fingerprints(smiles: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Morgan fingerprints (radius 2, 2048 bits), packed `(n, 256)`, and which of the strings RDKit could read."""
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem import rdFingerprintGenerator
    except ImportError as error:
        raise missing_chemistry() from error
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=_RADIUS, fpSize=_BITS)
    packed = np.zeros((len(smiles), _BITS // 8), dtype=np.uint8)
    readable = np.zeros(len(smiles), dtype=bool)
    # RDKit writes a page about every string that it cannot read.
    with rdBase.BlockLogs():
        for number in track(range(len(smiles)), "fingerprints", len(smiles)):
            molecule = Chem.MolFromSmiles(smiles[number])
            if molecule is not None and molecule.GetNumAtoms():
                packed[number] = np.packbits(generator.GetFingerprintAsNumPy(molecule))
                readable[number] = True
    return packed, readable


def tanimoto(packed: np.ndarray) -> np.ndarray:
    """Similarity `(n, n)` of packed fingerprints: bits in common over bits in either.

    Example:
        >>> tanimoto(np.array([[0b1100], [0b0110]], dtype=np.uint8)).round(2).tolist()
        [[1.0, 0.33], [0.33, 1.0]]
    """
    bits = np.unpackbits(packed, axis=1).astype(np.float32)
    common = (bits @ bits.T).astype(np.float64)
    count = np.diag(common)
    return common / np.maximum(count[:, None] + count[None, :] - common, 1.0)


def exemplars(similarity: np.ndarray) -> np.ndarray | None:
    """Centres of the clusters that affinity propagation finds; None if it never settles.

    Where all items are equally alike there is nothing to group by, and each is a centre.
    """
    try:
        from sklearn.cluster import AffinityPropagation
        from sklearn.exceptions import ConvergenceWarning
    except ImportError as error:
        raise missing_chemistry() from error
    others = similarity[~np.eye(len(similarity), dtype=bool)]
    if not others.size or others.min() == others.max():
        return np.arange(len(similarity))
    for damping in _DAMPINGS:
        # The random_state is that of the tiny noise by which scikit-learn breaks ties.
        propagation = AffinityPropagation(affinity="precomputed", damping=damping, max_iter=1000, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            try:
                return np.asarray(propagation.fit(similarity).cluster_centers_indices_)
            except ConvergenceWarning:
                continue
    return None


def missing_chemistry() -> MissingDependencyError:
    """Build the error for a machine without RDKit or scikit-learn."""
    return MissingDependencyError(
        'choosing diverse compounds needs RDKit and scikit-learn: pip install "setgrad[chem]"; or build the task on '
        "a machine that has them with cache=FOLDER, and bring that folder"
    )
