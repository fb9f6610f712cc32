"""Losses and measures of discrete answers. All give one number for each instance, so the mean over samples is yours.

Targets broadcast against answers from the right: an axis of samples in front needs no repetition.
"""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad._status import has_answer
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.errors import DataError, OptionError, ShapeError


def hamming(z: Tensor, target: Tensor, *, dims: int = 1) -> Tensor:
    """Number of entries in which z and the target of zeros and ones differ.

    It is linear in z, so its gradient is 1 where the target is 0 and -1 where it is 1, wherever z is. An estimator that
    passes gradients on as they come, such as `Identity`, is pushed on where z is right already: there take
    `(z - target).square()`, which has the same value and no gradient at the target.

    Args:
        z: Answers of zeros and ones, (*batch, *instance); gradients pass.
        target: The right ones.
        dims: How many axes at the end make one instance.

    Example:
        >>> hamming(torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), torch.tensor([0.0, 0.0, 1.0]))
        tensor([1., 0.])
    """
    _check_shapes("hamming", z, target, dims)
    z = z if z.is_floating_point() else z.to(torch.get_default_dtype())
    target = target.to(z.dtype)
    return _total(z * (1 - target) + (1 - z) * target, dims)


def recall_at(ranks: Tensor, relevant: Tensor, *, k: int) -> Tensor:
    """1 where a relevant item is among the first k, else 0: the measure r@k of retrieval. It has no gradient.

    Args:
        ranks: Rank of each item, 1 for the first, (*batch, n): what `Ranking` gives.
        relevant: Which items are relevant, of bool or zeros and ones.
        k: Length of the list that a user looks at.

    Example:
        >>> recall_at(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), k=1)
        tensor(0.)
    """
    _check_ranks("recall_at", ranks, relevant, k)
    return (relevant.bool() & (ranks <= k)).any(-1).to(ranks.dtype)


def recall_loss(ranks: Tensor, relevant: Tensor, *, k: int) -> Tensor:
    """How far relevant items are from the first k, at most 1: the mean over them of min(items in front, k) / k.

    "In front" counts irrelevant items alone: the rank among all minus the rank among the relevant. For one item this
    is the mean of the losses [in front >= 1], ..., [in front >= k], each of which has no gradient.

    Args:
        ranks: Rank of each item, 1 for the first, (*batch, n); gradients pass.
        relevant: Which items are relevant. A query without any has loss 0.
        k: Items further back are given up: they have no gradient.

    Example:
        >>> recall_loss(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), k=2)
        tensor(0.5000)
    """
    _check_ranks("recall_loss", ranks, relevant, k)
    return _mean_relevant(_in_front(ranks, relevant).clamp(max=k) / k, relevant)


def log_rank_loss(ranks: Tensor, relevant: Tensor) -> Tensor:
    """Mean over relevant items of log(1 + irrelevant items in front). See `loglog_rank_loss`.

    Example:
        >>> log_rank_loss(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]))
        tensor(0.6931)
    """
    _check_ranks("log_rank_loss", ranks, relevant, 1)
    return _mean_relevant(_in_front(ranks, relevant).log1p(), relevant)


def loglog_rank_loss(ranks: Tensor, relevant: Tensor) -> Tensor:
    """Mean over relevant items of log(1 + log(1 + irrelevant items in front)).

    The loss of the retrieval experiments of papers on ranking through a solver: it cares most about items that are
    nearly at the front. The ranks among the relevant are taken as they are; gradients pass to the ranks among all.

    Args:
        ranks: Rank of each item, 1 for the first, (*batch, n); gradients pass.
        relevant: Which items are relevant. A query without any has loss 0.

    Example:
        >>> loglog_rank_loss(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]))
        tensor(0.5266)
    """
    _check_ranks("loglog_rank_loss", ranks, relevant, 1)
    return _mean_relevant(_in_front(ranks, relevant).log1p().log1p(), relevant)


def regret(z: Tensor, cost: Tensor, *, solver: CombinatorialSolver, best: Tensor | None = None) -> Tensor:
    """How much worse answers are than the best ones, in true costs; 0 or more.

    Args:
        z: Answers, (*batch, *instance); gradients pass.
        cost: True costs, or true values if the sense of the solver is "max".
        solver: Says what an instance is, and which sense is good.
        best: The best answers; found by one call of the solver if None.

    Returns:
        For each instance <cost, z - best>, with the sign turned for "max". NaN where the solver found no best answer.

    Example:
        >>> from setgrad.discrete import TopK
        >>> regret(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 5.0, 3.0]), solver=TopK(1))
        tensor(4.)
    """
    gap, _, unknown = _gap(z, cost, solver, best)
    return torch.where(unknown, torch.nan, gap)


def normalized_regret(z: Tensor, cost: Tensor, *, solver: CombinatorialSolver, best: Tensor | None = None) -> Tensor:
    """All regret of a batch, in units of all the best can give: sum of regret / sum of |best value|.

    Instances without a best answer are left out. Arguments are those of `regret`. Where the best values sum to 0 there
    is no unit to measure in, and the batch is refused.

    Example:
        >>> from setgrad.discrete import TopK
        >>> normalized_regret(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 5.0, 3.0]), solver=TopK(1))
        tensor(0.8000)
    """
    gap, value, unknown = _gap(z, cost, solver, best)
    unit = torch.where(unknown, 0, value.abs()).sum()
    if not bool(unit > 0):
        raise DataError(
            "the best values of the batch sum to 0 (all of them are 0, or no instance has a best answer), so that "
            "there is no unit to measure regret in; use regret(), or a larger batch"
        )
    return torch.where(unknown, 0, gap).sum() / unit


def _gap(z: Tensor, cost: Tensor, solver: CombinatorialSolver, best: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Regret, best values, and which instances have none."""
    _check_shapes("regret", z, cost, solver.dims)
    if best is None:
        solved = solver.run(cost)
        best, unknown = solved.value, ~has_answer(solved.status)
    else:
        _check_shapes("regret", z, best, solver.dims)
        unknown = torch.zeros((), dtype=torch.bool, device=z.device)
    value = _total(cost * best, solver.dims)
    gap = _total(cost * z, solver.dims) - value
    gap = gap if solver.sense == "min" else -gap
    return gap, value.expand_as(gap), unknown


def _in_front(ranks: Tensor, relevant: Tensor) -> Tensor:
    """Rank among all minus rank among the relevant, for each relevant item."""
    with torch.no_grad():
        order = ranks.argsort(dim=-1, stable=True)
        among = relevant.expand_as(ranks).long().gather(-1, order).cumsum(-1)
        within = torch.empty_like(ranks).scatter_(-1, order, among.to(ranks.dtype))
    # Ranks that are not whole, or equal, could count less than none.
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
    """Axes of instances must agree, so that a forgotten axis is not broadcast away."""
    same = z.ndim >= dims and other.ndim >= dims and z.shape[z.ndim - dims :] == other.shape[other.ndim - dims :]
    front = zip(reversed(z.shape[: z.ndim - dims]), reversed(other.shape[: other.ndim - dims]), strict=False)
    if not same or other.ndim > z.ndim or any(mine != theirs and theirs != 1 for mine, theirs in front):
        raise ShapeError(
            f"{name} got answers of shape {tuple(z.shape)} and targets of shape {tuple(other.shape)}; the last {dims} "
            "axes must be the same, and the others of the targets must broadcast to those of the answers"
        )
