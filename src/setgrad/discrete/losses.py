"""Losses and metrics for discrete solutions, with one number for each instance; take the mean over samples yourself.

Targets broadcast against solutions from the right, so an axis of samples in front needs no repetition.
"""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.errors import DataError, OptionError, ShapeError


def hamming_loss(z: Tensor, target: Tensor, *, dims: int = 1) -> Tensor:
    """Return the number of entries in which z and the target of zeros and ones differ.

    The loss is linear in z, so its gradient is 1 where the target is 0 and -1 where it is 1, whatever z is. Estimators
    that pass gradients unchanged, such as `Identity`, then keep moving where z is already right: use
    `(z - target).square()` with them, which has the same value and no gradient at the target.

    Args:
        z: Solutions of zeros and ones, (*batch, *instance); gradients pass.
        target: The right solutions.
        dims: The number of axes at the end that form one instance.

    Raises:
        ShapeError: If the shapes do not fit.

    Examples:
        >>> hamming_loss(torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), torch.tensor([0.0, 0.0, 1.0]))
        tensor([1., 0.])
    """
    _check_shapes("hamming_loss", z, target, dims)
    z = z if z.is_floating_point() else z.to(torch.get_default_dtype())
    target = target.to(z.dtype)
    return _total(z * (1 - target) + (1 - z) * target, dims)


def recall_at_k(ranks: Tensor, relevant: Tensor, *, k: int) -> Tensor:
    """Return 1 where a relevant item is among the first k, else 0: the retrieval metric r@k. It has no gradient.

    Args:
        ranks: Rank of each item, 1 for the first, (*batch, n), as from `Ranking`.
        relevant: A mask of the relevant items, of bool or zeros and ones.
        k: The length of the list.

    Raises:
        ShapeError: If the shapes do not fit.
        OptionError: If k is below 1.

    Examples:
        >>> recall_at_k(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), k=1)
        tensor(0.)
    """
    _check_ranks("recall_at_k", ranks, relevant, k)
    return (relevant.bool() & (ranks <= k)).any(-1).to(ranks.dtype)


def recall_loss(ranks: Tensor, relevant: Tensor, *, k: int) -> Tensor:
    """Return how far relevant items are from the first k: the mean over them of min(items in front, k) / k.

    "In front" counts irrelevant items only: the rank among all items minus the rank among the relevant ones. For one
    item this is the mean of the losses [in front >= 1], ..., [in front >= k], which have no gradient by themselves.

    Args:
        ranks: Rank of each item, 1 for the first, (*batch, n); gradients pass.
        relevant: A mask of the relevant items. A query without any has loss 0.
        k: Items further back have no gradient.

    Raises:
        ShapeError: If the shapes do not fit.
        OptionError: If k is below 1.

    Examples:
        >>> recall_loss(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), k=2)
        tensor(0.5000)
    """
    _check_ranks("recall_loss", ranks, relevant, k)
    return _mean_relevant(_in_front(ranks, relevant).clamp(max=k) / k, relevant)


def log_rank_loss(ranks: Tensor, relevant: Tensor) -> Tensor:
    """Return the mean over relevant items of log(1 + irrelevant items in front).

    Arguments and errors are those of `loglog_rank_loss`.

    Examples:
        >>> log_rank_loss(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]))
        tensor(0.6931)
    """
    _check_ranks("log_rank_loss", ranks, relevant, 1)
    return _mean_relevant(_in_front(ranks, relevant).log1p(), relevant)


def loglog_rank_loss(ranks: Tensor, relevant: Tensor) -> Tensor:
    """Return the mean over relevant items of log(1 + log(1 + irrelevant items in front)).

    It puts most weight on items that are nearly at the front, and is the loss of published retrieval experiments with
    ranking solvers. The ranks among the relevant items are constants; gradients pass to the ranks among all items.

    Args:
        ranks: Rank of each item, 1 for the first, (*batch, n); gradients pass.
        relevant: A mask of the relevant items. A query without any has loss 0.

    Raises:
        ShapeError: If the shapes do not fit.

    Examples:
        >>> loglog_rank_loss(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]))
        tensor(0.5266)
    """
    _check_ranks("loglog_rank_loss", ranks, relevant, 1)
    return _mean_relevant(_in_front(ranks, relevant).log1p().log1p(), relevant)


def regret(z: Tensor, cost: Tensor, *, solver: CombinatorialSolver, best: Tensor | None = None) -> Tensor:
    """Return how much worse solutions are than the best ones, in true costs; 0 or more.

    Args:
        z: Solutions, (*batch, *instance); gradients pass.
        cost: True costs, or true values if the sense of the solver is "max".
        solver: Defines the instances and the sense.
        best: The best solutions; computed by one call of the solver if None.

    Returns:
        For each instance `<cost, z - best>`, negated for "max". NaN where the solver has no best solution.

    Raises:
        ShapeError: If the shapes do not fit.

    Examples:
        >>> from setgrad.discrete import TopK
        >>> regret(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 5.0, 3.0]), solver=TopK(1))
        tensor(4.)
    """
    gap, _, unknown = _gap(z, cost, solver, best)
    return torch.where(unknown, torch.nan, gap)


def normalized_regret(z: Tensor, cost: Tensor, *, solver: CombinatorialSolver, best: Tensor | None = None) -> Tensor:
    """Return the total regret of a batch divided by the total best value: sum of regret / sum of |best value|.

    Instances without a best solution are left out. The arguments are those of `regret`.

    Raises:
        ShapeError: If the shapes do not fit.
        DataError: If the best values sum to 0.

    Examples:
        >>> from setgrad.discrete import TopK
        >>> normalized_regret(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 5.0, 3.0]), solver=TopK(1))
        tensor(0.8000)
    """
    gap, value, unknown = _gap(z, cost, solver, best)
    unit = torch.where(unknown, 0, value.abs()).sum()
    if not bool(unit > 0):
        raise DataError(
            "the best values of the batch sum to 0 (all of them are 0, or no instance has a best answer), so "
            "regret cannot be divided by them; use regret(), or a larger batch"
        )
    return torch.where(unknown, 0, gap).sum() / unit


def _gap(z: Tensor, cost: Tensor, solver: CombinatorialSolver, best: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the regret, the best values, and a mask of the instances that have none."""
    _check_shapes("regret", z, cost, solver.dims)
    if best is None:
        result = solver.run(cost)
        best, unknown = result.value, ~result.has_answer
    else:
        _check_shapes("regret", z, best, solver.dims)
        unknown = torch.zeros((), dtype=torch.bool, device=z.device)
    value = _total(cost * best, solver.dims)
    gap = _total(cost * z, solver.dims) - value
    gap = gap if solver.sense == "min" else -gap
    return gap, value.expand_as(gap), unknown


def _in_front(ranks: Tensor, relevant: Tensor) -> Tensor:
    """Return the rank among all items minus the rank among the relevant ones, for each relevant item."""
    with torch.no_grad():
        order = ranks.argsort(dim=-1, stable=True)
        among = relevant.expand_as(ranks).long().gather(-1, order).cumsum(-1)
        within = torch.empty_like(ranks).scatter_(-1, order, among.to(ranks.dtype))
    # Ranks that are not whole, or equal, could give a negative number.
    return torch.where(relevant.bool(), (ranks - within).clamp(min=0), 0)


def _mean_relevant(values: Tensor, relevant: Tensor) -> Tensor:
    return torch.where(relevant.bool(), values, 0).sum(-1) / relevant.bool().sum(-1).clamp(min=1)


def _total(values: Tensor, dims: int) -> Tensor:
    return values.flatten(values.ndim - dims).sum(-1) if dims else values


def _check_ranks(name: str, ranks: Tensor, relevant: Tensor, k: int) -> None:
    _check_shapes(name, ranks, relevant, 1)
    if k < 1:
        raise OptionError(f"{name} needs k of 1 or more, got {k}")


def _check_shapes(name: str, z: Tensor, other: Tensor, dims: int) -> None:
    """Raise a ShapeError if the axes of instances differ; broadcasting would hide a missing axis."""
    same = z.ndim >= dims and other.ndim >= dims and z.shape[z.ndim - dims :] == other.shape[other.ndim - dims :]
    front = zip(reversed(z.shape[: z.ndim - dims]), reversed(other.shape[: other.ndim - dims]), strict=False)
    if not same or other.ndim > z.ndim or any(own != others and others != 1 for own, others in front):
        raise ShapeError(
            f"{name} got answers of shape {tuple(z.shape)} and targets of shape {tuple(other.shape)}; the last {dims} "
            "axes must be the same, and the others of the targets must broadcast to those of the answers"
        )
