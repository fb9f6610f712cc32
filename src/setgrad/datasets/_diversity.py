"""The two filters of compound selection: the most active items, and the centres of their clusters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from setgrad._progress import track
from setgrad.errors import MissingDependencyError

_RADIUS, _BITS = 2, 2048
# Tried in turn until affinity propagation converges.
_DAMPINGS = (0.5, 0.7, 0.9)


def most_active(activity: np.ndarray, count: int) -> np.ndarray:
    """Return the mask of the `count` most active items.

    Equal values on both sides of the limit are all left out, so that the mask does not depend on the order of items.

    Examples:
        >>> most_active(np.array([3.0, 9.0, 5.0, 5.0]), 2).tolist()
        [False, True, False, False]
    """
    if count >= len(activity):
        return np.ones(len(activity), dtype=bool)
    return activity > np.partition(activity, len(activity) - 1 - count)[len(activity) - 1 - count]


def fingerprints(smiles: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return Morgan fingerprints (radius 2, 2048 bits), packed `(n, 256)`, and the mask of strings that RDKit can read.

    Raises:
        MissingDependencyError: If RDKit is not installed.
    """
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem import rdFingerprintGenerator
    except ImportError as error:
        raise missing_chemistry() from error
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=_RADIUS, fpSize=_BITS)
    packed = np.zeros((len(smiles), _BITS // 8), dtype=np.uint8)
    is_readable = np.zeros(len(smiles), dtype=bool)
    # RDKit logs a long message for every string that it cannot read.
    with rdBase.BlockLogs():
        for index in track(range(len(smiles)), "fingerprints", len(smiles)):
            molecule = Chem.MolFromSmiles(smiles[index])
            if molecule is not None and molecule.GetNumAtoms():
                packed[index] = np.packbits(generator.GetFingerprintAsNumPy(molecule))
                is_readable[index] = True
    return packed, is_readable


def tanimoto(packed: np.ndarray) -> np.ndarray:
    """Return the similarity `(n, n)` of packed fingerprints: shared bits over bits in either.

    Examples:
        >>> tanimoto(np.array([[0b1100], [0b0110]], dtype=np.uint8)).round(2).tolist()
        [[1.0, 0.33], [0.33, 1.0]]
    """
    bits = np.unpackbits(packed, axis=1).astype(np.float32)
    common = (bits @ bits.T).astype(np.float64)
    count = np.diag(common)
    return common / np.maximum(count[:, None] + count[None, :] - common, 1.0)


def exemplars(similarity: np.ndarray) -> np.ndarray | None:
    """Return the indices of the centres of clusters by affinity propagation; None if it does not converge.

    If all items are equally similar, each is a centre.

    Raises:
        MissingDependencyError: If scikit-learn is not installed.
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
        # scikit-learn breaks ties by a tiny noise, which random_state fixes.
        propagation = AffinityPropagation(affinity="precomputed", damping=damping, max_iter=1000, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            try:
                return np.asarray(propagation.fit(similarity).cluster_centers_indices_)
            except ConvergenceWarning:
                continue
    return None


def missing_chemistry() -> MissingDependencyError:
    """Return the error for a missing RDKit or scikit-learn."""
    return MissingDependencyError(
        'choosing diverse compounds needs RDKit and scikit-learn: pip install "setgrad[chem]"; or build the task on '
        "a machine that has them with cache=FOLDER, and copy that folder"
    )
