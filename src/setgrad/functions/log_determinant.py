"""Log-determinant: the volume that the chosen items span, as in determinantal point processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad.errors import DataError, OptionError
from setgrad.functions._padding import pad_masks, take_items
from setgrad.functions._protocol import BoundSetFunction, SetFunction
from setgrad.functions.similarity import Similarity, kernel
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class LogDeterminant(SetFunction):
    """F(S) = log det(I + K_S / ridge), with K_S the similarities of the items of S: monotone and submodular.

    The similarity must be positive semi-definite; the default is `rbf()`. Fractional masks x give
    log det(I + diag(x) K / ridge), numbers below 0 counting as 0.

    Example:
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
        """Compare all pairs once, and make sure that every determinant is positive."""
        narrow = kernel(self.similarity, sets)
        # There are no factors and determinants of matrices in half precision, nor room for a small ridge.
        pairs = narrow.to(torch.promote_types(narrow.dtype, torch.float32)) / self.ridge
        _refuse_indefinite(pairs.detach())
        return _BoundLogDeterminant(sets, pairs, torch.result_type(narrow, self.ridge))


@final
class _BoundLogDeterminant(BoundSetFunction):
    relaxed = True

    def __init__(self, sets: Sets, pairs: Tensor, dtype: torch.dtype) -> None:
        self.sets, self.pairs, self.dtype = sets, pairs, dtype

    def value(self, masks: Tensor) -> Tensor:
        return torch.linalg.slogdet(_one_plus(self._fractions(masks)[..., None] * self.pairs))[1].to(self.dtype)

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        x = self._fractions(masks)
        # The determinant is linear in x_i: proportional to 1 + x_i c, with c the Schur complement of the item given
        # the others, and the gain is log(1 + c). With A = I + diag(x) K, whatever x_i is now,
        #     out = (A^-1)_ii = 1 / (1 + x_i c)    and    q = (K A^-1)_ii = c / (1 + x_i c) = (1 - out) / x_i.
        # `out` is read off the inverse: as 1 - x_i q it would lose all digits for a small ridge.
        inverse = torch.linalg.inv(_one_plus(x[..., None] * self.pairs))
        out = inverse.diagonal(dim1=2, dim2=3)
        q = (self.pairs * inverse.mT).sum(3)
        return take_items(torch.log1p((1 - x) * q) - out.log(), self.sets, coordinates).to(self.dtype)

    def _fractions(self, masks: Tensor) -> Tensor:
        # Gaussian masks leave [0, 1]; below 0 the determinant may change its sign, above 1 all is well.
        # The rows of K are scaled, not both sides: the root of x has no derivative at 0.
        return pad_masks(masks, self.sets, self.pairs.dtype).clamp(min=0)


def _one_plus(matrix: Tensor) -> Tensor:
    return matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _refuse_indefinite(pairs: Tensor) -> None:
    # If I + K has a Cholesky factor, the determinants of all its principal parts are positive.
    _, failed = torch.linalg.cholesky_ex(_one_plus((pairs + pairs.mT) / 2))
    bad = failed.nonzero()[:, 0].tolist()
    if bad:
        raise DataError(
            f"the similarity is not positive semi-definite on set {bad[0]}, so determinants may be negative; "
            "use rbf() or inner products of finite features, or a larger ridge"
        )
