"""Tokens of drug and protein strings, the input of `PairItems`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from setgrad.encoders.sequences import PROTEIN_ALPHABET, PROTEIN_LENGTH, SMILES_ALPHABET, SMILES_LENGTH
from setgrad.errors import DataError


def pair_tokens(smiles: Sequence[str], proteins: Sequence[str]) -> Tensor:
    """Return the tokens of drug-target pairs, `(n, 1100)` in bytes: 100 for the SMILES string, 1000 for the protein.

    Longer sequences are truncated, as published, and shorter ones padded with 0. All characters outside the alphabets
    of DeepDTA become one token; lower-case letters of a protein count as capitals.

    Args:
        smiles: SMILES strings of the drugs.
        proteins: Amino acid sequences of the targets, one for each drug.

    Raises:
        DataError: If there are not as many drugs as proteins.

    Examples:
        >>> pair_tokens(["CCO"], ["MKK"])[0, [0, 1, 2, 3, 100, 101, 103]].tolist()
        [23, 23, 34, 0, 12, 10, 0]
    """
    if len(smiles) != len(proteins):
        raise DataError(f"there are {len(smiles)} drugs and {len(proteins)} proteins; pass one protein for each drug")
    return torch.from_numpy(np.concatenate([smiles_tokens(smiles), protein_tokens(proteins)], axis=1))


def smiles_tokens(smiles: Sequence[str]) -> np.ndarray:
    """Return the tokens `(n, 100)` of SMILES strings."""
    return _encode(smiles, SMILES_ALPHABET, SMILES_LENGTH)


def protein_tokens(proteins: Sequence[str]) -> np.ndarray:
    """Return the tokens `(n, 1000)` of protein sequences."""
    return _encode([protein.upper() for protein in proteins], PROTEIN_ALPHABET, PROTEIN_LENGTH)


def _encode(texts: Sequence[str], alphabet: str, length: int) -> np.ndarray:
    table = np.full(256, len(alphabet) + 1, dtype=np.uint8)
    table[np.frombuffer(alphabet.encode("ascii"), dtype=np.uint8)] = np.arange(1, len(alphabet) + 1)
    tokens = np.zeros((len(texts), length), dtype=np.uint8)
    for row, text in zip(tokens, texts, strict=True):
        # "replace" writes a question mark, which is in neither alphabet.
        letters = np.frombuffer(text[:length].encode("ascii", errors="replace"), dtype=np.uint8)
        row[: len(letters)] = table[letters]
    return tokens
