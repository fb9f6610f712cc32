"""Projections of theta that do not change the solution and remove useless directions from its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError

# The mean of equal numbers may be off by this many roundings.
_ROUNDING = 8


class Projection(ABC):
    """A map P with `argmax <P(theta), z> = argmax <theta, z>` for all points z of the solver.

    `Identity` applies it before the solver. In the backward pass its Jacobian removes the directions of theta that
    cannot change the solution; without it they accumulate in theta and slow adaptive optimisers down.
    Sahoo et al., 2023, arXiv:2205.15213.
    """

    @abstractmethod
    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Return the projection of each instance; the last `dims` axes of theta form one instance."""


@final
@dataclass(frozen=True)
class MeanProjection(Projection):
    """Subtract the mean. For solvers whose points all have the same sum: top-k, rankings, assignments, trees, tours.

    Examples:
        >>> MeanProjection()(torch.tensor([1.0, 2.0, 6.0]))
        tensor([-2., -1.,  3.])
    """

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Return each instance minus its mean."""
        return theta - theta.mean(_axes(dims), keepdim=True)


@final
@dataclass(frozen=True)
class NormProjection(Projection):
    """Divide by the Euclidean norm. For every solver: the scale of theta does not change the best point.

    An instance of zeros stays as it is, and its gradient passes unchanged.

    Examples:
        >>> NormProjection()(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Return each instance divided by its norm."""
        axes = _axes(dims)
        # Squares of very large or small numbers overflow or underflow, so divide by the largest entry first. It can be
        # a constant for autograd, because the scale does not change the result.
        largest = theta.detach().abs().amax(axes, keepdim=True)
        scaled = theta / torch.where(largest > 0, largest, 1)
        norm = torch.linalg.vector_norm(scaled, dim=axes, keepdim=True)
        return scaled / torch.where(norm > 0, norm, 1)


@final
@dataclass(frozen=True)
class StdProjection(Projection):
    """Subtract the mean, then divide by the norm. For the same solvers as `MeanProjection`.

    An instance whose entries are all equal becomes zeros, and its gradient only loses its mean.

    Examples:
        >>> StdProjection()(torch.tensor([1.0, 3.0]))
        tensor([-0.7071,  0.7071])
    """

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Return each instance, centred and divided by its norm."""
        axes, centred = _axes(dims), MeanProjection()(theta, dims)
        # For equal entries only the rounding error of their mean is left, which the norm would amplify.
        rounding = _ROUNDING * torch.finfo(theta.dtype).eps * theta.detach().abs().amax(axes, keepdim=True)
        equal = centred.detach().abs().amax(axes, keepdim=True) <= rounding
        return NormProjection()(torch.where(equal, centred - centred.detach(), centred), dims)


@final
@dataclass(frozen=True, eq=False)
class PlaneProjection(Projection):
    """Remove the direction of a normal vector. For solvers where `<normal, z>` is the same for all points z.

    Args:
        normal: In the shape of an instance, not 0.

    Raises:
        OptionError: If the normal is 0, not finite, or not of floats.

    Examples:
        >>> PlaneProjection(torch.tensor([0.0, 2.0]))(torch.tensor([3.0, 5.0]))
        tensor([3., 0.])
    """

    normal: Tensor

    def __post_init__(self) -> None:
        if not self.normal.is_floating_point() or not bool(self.normal.isfinite().all()) or not bool(self.normal.any()):
            raise OptionError("the normal of a plane needs finite floats that are not all 0")

    def __call__(self, theta: Tensor, dims: int = 1) -> Tensor:
        """Return each instance without its component along the normal.

        Raises:
            ShapeError: If the normal does not have the shape of an instance.
        """
        if self.normal.ndim != dims or self.normal.shape != theta.shape[theta.ndim - dims :]:
            raise ShapeError(
                f"the normal has shape {tuple(self.normal.shape)} and an instance "
                f"{tuple(theta.shape[theta.ndim - dims :])}; both must be the same"
            )
        unit = NormProjection()(self.normal.to(theta), dims)
        return theta - (theta * unit).sum(_axes(dims), keepdim=True) * unit


def _axes(dims: int) -> tuple[int, ...]:
    return tuple(range(-dims, 0))
