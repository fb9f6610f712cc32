"""A promise about recall: a threshold under which few enough chosen items fall, by conformal risk control.

For a set with chosen items S let L(t) be the share of S whose logit is below t. It grows with t and is between 0 and 1.
Over n calibration sets let t be the largest threshold with (sum of L(t) + 1) / (n + 1) <= 1 - recall. If these sets and
a new one are exchangeable, E L(t) <= 1 - recall for the new set (Angelopoulos et al., 2024, arXiv:2208.02814, theorem
1): the items with a logit of at least t hold, on average, at least `recall` of what would be chosen. It is at most
2 / (n + 1) too much.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from numbers import Real
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, parameter
from setgrad.sets import Sets, segment_sum

# Names of the tensors in a saved model.
_LOGITS, _SHARES, _COUNT = "recall.logits", "recall.shares", "recall.count"


@final
@dataclass(frozen=True, eq=False)
class RecallCalibration:
    """The logits of chosen items of calibration sets.

    Attributes:
        logits: Logits of the chosen items, in ascending order.
        shares: The share of each of them in its subset.
        count: Number of the sets, with those of which nothing was chosen.
    """

    logits: Tensor
    shares: Tensor
    count: int

    @staticmethod
    def of(logits: Tensor, subsets: Sets) -> RecallCalibration:
        """Return the calibration for logits `(total,)` and the subsets that were chosen."""
        chosen = subsets.values
        sizes = segment_sum(chosen.double(), subsets)[subsets.layout.ids]
        values, order = logits.double()[chosen].sort()
        return RecallCalibration(values.cpu(), (1 / sizes[chosen])[order].cpu(), len(subsets))

    def tensors(self) -> dict[str, Tensor]:
        """Return what `pop` takes, under the names of a saved model."""
        names = (_LOGITS, _SHARES, _COUNT)
        return dict(zip(names, (self.logits, self.shares, torch.tensor(self.count)), strict=True))

    @staticmethod
    def pop(tensors: dict[str, Tensor]) -> RecallCalibration | None:
        """Take the calibration out of the tensors of a saved model; None if it has none.

        Raises:
            KeyError: If it is not complete.
            ValueError: If it is damaged.
        """
        if _COUNT not in tensors:
            return None
        logits, shares, count = (tensors.pop(name) for name in (_LOGITS, _SHARES, _COUNT))
        is_sorted = logits.dim() == 1 and bool((logits[1:] >= logits[:-1]).all()) and not bool(logits.isnan().any())
        if not is_sorted or {logits.dtype, shares.dtype} != {torch.float64} or shares.shape != logits.shape:
            raise ValueError(f"{_LOGITS} and {_SHARES} are not one number each for chosen items, in order")
        if (
            count.dim()
            or count.dtype != torch.int64
            or int(count) < 0
            or not bool(((shares >= 0) & (shares <= 1)).all())
        ):
            raise ValueError(f"{_COUNT} or {_SHARES} are not of a calibration")
        return RecallCalibration(logits, shares, int(count))

    def threshold(self, recall: float) -> float:
        """Return the largest threshold that keeps the promise; minus infinity if only all items together do.

        It is infinity if few enough sets have a chosen item: choosing nothing then keeps the promise too.

        Raises:
            OptionError: If `recall` is not between 0 and 1.

        Examples:
            >>> subsets = Sets.from_list([[True, False]] * 9)
            >>> RecallCalibration.of(torch.arange(18.0), subsets).threshold(0.8)
            2.0
        """
        name = parameter("recall")
        if not isinstance(recall, Real) or isinstance(recall, bool) or not 0 < recall < 1:
            raise OptionError(f"{name} must be a number above 0 and below 1, not {recall!r}")
        # The loss just at each logit, and above all of them: the shares of all smaller logits.
        levels = torch.cat([self.logits, torch.tensor([torch.inf], dtype=torch.float64)])
        below = torch.searchsorted(self.logits, levels)
        lost = torch.cat([torch.zeros(1, dtype=torch.float64), self.shares.cumsum(0)])[below]
        kept = (lost + 1) / (self.count + 1) <= 1 - recall + 1e-12
        if not bool(kept.any()):
            needed = math.ceil(recall / (1 - recall) - 1e-9)
            warnings.warn(
                f"{self.count} calibration sets are too few to promise recall={recall:g}, so every item is chosen; "
                f"give calibrate_recall at least {needed} sets",
                RuntimeWarning,
                stacklevel=4,
            )
            return -torch.inf
        return float(levels[kept].max())


def recall_level(calibration: RecallCalibration | None, recall: float, *, is_known: bool) -> float:
    """Return the logit from which on items are chosen for this recall.

    Args:
        calibration: The calibration of a selector, if it has one.
        recall: The recall.
        is_known: Whether something is known about the subsets.

    Raises:
        OptionError: If there is no calibration for this, or `recall` is not between 0 and 1.
    """
    if is_known:
        raise OptionError(
            f"{parameter('recall')} is calibrated for sets of which nothing is known; leave out {parameter('given')} "
            f"and {parameter('excluded')}"
        )
    if calibration is None:
        raise OptionError(
            f"{parameter('recall')} needs a calibration, which models of earlier versions do not have; call "
            "calibrate_recall(sets, subsets) first"
        )
    return calibration.threshold(recall)
