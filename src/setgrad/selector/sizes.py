"""Rules that decide how many items to choose, fitted to a validation split.

Every rule turns the logits of the items into a size for each set. `calibrate` fits all of them and keeps the one with
the best Jaccard score, with sizes raised to the smallest that was seen, as in prediction.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import FileFormatError, OptionError, ShapeError
from setgrad.selector.metrics import jaccard, pick_top
from setgrad.sets import Sets, segment_order, segment_rank, segment_sum

# Candidate thresholds on the validation logits.
_CANDIDATES = 256


class SizeRule(abc.ABC):
    """Decides from logits `(total,)` how many items of each set to choose."""

    @abc.abstractmethod
    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Number of items to choose from each set, `(b,)`."""

    @final
    def sizes_from(self, least: int, logits: Tensor, sets: Sets) -> Tensor:
        """The sizes `(b,)`, but never fewer than `least` where a set has so many."""
        return self.sizes(logits, sets).clamp(min=least).minimum(sets.lengths)

    @classmethod
    @abc.abstractmethod
    def fit(cls, logits: Tensor, subsets: Sets, least: int = 0) -> SizeRule:
        """Fit the rule to logits and the right subsets, for sizes that are raised to `least`."""


@final
@dataclass(frozen=True)
class Threshold(SizeRule):
    """Choose every item whose logit exceeds one cut for all sets."""

    cut: float

    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Count the items above the cut."""
        return segment_sum((logits > self.cut).long(), sets)

    @classmethod
    def fit(cls, logits: Tensor, subsets: Sets, least: int = 0) -> Threshold:
        """Try cuts half-way between observed logits and keep the best."""
        levels = logits.double().unique()
        middles = (levels[1:] + levels[:-1]) / 2 if len(levels) > 1 else levels - 1
        # Logits of unchosen items are many and uninteresting: spread the candidates over the upper part.
        count = int(subsets.values.sum())
        upper = middles[max(0, len(middles) - 4 * max(count, 1)) :]
        picks = torch.linspace(0, len(upper) - 1, min(_CANDIDATES, len(upper)), device=upper.device).round().long()
        cuts = upper[picks]
        sure = segment_rank(logits, subsets) < least
        scores = torch.stack([jaccard(subsets.with_values(sure | (logits > cut)), subsets).mean() for cut in cuts])
        # In the middle of the best cuts, where a new set has most room on both sides.
        best = cuts[scores == scores.max()]
        return cls(float(best[len(best) // 2]))


@final
@dataclass(frozen=True)
class LinearSize(SizeRule):
    """A linear model of the size: a constant, the size of the set and the expected size under psi."""

    constant: float
    per_item: float
    per_expected: float

    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Evaluate the model and round to the nearest possible size."""
        expected = segment_sum(torch.sigmoid(logits.double()), sets)
        size = self.constant + self.per_item * sets.lengths + self.per_expected * expected
        return size.round().long().clamp(min=0).minimum(sets.lengths)

    @classmethod
    def fit(cls, logits: Tensor, subsets: Sets, least: int = 0) -> LinearSize:
        """Least squares; where the columns depend on each other, the smallest solution."""
        expected = segment_sum(torch.sigmoid(logits.double()), subsets)
        columns = torch.stack([torch.ones_like(expected), subsets.lengths.double(), expected], 1).cpu()
        right = segment_sum(subsets.values.double(), subsets).cpu()
        solution = torch.linalg.pinv(columns, rtol=1e-9) @ right
        return cls(*solution.tolist())


def _running_sums(x: Tensor, sets: Sets) -> Tensor:
    """Sums of the items of each set up to each of them, by windows that double.

    One running sum over all sets, less what came before, would round small numbers as the sums of other sets are large.
    """
    positions, shift = sets.layout.positions, 1
    while shift < sets.layout.longest:
        before = torch.nn.functional.pad(x[:-shift], (shift, 0))
        x = x + torch.where(positions >= shift, before, 0)
        shift *= 2
    return x


@final
@dataclass(frozen=True)
class ExpectedJaccard(SizeRule):
    """The size with the best expected overlap under calibrated probabilities sigmoid(slope * logit + shift).

    For the k best items the score is (sum of their probabilities) / (k + sum of the others' probabilities).
    """

    slope: float
    shift: float

    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Score every k by running sums over the sorted items and take the best."""
        layout = sets.layout
        p = torch.sigmoid(self.slope * logits.double() + self.shift)
        order = segment_order(logits, sets)
        inside = _running_sums(p[order], sets)
        total = segment_sum(p, sets)
        overlap = inside / (layout.positions + 1 + total[layout.ids] - inside)
        best = segment_rank(overlap, sets) == 0
        size = torch.zeros(len(sets), dtype=torch.long, device=logits.device)
        return size.index_add(0, layout.ids, torch.where(best, layout.positions + 1, 0))

    @classmethod
    def fit(cls, logits: Tensor, subsets: Sets, least: int = 0) -> ExpectedJaccard:
        """Platt scaling: logistic regression of the choice on the logit, by Newton's method."""
        x, y = logits.double(), subsets.values.double()
        design = torch.stack([x, torch.ones_like(x)], 1)
        ridge = 1e-3 * torch.eye(2, dtype=x.dtype, device=x.device)
        prior = torch.tensor([1.0, 0.0], dtype=x.dtype, device=x.device)
        weights = prior
        for _ in range(50):
            p = torch.sigmoid(design @ weights)
            gradient = design.T @ (p - y) + ridge @ (weights - prior)
            hessian = design.T @ (design * (p * (1 - p))[:, None]) + ridge
            step = torch.linalg.solve(hessian, gradient)
            # Far from the optimum a full step can overshoot into saturation.
            weights = weights - step * min(1.0, 2.0 / max(float(step.norm()), 1e-12))
        return cls(*weights.tolist())


def given_sizes(size: int | Sequence[int], sets: Sets) -> Tensor:
    """Sizes `(b,)` from one number or one for each set; no set gives more items than it has."""
    try:
        wanted = np.asarray(size)
    except ValueError:
        # Lists of different lengths have no shape; as objects they are no whole numbers.
        wanted = np.asarray(size, dtype=object)
    if not np.issubdtype(wanted.dtype, np.integer) or wanted.ndim > 1 or (wanted < 0).any():
        raise OptionError(f"size must be a whole number of at least 0, or one for each set, not {size!r}")
    if wanted.ndim == 1 and len(wanted) != len(sets):
        raise ShapeError(f"{len(wanted)} sizes were given for {len(sets)} sets")
    return torch.as_tensor(np.broadcast_to(wanted, (len(sets),)).copy(), device=sets.device).minimum(sets.lengths)


def sizes_above(threshold: float, logits: Tensor, sets: Sets) -> Tensor:
    """Number of items of each set `(b,)` whose probability exceeds the threshold."""
    if not isinstance(threshold, Real) or not 0 <= threshold <= 1:
        raise OptionError(f"threshold is a probability between 0 and 1, not {threshold!r}")
    return segment_sum((probability(logits) > threshold).long(), sets)


def probability(logits: Tensor) -> Tensor:
    """Sigmoid of the logits, the same at every place of an item in memory."""
    # In float64, because the last bit of a float32 sigmoid depends on that place.
    return torch.sigmoid(logits.double()).to(logits.dtype)


SIZE_RULES: dict[str, type[SizeRule]] = {
    "threshold": Threshold,
    "linear-size": LinearSize,
    "expected-jaccard": ExpectedJaccard,
}


def calibrate(logits: Tensor, subsets: Sets, least: int = 0) -> tuple[SizeRule, dict[str, float]]:
    """Fit every rule and return the best, with the mean Jaccard score of each, for sizes that are raised to `least`."""
    fitted = {name: rule.fit(logits, subsets, least) for name, rule in SIZE_RULES.items()}
    scores = {
        name: float(jaccard(pick_top(logits, subsets, rule.sizes_from(least, logits, subsets)), subsets).mean())
        for name, rule in fitted.items()
    }
    return fitted[max(scores, key=lambda name: scores[name])], scores


def rule_to_json(rule: SizeRule) -> dict[str, Any]:
    """Name and numbers of a rule."""
    name = next(name for name, kind in SIZE_RULES.items() if isinstance(rule, kind))
    return {"name": name, **asdict(rule)}  # type: ignore[call-overload]


def rule_from_json(data: dict[str, Any]) -> SizeRule:
    """Make the rule that `rule_to_json` described."""
    numbers = dict(data)
    kind = SIZE_RULES.get(numbers.pop("name", ""))
    if kind is None or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in numbers.values()):
        raise FileFormatError(f"the size rule {data!r} is not one of: {', '.join(SIZE_RULES)}")
    return kind(**numbers)
