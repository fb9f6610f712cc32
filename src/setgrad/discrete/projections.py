"""Maps of theta that leave the solution as it is, and take out of a gradient what cannot change it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError, unknown_name

# How many roundings the mean of equal numbers may be off.
_ROUNDING = 8


class Projection(ABC):
    """A map P with argmax <P(theta), z> = argmax <theta, z> for all points z of the solver.

    `Identity` puts it in front of the solver. Going back, its Jacobian removes the directions of theta to which the
    solver is blind; without it they pile up in theta and slow adaptive optimisers down.
    """

    @abstractmethod
    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Project each instance; the last `dims` axes of theta make one."""


@final
@dataclass(frozen=True)
class MeanProjection(Projection):
    """Subtract the mean. Right where all points have the same sum: top-k, rankings, assignments, trees, tours.

    Example:
        >>> MeanProjection()(torch.tensor([1.0, 2.0, 6.0]))
        tensor([-2., -1.,  3.])
    """

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Centre each instance."""
        return theta - theta.mean(_axes(dims), keepdim=True)


@final
@dataclass(frozen=True)
class NormProjection(Projection):
    """Divide by the Euclidean norm. Right for every solver: no scale of theta changes the best point.

    An instance of zeros stays, and its gradient passes as it is.

    Example:
        >>> NormProjection()(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Put each instance on the unit sphere."""
        axes = _axes(dims)
        # Squares of very large and very small numbers leave the range of floats, so the largest entry goes first.
        # It is a constant for autograd, and rightly: the scale has no influence on the result.
        largest = theta.detach().abs().amax(axes, keepdim=True)
        scaled = theta / torch.where(largest > 0, largest, 1)
        norm = torch.linalg.vector_norm(scaled, dim=axes, keepdim=True)
        return scaled / torch.where(norm > 0, norm, 1)


@final
@dataclass(frozen=True)
class StdProjection(Projection):
    """Subtract the mean, then divide by the norm. Right where `MeanProjection` is.

    Example:
        >>> StdProjection()(torch.tensor([1.0, 3.0]))
        tensor([-0.7071,  0.7071])
    """

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Standardise each instance. One whose entries are all the same becomes zeros, and keeps the gradient."""
        axes, centred = _axes(dims), MeanProjection()(theta, dims)
        # What is left of equal entries is the rounding of their mean, which the norm would blow up.
        rounding = _ROUNDING * torch.finfo(theta.dtype).eps * theta.detach().abs().amax(axes, keepdim=True)
        equal = centred.detach().abs().amax(axes, keepdim=True) <= rounding
        return NormProjection()(torch.where(equal, centred - centred.detach(), centred), dims)


@final
@dataclass(frozen=True, eq=False)
class PlaneProjection(Projection):
    """Take out the direction of a normal. Right where <normal, z> is the same for all points z.

    Args:
        normal: Of the shape of an instance, and of any length but 0.

    Example:
        >>> PlaneProjection(torch.tensor([0.0, 2.0]))(torch.tensor([3.0, 5.0]))
        tensor([3., 0.])
    """

    normal: Tensor

    def __post_init__(self) -> None:
        if not self.normal.is_floating_point() or not bool(self.normal.isfinite().all()) or not bool(self.normal.any()):
            raise OptionError("the normal of a plane needs finite floats that are not all 0")

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Subtract the part of each instance that lies along the normal."""
        if self.normal.ndim != dims or self.normal.shape != theta.shape[theta.ndim - dims :]:
            raise ShapeError(
                f"the normal has shape {tuple(self.normal.shape)} and an instance "
                f"{tuple(theta.shape[theta.ndim - dims :])}; both must be the same"
            )
        unit = NormProjection()(self.normal.to(theta), dims)
        return theta - (theta * unit).sum(_axes(dims), keepdim=True) * unit


_NAMED: dict[str, Projection] = {"mean": MeanProjection(), "norm": NormProjection(), "std": StdProjection()}


def resolve_projection(projection: Projection | str | None) -> Projection | None:
    """Turn a name into its projection; objects and None pass.

    Example:
        >>> resolve_projection("std")
        StdProjection()
    """
    if isinstance(projection, str):
        if projection == "plane":
            raise OptionError('a plane needs its normal: use PlaneProjection(normal) instead of "plane"')
        if projection not in _NAMED:
            raise unknown_name("projection", projection, (*_NAMED, "a Projection object"))
        return _NAMED[projection]
    return projection


def _axes(dims: int) -> tuple[int, ...]:
    return tuple(range(-dims, 0))
