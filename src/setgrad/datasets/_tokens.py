"""Drug and protein strings as rows of small whole numbers, which is what `PairItems` reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from setgrad.encoders.sequences import PROTEIN_ALPHABET, PROTEIN_LENGTH, SMILES_ALPHABET, SMILES_LENGTH
from setgrad.errors import DataError


def pair_tokens(smiles: Sequence[str], proteins: Sequence[str]) -> Tensor:
    """Encode drug-target pairs, one row of 1100 tokens each: 100 for the SMILES string, 1000 for the protein.

    Longer sequences are cut, as published, and shorter ones filled up with 0. Characters that DeepDTA does not know
    all become one token; lower-case letters of a protein count as capitals. One byte a token.

    Example:
        >>> pair_tokens(["CCO"], ["MKK"])[0, [0, 1, 2, 3, 100, 101, 103]].tolist()
        [23, 23, 34, 0, 12, 10, 0]
    """
    if len(smiles) != len(proteins):
        raise DataError(f"a pair is a drug and a protein, but there are {len(smiles)} and {len(proteins)} of them")
    return torch.from_numpy(np.concatenate([smiles_tokens(smiles), protein_tokens(proteins)], axis=1))


def smiles_tokens(smiles: Sequence[str]) -> np.ndarray:
    """Tokens `(n, 100)` of SMILES strings."""
    return _encode(smiles, SMILES_ALPHABET, SMILES_LENGTH)


def protein_tokens(proteins: Sequence[str]) -> np.ndarray:
    """Tokens `(n, 1000)` of protein sequences."""
    return _encode([protein.upper() for protein in proteins], PROTEIN_ALPHABET, PROTEIN_LENGTH)


def _encode(texts: Sequence[str], alphabet: str, length: int) -> np.ndarray:
    table = np.full(256, len(alphabet) + 1, dtype=np.uint8)
    table[np.frombuffer(alphabet.encode("ascii"), dtype=np.uint8)] = np.arange(1, len(alphabet) + 1)
    tokens = np.zeros((len(texts), length), dtype=np.uint8)
    for row, text in zip(tokens, texts, strict=True):
        # "replace" writes a question mark, which no alphabet holds.
        letters = np.frombuffer(text[:length].encode("ascii", errors="replace"), dtype=np.uint8)
        row[: len(letters)] = table[letters]
    return tokens
