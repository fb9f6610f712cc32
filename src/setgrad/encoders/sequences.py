"""The item encoder for drug-target pairs of Özcan et al., 2024 (arXiv:2412.11239): a CNN on each of two sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from setgrad.encoders._base import ItemEncoder, flat_items, item_shape
from setgrad.encoders._checkpoint import checkpointed
from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets

# The characters of DeepDTA. Token 0 pads short sequences, token i + 1 is character i, and the token after the last one
# stands for any other character.
SMILES_ALPHABET = "#%()+-./0123456789=@ABCDEFGHIKLMNOPRSTUVWYZ[\\]abcdefghilmnorstuy"
PROTEIN_ALPHABET = "ABCDEFGHIKLMNOPQRSTUVWXYZ"
SMILES_LENGTH, PROTEIN_LENGTH = 100, 1000

_CHANNELS = (32, 64, 96)
_DRUG_KERNELS, _TARGET_KERNELS = (4, 6, 8), (4, 8, 12)
# Sequences that are convolved at a time: 1000 letters with 96 channels in float32 take 400 KB each, and the same for
# the gradient.
_CHUNK = 1024


@final
class PairItems(ItemEncoder):
    """An item encoder for drug-target pairs as sequences of letters, as published for BindingDB.

    An item is a row of tokens: `smiles_length` tokens of the drug, then those of the protein (see
    `setgrad.datasets.pair_tokens`), in any numeric dtype. Pairs share drugs and proteins, so each distinct sequence of
    a batch is convolved once.

    Args:
        in_dim: Number of tokens of an item.
        dim: Number of features to return.
        smiles_length: Number of tokens of the drug.
        chunk: Sequences that are convolved at a time.

    Raises:
        OptionError: If there are too few tokens for the convolutions.

    Examples:
        >>> from setgrad.datasets import pair_tokens
        >>> phi = PairItems(1100, dim=16)
        >>> phi(Sets.from_list([pair_tokens(["CCO", "c1ccccc1"], ["MKKFF", "MKKFF"])])).shape
        torch.Size([2, 16])
    """

    reads_tokens = True

    def __init__(
        self, in_dim: int | Sequence[int], dim: int = 256, *, smiles_length: int = SMILES_LENGTH, chunk: int = _CHUNK
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
                    f"smiles_length={smiles_length} leave {length}; create the items with setgrad.datasets.pair_tokens"
                )
        self.drug = _Tower(len(SMILES_ALPHABET) + 1, _DRUG_KERNELS, dim, chunk)
        self.target = _Tower(len(PROTEIN_ALPHABET) + 1, _TARGET_KERNELS, dim, chunk)
        self.join = nn.Linear(2 * dim, dim)

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all pairs, `(total, dim)`.

        Raises:
            DataError: If items are not tokens.
        """
        tokens = flat_items(sets, self.shape)
        drugs, targets = tokens[:, : self.smiles_length], tokens[:, self.smiles_length :]
        return self.join(torch.cat([self.drug(drugs), self.target(targets)], 1))


@final
class _Tower(nn.Module):
    """One-hot letters, three convolutions, the maximum over all positions, and a linear layer."""

    letters: Tensor

    def __init__(self, letters: int, kernels: tuple[int, ...], dim: int, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk
        # Row 0, the padding, is all zeros.
        self.register_buffer("letters", torch.eye(letters + 1)[:, 1:].contiguous(), persistent=False)
        parts: list[nn.Module] = []
        for (before, after), kernel in zip(pairwise((letters, *_CHANNELS)), kernels, strict=True):
            parts += [nn.Conv1d(before, after, kernel), nn.ReLU()]
        self.convolutions = nn.Sequential(*parts)
        self.linear = nn.Linear(_CHANNELS[-1], dim)

    def forward(self, tokens: Tensor) -> Tensor:
        if not len(tokens):
            return self.letters.new_zeros(0, self.linear.out_features)
        rows, index = distinct_rows(self._checked(tokens))
        chunks = rows.split(self.chunk)
        if len(chunks) == 1 or not torch.is_grad_enabled():
            pooled = [self._convolve(chunk) for chunk in chunks]
        else:
            pooled = [checkpointed(self._convolve, chunk) for chunk in chunks]
        return torch.relu(self.linear(torch.cat(pooled))).index_select(0, index)

    def _checked(self, tokens: Tensor) -> Tensor:
        rows = tokens.to(torch.int64)
        last = len(self.letters) - 1
        # Wrong tokens would crash a CUDA program without a clear error, and standardised ones would train on nonsense.
        if bool(((rows < 0) | (rows > last) | (rows != tokens)).any()):
            raise DataError(
                f"pairs must be tokens, whole numbers from 0 to {last}; create them with "
                "setgrad.datasets.pair_tokens, and do not standardise them (standardize=False)"
            )
        return rows

    def _convolve(self, rows: Tensor) -> Tensor:
        return self.convolutions(embedding(rows, self.letters).transpose(1, 2)).amax(2)


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of an integer matrix and, for every row, its index among them.

    Rows are compared by a random 64-bit sum: on a GPU this is over 20 times as fast as sorting whole rows. If two
    distinct rows share a sum, the rows are sorted after all.

    Examples:
        >>> rows, index = distinct_rows(torch.tensor([[1, 2], [3, 4], [1, 2]]))
        >>> len(rows), torch.equal(rows[index], torch.tensor([[1, 2], [3, 4], [1, 2]]))
        (2, True)
    """
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, rows.shape[1:], generator=generator).to(rows.device)
    sums, index = torch.unique((rows * factors).sum(1), return_inverse=True)
    # Of equal rows, any one will do.
    first = torch.empty_like(sums).scatter_(0, index, torch.arange(len(rows), device=rows.device))
    distinct = rows[first]
    if bool((distinct[index] != rows).any()):
        distinct, index = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, index


def _reach(kernels: tuple[int, ...]) -> int:
    return sum(kernels) - len(kernels) + 1
