"""The paper's initial layer for drug-target pairs: a convolutional network on each of the two sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from setgrad.encoders._base import ItemEncoder, flat_items, item_shape
from setgrad.encoders.again import computed_again
from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets

# The characters that DeepDTA knows. Token 0 fills up short sequences, token i + 1 is character i, and the token after
# the last stands for any other character.
SMILES_ALPHABET = "#%()+-./0123456789=@ABCDEFGHIKLMNOPRSTUVWYZ[\\]abcdefghilmnorstuy"
PROTEIN_ALPHABET = "ABCDEFGHIKLMNOPQRSTUVWXYZ"
SMILES_LENGTH, PROTEIN_LENGTH = 100, 1000

_CHANNELS = (32, 64, 96)
_DRUG_KERNELS, _TARGET_KERNELS = (4, 6, 8), (4, 8, 12)
# Sequences that are convolved at a time: 1000 letters with 96 channels in float32 take 400 KB each, and as much again
# for the gradient.
_PIECE = 1024


@final
class PairItems(ItemEncoder):
    """Features of drug-target pairs from their letters, as published for BindingDB.

    An item is a row of tokens, the `smiles_length` of the drug first and those of the protein after them (see
    `setgrad.datasets.pair_tokens`), in any type of number. Pairs share drugs and proteins, so each distinct sequence
    of a batch is convolved once.

    Example:
        >>> from setgrad.datasets import pair_tokens
        >>> phi = PairItems(1100, dim=16)
        >>> phi(Sets.from_list([pair_tokens(["CCO", "c1ccccc1"], ["MKKFF", "MKKFF"])])).shape
        torch.Size([2, 16])
    """

    reads_tokens = True

    def __init__(
        self, in_dim: int | Sequence[int], dim: int = 256, *, smiles_length: int = SMILES_LENGTH, piece: int = _PIECE
    ) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.out_dim, self.smiles_length = dim, smiles_length
        protein_length = math.prod(self.shape) - smiles_length
        for kind, length, kernels in (
            ("drug", smiles_length, _DRUG_KERNELS),
            ("protein", protein_length, _TARGET_KERNELS),
        ):
            if length < _reach(kernels):
                raise OptionError(
                    f"PairItems reads {_reach(kernels)} tokens of a {kind} at a time, but in_dim={in_dim} and "
                    f"smiles_length={smiles_length} leave {length}; make the items with setgrad.datasets.pair_tokens"
                )
        self.drug = _Tower(len(SMILES_ALPHABET) + 1, _DRUG_KERNELS, dim, piece)
        self.target = _Tower(len(PROTEIN_ALPHABET) + 1, _TARGET_KERNELS, dim, piece)
        self.join = nn.Linear(2 * dim, dim)

    def forward(self, sets: Sets) -> Tensor:
        """Read both sequences of every item and join what was read."""
        tokens = flat_items(sets, self.shape)
        drugs, targets = tokens[:, : self.smiles_length], tokens[:, self.smiles_length :]
        return self.join(torch.cat([self.drug(drugs), self.target(targets)], 1))


@final
class _Tower(nn.Module):
    """One-hot letters, three convolutions, the maximum over all places, and a layer."""

    letters: Tensor

    def __init__(self, letters: int, kernels: tuple[int, ...], dim: int, piece: int) -> None:
        super().__init__()
        self.piece = piece
        # Row 0, the filling, is all zeros.
        self.register_buffer("letters", torch.eye(letters + 1)[:, 1:].contiguous(), persistent=False)
        parts: list[nn.Module] = []
        for (before, after), kernel in zip(pairwise((letters, *_CHANNELS)), kernels, strict=True):
            parts += [nn.Conv1d(before, after, kernel), nn.ReLU()]
        self.convolutions = nn.Sequential(*parts)
        self.linear = nn.Linear(_CHANNELS[-1], dim)

    def forward(self, tokens: Tensor) -> Tensor:
        if not len(tokens):
            return self.letters.new_zeros(0, self.linear.out_features)
        rows, places = distinct_rows(self._checked(tokens))
        pieces = rows.split(self.piece)
        if len(pieces) == 1 or not torch.is_grad_enabled():
            pooled = [self._read(piece) for piece in pieces]
        else:
            pooled = [computed_again(self._read, piece) for piece in pieces]
        return torch.relu(self.linear(torch.cat(pooled))).index_select(0, places)

    def _checked(self, tokens: Tensor) -> Tensor:
        rows = tokens.to(torch.int64)
        last = len(self.letters) - 1
        # Wrong tokens would end a CUDA program without saying why, and standardised ones would train on nonsense.
        if bool(((rows < 0) | (rows > last) | (rows != tokens)).any()):
            raise DataError(
                f"pairs must come as tokens, whole numbers from 0 to {last}; make them with "
                "setgrad.datasets.pair_tokens, and do not standardise them (standardize=False)"
            )
        return rows

    def _read(self, rows: Tensor) -> Tensor:
        return self.convolutions(embedding(rows, self.letters).transpose(1, 2)).amax(2)


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of an integer matrix and, for every row, which of them it is.

    Rows are told apart by a random 64-bit sum: on a GPU that is over 20 times as fast as sorting whole rows. Should
    two rows ever share a sum, they are sorted after all.

    Example:
        >>> rows, places = distinct_rows(torch.tensor([[1, 2], [3, 4], [1, 2]]))
        >>> len(rows), torch.equal(rows[places], torch.tensor([[1, 2], [3, 4], [1, 2]]))
        (2, True)
    """
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, rows.shape[1:], generator=generator).to(rows.device)
    sums, places = torch.unique((rows * factors).sum(1), return_inverse=True)
    # Any row will do where several are equal.
    first = torch.empty_like(sums).scatter_(0, places, torch.arange(len(rows), device=rows.device))
    found = rows[first]
    if bool((found[places] != rows).any()):
        found, places = torch.unique(rows, dim=0, return_inverse=True)
    return found, places


def _reach(kernels: tuple[int, ...]) -> int:
    return sum(kernels) - len(kernels) + 1
