"""The multilinear extension of a set function: its value, gradient and Hessian-vector products."""

from __future__ import annotations

from torch import Tensor

from setgrad.errors import OptionError, ShapeError
from setgrad.functions._estimator import ExtensionEstimator
from setgrad.functions._set_function import AnySetFunction, as_set_function
from setgrad.sets import Sets


def multilinear_value(function: AnySetFunction, sets: Sets, psi: Tensor, *, estimator: ExtensionEstimator) -> Tensor:
    """Return the expected value of F if each item is in the subset with its probability, independently.

    Args:
        function: F, or any callable that `as_set_function` takes.
        sets: The sets.
        psi: Probability of each item, `(total,)`.
        estimator: How the expectation is computed: `Exact()`, `Bernoulli(m)`, `Gaussian(m)`, ...

    Returns:
        One value for each set, `(b,)`.

    Raises:
        ShapeError: If psi is not aligned with the items.
        OptionError: If psi is not between 0 and 1, or the estimator does not support the function.
    """
    return estimator.value(as_set_function(function).bind(sets), _check_psi(psi, sets))


def multilinear_gradient(
    function: AnySetFunction,
    sets: Sets,
    psi: Tensor,
    *,
    estimator: ExtensionEstimator,
    coordinates: Tensor | None = None,
) -> Tensor:
    """Return the gradient of the multilinear extension: the expected marginal gain of each item.

    Args:
        function: F, or any callable that `as_set_function` takes.
        sets: The sets.
        psi: Probability of each item, `(total,)`.
        estimator: How the expectation is computed: `Exact()`, `Bernoulli(m)`, `Gaussian(m)`, ...
        coordinates: Flat indices of the items to evaluate; None for all.

    Returns:
        The gradient, `(total,)` or `(len(coordinates),)`.

    Raises:
        ShapeError: If psi is not aligned with the items.
        OptionError: If psi is not between 0 and 1, or the estimator does not support the function.

    Examples:
        >>> import torch, setgrad as sg
        >>> F = sg.functions.Modular()
        >>> sets = sg.Sets.from_list([[[1.0], [2.0]], [[3.0]]])
        >>> multilinear_gradient(F, sets, torch.full((3,), 0.5), estimator=sg.functions.Exact()).tolist()
        [1.0, 2.0, 3.0]
    """
    return estimator.gradient(as_set_function(function).bind(sets), _check_psi(psi, sets), coordinates)


def multilinear_hessian_vector(
    function: AnySetFunction, sets: Sets, psi: Tensor, vector: Tensor, *, estimator: ExtensionEstimator
) -> Tensor:
    """Return the second derivative of the multilinear extension times a vector.

    Args:
        function: F, or any callable that `as_set_function` takes.
        sets: The sets.
        psi: Probability of each item, `(total,)`.
        vector: The vector, `(total,)`.
        estimator: How the expectation is computed: `Exact()`, `Bernoulli(m)`, `Gaussian(m)`, ...

    Returns:
        The product, `(total,)`.

    Raises:
        ShapeError: If psi is not aligned with the items, or the vector with psi.
        OptionError: If psi is not between 0 and 1, or the estimator does not support the function.
    """
    if vector.shape != psi.shape:
        raise ShapeError(f"the vector has shape {tuple(vector.shape)}, psi has {tuple(psi.shape)}")
    psi = _check_psi(psi, sets)
    return estimator.hessian_vector(as_set_function(function).bind(sets), psi, vector.to(psi.dtype))


def _check_psi(psi: Tensor, sets: Sets) -> Tensor:
    """Return psi in the type of the items."""
    if psi.shape != (sets.layout.total,):
        raise ShapeError(
            f"psi must have shape ({sets.layout.total},), one number for each item, not {tuple(psi.shape)}"
        )
    if not bool(((psi >= 0) & (psi <= 1)).all()):
        raise OptionError("psi must lie between 0 and 1 everywhere, without NaN")
    return psi.to(sets.dtype) if sets.dtype.is_floating_point else psi
