"""Log-determinant: the volume that the items of a subset span, as in determinantal point processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad.errors import DataError, OptionError
from setgrad.functions._set_function import BoundSetFunction, SetFunction, pad_masks, take_items
from setgrad.functions.similarity import Similarity, pairwise_similarities
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class LogDeterminant(SetFunction):
    """F(S) = log det(I + K_S / ridge), with K_S the similarities of the items of S: monotone and submodular.

    Fractional masks x give log det(I + diag(x) K / ridge); masks below 0 count as 0.

    Args:
        similarity: Positive semi-definite similarity of items; None for `rbf()`.
        ridge: Positive number that keeps the determinant away from 0.

    Raises:
        OptionError: If `ridge` is not positive.

    Examples:
        >>> sets = Sets.from_list([[[0.0], [9.0]]])
        >>> LogDeterminant(ridge=0.5).value(sets, torch.tensor([[True, False], [True, True]])).exp()
        tensor([[3.],
                [9.]])
    """

    similarity: Similarity | None = None
    ridge: float | Tensor = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise OptionError(f"ridge must be positive, not {self.ridge}; it keeps the determinant away from 0")

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with all pairs compared once.

        Raises:
            ShapeError: If the similarity does not return one number for each pair of items.
            DataError: If a determinant may be negative, because the similarity is not positive semi-definite.
        """
        similarities = pairwise_similarities(self.similarity, sets)
        # Factors and determinants are not available in half precision, which cannot represent a small ridge either.
        pairs = similarities.to(torch.promote_types(similarities.dtype, torch.float32)) / self.ridge
        _check_definite(pairs.detach())
        return _BoundLogDeterminant(sets, pairs, torch.result_type(similarities, self.ridge))


@final
class _BoundLogDeterminant(BoundSetFunction):
    relaxed = True

    def __init__(self, sets: Sets, pairs: Tensor, dtype: torch.dtype) -> None:
        self.sets, self.pairs, self.dtype = sets, pairs, dtype

    def value(self, masks: Tensor) -> Tensor:
        return torch.linalg.slogdet(_one_plus(self._fractions(masks)[..., None] * self.pairs))[1].to(self.dtype)

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        x = self._fractions(masks)
        # The determinant is linear in x_i: proportional to 1 + x_i c, where c is the Schur complement of the item given
        # the others, and the gain is log(1 + c). With A = I + diag(x) K and any value of x_i,
        #     out = (A^-1)_ii = 1 / (1 + x_i c)    and    q = (K A^-1)_ii = c / (1 + x_i c) = (1 - out) / x_i.
        # `out` comes from the inverse, because 1 - x_i q loses all digits for a small ridge.
        inverse = torch.linalg.inv(_one_plus(x[..., None] * self.pairs))
        out = inverse.diagonal(dim1=2, dim2=3)
        q = (self.pairs * inverse.mT).sum(3)
        return take_items(torch.log1p((1 - x) * q) - out.log(), self.sets, coordinates).to(self.dtype)

    def _fractions(self, masks: Tensor) -> Tensor:
        # Gaussian masks leave [0, 1]. Below 0 the determinant may change its sign, above 1 it cannot.
        # Only the rows of K are scaled, because scaling both sides needs the root of x, with no derivative at 0.
        return pad_masks(masks, self.sets, self.pairs.dtype).clamp(min=0)


def _one_plus(matrix: Tensor) -> Tensor:
    return matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _check_definite(pairs: Tensor) -> None:
    # If I + K has a Cholesky factor, the determinants of all its principal submatrices are positive.
    _, failed = torch.linalg.cholesky_ex(_one_plus((pairs + pairs.mT) / 2))
    bad = failed.nonzero()[:, 0].tolist()
    if bad:
        raise DataError(
            f"the similarity is not positive semi-definite on set {bad[0]}, so determinants may be negative; "
            "use rbf() or inner products of finite features, or a larger ridge"
        )
