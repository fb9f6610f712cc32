"""Rules for how many items to choose, fitted on the validation sets.

Every rule turns the logits of the items into a size for each set. `calibrate` fits all rules and returns the one with
the best Jaccard score.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import FileFormatError, OptionError, ShapeError, parameter
from setgrad.selector._records import is_finite
from setgrad.selector.metrics import jaccard, pick_top
from setgrad.sets import Sets, segment_order, segment_rank, segment_sum

# Candidate thresholds on the validation logits.
_CANDIDATES = 256


class SizeRule(abc.ABC):
    """A rule that determines how many items of each set to choose from the logits `(total,)`."""

    @abc.abstractmethod
    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Return the number of items to choose from each set, `(b,)`."""

    @property
    def level(self) -> float | None:
        """The logit above which an item is worth choosing in every set; None, the default, if sets differ."""
        return None

    @final
    def sizes_from(self, min_size: int, logits: Tensor, sets: Sets) -> Tensor:
        """Return the sizes `(b,)`, raised to `min_size` where a set has that many items."""
        return self.sizes(logits, sets).clamp(min=min_size).minimum(sets.lengths)

    @classmethod
    @abc.abstractmethod
    def fit(cls, logits: Tensor, subsets: Sets, min_size: int = 0) -> SizeRule:
        """Fit the rule to logits and the true subsets, for sizes that are raised to `min_size`."""


@final
@dataclass(frozen=True)
class Threshold(SizeRule):
    """Choose the items whose logit exceeds a threshold that is the same for all sets."""

    cut: float

    @property
    def level(self) -> float:
        """The threshold."""
        return self.cut

    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Return the number of items above the threshold."""
        return segment_sum((logits > self.cut).long(), sets)

    @classmethod
    def fit(cls, logits: Tensor, subsets: Sets, min_size: int = 0) -> Threshold:
        """Return the best of the thresholds half-way between observed logits."""
        levels = logits.double().unique()
        middles = (levels[1:] + levels[:-1]) / 2 if len(levels) > 1 else levels - 1
        # Most items are not chosen, and their logits do not matter: the candidates cover the upper part.
        count = int(subsets.values.sum())
        upper = middles[max(0, len(middles) - 4 * max(count, 1)) :]
        picks = torch.linspace(0, len(upper) - 1, min(_CANDIDATES, len(upper)), device=upper.device).round().long()
        cuts = upper[picks]
        always = segment_rank(logits, subsets) < min_size
        scores = torch.stack([jaccard(subsets.with_values(always | (logits > cut)), subsets).mean() for cut in cuts])
        # The middle of the best thresholds has the largest margin on both sides.
        best = cuts[scores == scores.max()]
        return cls(float(best[len(best) // 2]))


@final
@dataclass(frozen=True)
class StopBelow(SizeRule):
    """Choose item by item until no gain exceeds the cut. The logits are the scores of a path on F (`Path`)."""

    cut: float

    @property
    def level(self) -> float:
        """The cut."""
        return self.cut

    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Return the number of items whose score exceeds the cut."""
        return Threshold(self.cut).sizes(logits, sets)

    @classmethod
    def fit(cls, logits: Tensor, subsets: Sets, min_size: int = 0) -> StopBelow:
        """Return the best cut."""
        return cls(Threshold.fit(logits, subsets, min_size).cut)


@final
@dataclass(frozen=True)
class LinearSize(SizeRule):
    """A linear model of the size: a constant, the size of the set and the sum of the probabilities."""

    constant: float
    per_item: float
    per_expected: float

    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Return the rounded prediction of the model."""
        expected = segment_sum(torch.sigmoid(logits.double()), sets)
        size = self.constant + self.per_item * sets.lengths + self.per_expected * expected
        return size.round().long().clamp(min=0).minimum(sets.lengths)

    @classmethod
    def fit(cls, logits: Tensor, subsets: Sets, min_size: int = 0) -> LinearSize:
        """Fit by least squares; if the columns are dependent, with the smallest solution."""
        expected = segment_sum(torch.sigmoid(logits.double()), subsets)
        columns = torch.stack([torch.ones_like(expected), subsets.lengths.double(), expected], 1).cpu()
        true_sizes = segment_sum(subsets.values.double(), subsets).cpu()
        solution = torch.linalg.pinv(columns, rtol=1e-9) @ true_sizes
        return cls(*solution.tolist())


def _cumulative_sums(x: Tensor, sets: Sets) -> Tensor:
    """Return the cumulative sums within each set, by windows that double.

    Differences of one cumulative sum over all sets would have the rounding errors of the other sets.
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
    """The size with the best expected Jaccard score under the probabilities sigmoid(slope * logit + shift).

    For the k best items the score is (sum of their probabilities) / (k + sum of the other probabilities).
    """

    slope: float
    shift: float

    def sizes(self, logits: Tensor, sets: Sets) -> Tensor:
        """Return the best size, from cumulative sums over the sorted items."""
        layout = sets.layout
        p = torch.sigmoid(self.slope * logits.double() + self.shift)
        order = segment_order(logits, sets)
        inside = _cumulative_sums(p[order], sets)
        total = segment_sum(p, sets)
        overlap = inside / (layout.positions + 1 + total[layout.ids] - inside)
        best = segment_rank(overlap, sets) == 0
        size = torch.zeros(len(sets), dtype=torch.long, device=logits.device)
        return size.index_add(0, layout.ids, torch.where(best, layout.positions + 1, 0))

    @classmethod
    def fit(cls, logits: Tensor, subsets: Sets, min_size: int = 0) -> ExpectedJaccard:
        """Fit by Platt scaling: logistic regression of the choice on the logit, by Newton's method."""
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
            # Far from the optimum a full step may overshoot into saturation.
            weights = weights - step * min(1.0, 2.0 / max(float(step.norm()), 1e-12))
        return cls(*weights.tolist())


def requested_sizes(size: int | Sequence[int], sets: Sets) -> Tensor:
    """Return sizes `(b,)` from one number or one for each set, at most the number of items of each set.

    Raises:
        OptionError: If a size is not a whole number of at least 0.
        ShapeError: If the number of sizes is not the number of sets.
    """
    try:
        wanted = np.asarray(size)
    except ValueError:
        # Lists of different lengths have no shape; as an array of objects they are rejected below.
        wanted = np.asarray(size, dtype=object)
    if not np.issubdtype(wanted.dtype, np.integer) or wanted.ndim > 1 or (wanted < 0).any():
        raise OptionError(
            f"{parameter('size')} must be a whole number of at least 0, or one for each set, not {size!r}"
        )
    if wanted.ndim == 1 and len(wanted) != len(sets):
        raise ShapeError(f"there are {len(wanted)} sizes for {len(sets)} sets; give one number, or one for each set")
    return torch.as_tensor(np.broadcast_to(wanted, (len(sets),)).copy(), device=sets.device).minimum(sets.lengths)


def sizes_above(threshold: float, logits: Tensor, sets: Sets) -> Tensor:
    """Return the number of items of each set `(b,)` whose probability exceeds the threshold.

    Raises:
        OptionError: If the threshold is not between 0 and 1.
    """
    if not isinstance(threshold, Real) or not 0 <= threshold <= 1:
        raise OptionError(f"{parameter('threshold')} must be a probability between 0 and 1, not {threshold!r}")
    return segment_sum((probability(logits) > threshold).long(), sets)


def probability(logits: Tensor) -> Tensor:
    """Return the sigmoid of the logits."""
    # In float64, because the last bit of a float32 sigmoid depends on the position of an item in memory.
    return torch.sigmoid(logits.double()).to(logits.dtype)


# Rules by the name that reports and saved models use.
SIZE_RULES: dict[str, type[SizeRule]] = {
    "threshold": Threshold,
    "linear-size": LinearSize,
    "expected-jaccard": ExpectedJaccard,
    "stop": StopBelow,
}


def calibrate(
    logits: Tensor,
    subsets: Sets,
    min_size: int = 0,
    limit: Callable[[Sets, Tensor, SizeRule], Sets] | None = None,
    path: Tensor | None = None,
) -> tuple[SizeRule, dict[str, float]]:
    """Fit all rules.

    Args:
        logits: Logits of the validation items, `(total,)`.
        subsets: The true subsets.
        min_size: Size that smaller sizes are raised to, as in prediction.
        limit: If the subsets were chosen under a constraint: from the choice by a rule, the scores that it follows and
            the rule to the choice under it.
        path: Scores of choosing item by item, `(total,)`, for a model that does so; the rule "stop" reads them.

    Returns:
        The rule with the best mean Jaccard score over all sets, and the scores of all rules by name.
    """
    order = logits if path is None else path
    read = {name: order if kind is StopBelow else logits for name, kind in SIZE_RULES.items()}
    # A path stops where its own gains say so, or has a size that was computed before; a threshold is for logits.
    names = [name for name in SIZE_RULES if name != ("stop" if path is None else "threshold")]
    fitted = [(name, SIZE_RULES[name].fit(read[name], subsets, min_size)) for name in names]
    if limit is not None:
        # What the loss under a constraint learns: without a limit, the items with a logit above 0 would be chosen.
        fitted.append((names[0], Threshold(0.0)) if path is None else ("stop", StopBelow(0.0)))
    scored = []
    for name, rule in fitted:
        picks = pick_top(order, subsets, rule.sizes_from(min_size, read[name], subsets))
        picks = picks if limit is None else limit(picks, order, rule)
        scored.append((float(jaccard(picks, subsets).mean()), name, rule))
    scores = {name: max(score for score, kind, _ in scored if kind == name) for name in names}
    return max(scored, key=lambda entry: entry[0])[2], scores


def rule_to_json(rule: SizeRule) -> dict[str, Any]:
    """Return the name and the numbers of a rule."""
    name = next(name for name, kind in SIZE_RULES.items() if isinstance(rule, kind))
    return {"name": name, **asdict(rule)}  # type: ignore[call-overload]


def rule_from_json(data: dict[str, Any]) -> SizeRule:
    """Return the rule that `rule_to_json` described.

    Raises:
        FileFormatError: If there is no such rule.
    """
    numbers = dict(data)
    name = numbers.pop("name", "")
    kind = SIZE_RULES.get(name) if isinstance(name, str) else None
    if kind is None or not all(map(is_finite, numbers.values())):
        raise FileFormatError(f"the size rule {data!r:.200} is not one of: {', '.join(SIZE_RULES)}")
    return kind(**{key: float(value) for key, value in numbers.items()})
