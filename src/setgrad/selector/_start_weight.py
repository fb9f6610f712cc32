"""How much a choice item by item trusts the items that it has chosen itself.

F is trained at parts of the true subset. A choice asks it for the gains at items that it chose itself, of which some
may be wrong. Where many are, gains that stay near those at the start choose better. So the gains of a choice are a mean
of those at the subset so far and of those at its start, weighted as is best on the validation sets.
"""

from __future__ import annotations

from torch import Tensor

from setgrad.functions import BoundSetFunction
from setgrad.functions.average import BoundAverage
from setgrad.functions.modular import BoundModular
from setgrad.selector.metrics import is_clear

# The weights of the gains at the start that are tried: F alone, the mean of both, the start alone.
START_WEIGHTS = (0.0, 0.5, 1.0)
# Standard errors by which choices on the validation sets must be better than those by F alone, and of how many sets.
_CLEAR, _FEWEST_SETS = 1.0, 30


def towards_start(bound: BoundSetFunction, first: Tensor, weight: float) -> BoundSetFunction:
    """Return the function whose gains a choice follows.

    Args:
        bound: F, bound to the sets.
        first: Its gains at the start of the choice, `(total,)`.
        weight: One of `START_WEIGHTS`.
    """
    if weight == START_WEIGHTS[0]:
        return bound
    start = BoundModular(bound.sets, first)
    return start if weight == START_WEIGHTS[2] else BoundAverage([bound, start])


def best_start_weight(scores: Tensor) -> float:
    """Return the weight whose choices are clearly better than those by F alone, or 0.

    Args:
        scores: The score of each validation set with each weight, `(b, len(START_WEIGHTS))`.

    Examples:
        >>> import torch
        >>> best_start_weight(torch.tensor([[0.2, 0.5, 0.4], [0.3, 0.5, 0.4]]).repeat(20, 1))
        0.5
        >>> best_start_weight(torch.tensor([[0.2, 0.9, 0.4], [0.9, 0.2, 0.4]]).repeat(20, 1))
        0.0
    """
    gains = (scores - scores[:, :1]).double()
    best = int(gains.mean(0).argmax())
    is_better = len(scores) >= _FEWEST_SETS and is_clear(gains[:, best], _CLEAR)
    return START_WEIGHTS[best] if is_better else START_WEIGHTS[0]
