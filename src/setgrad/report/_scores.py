"""Scores of a selector on sets whose right subsets are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad._text_table import TextTable, percent
from setgrad.errors import DataError
from setgrad.selector import SIZE_RULES, SubsetSelector, jaccard
from setgrad.sets import Choices, Sets, segment_sum, subset_sizes


@final
@dataclass(frozen=True)
class Scores:
    """Means over sets; shares are from 0 to 1.

    Attributes:
        sets: Number of sets.
        items: Number of items.
        jaccard: Jaccard score of the picks, with the size chosen by the model: what a user gets.
        jaccard_true_size: Jaccard score with the size of the right subset given: what papers report.
        chance: Expected Jaccard score of a random subset of the true size.
        precision: Share of the picked items that are right; 1 where nothing was picked and nothing is right.
        recall: Share of the right items that were picked; 1 where nothing was picked and nothing is right.
        exact: Share of the sets whose picks are exactly right.
        mean_set_size: Mean number of items of a set.
        mean_size: Mean number of picked items.
        mean_true_size: Mean number of right items.
    """

    sets: int
    items: int
    jaccard: float
    jaccard_true_size: float
    chance: float
    precision: float
    recall: float
    exact: float
    mean_set_size: float
    mean_size: float
    mean_true_size: float


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """The scores of a selector, with the sets, the picks and the Jaccard score of each set `(b,)`."""

    choices: Choices
    picks: Sets
    jaccard: Tensor
    scores: Scores


def evaluate(selector: SubsetSelector, choices: Choices) -> Evaluation:
    """Score the picks of a fitted selector against the right subsets.

    Args:
        selector: A fitted selector.
        choices: Sets with their right subsets.

    Returns:
        The scores and what they were computed from.

    Raises:
        DataError: If there are no sets, or `choices` is not a `Choices`.
        NotFittedError: If the selector is not fitted.

    Examples:
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=20, n_validation=10, n_test=10)
        >>> sel = sg.SubsetSelector(dim=8, max_epochs=1, random_state=0, verbose=0).fit(*task.train)
        >>> evaluation = evaluate(sel, task.test)
        >>> evaluation.scores.sets, evaluation.scores.jaccard == sel.score(*task.test)
        (10, True)
    """
    if not isinstance(choices, Choices):
        kind = type(choices).__name__
        raise DataError(f"evaluate takes sets and subsets as Choices, not {kind}; make them: Choices.of(sets, subsets)")
    if not len(choices):
        raise DataError("there are no sets to evaluate on; give at least one")
    sets, right = choices
    scores = selector.decision_function(sets)
    picks = selector.predict(sets, scores=scores)
    overlaps = jaccard(picks, right)
    sizes, true_sizes = subset_sizes(picks), subset_sizes(right)
    of_true_size = selector.predict(sets, size=true_sizes.tolist(), scores=scores)
    both = subset_sizes(right.with_values(picks.values & right.values))
    return Evaluation(
        choices,
        picks,
        overlaps,
        Scores(
            sets=len(sets),
            items=sets.layout.total,
            jaccard=float(overlaps.mean()),
            jaccard_true_size=float(jaccard(of_true_size, right).mean()),
            chance=chance_jaccard(right),
            precision=_share(both, sizes, true_sizes),
            recall=_share(both, true_sizes, sizes),
            exact=float((overlaps == 1).double().mean()),
            mean_set_size=float(sets.layout.host_lengths.mean()),
            mean_size=float(sizes.mean()),
            mean_true_size=float(true_sizes.mean()),
        ),
    )


def chance_jaccard(right: Sets) -> float:
    """Return the expected mean Jaccard score of random subsets of the true sizes (hypergeometric distribution).

    Examples:
        >>> from setgrad import Sets
        >>> round(chance_jaccard(Sets.from_list([[True, False]])), 6)
        0.5
    """
    sizes = segment_sum(right.values.long(), right).cpu()
    pairs, counts = torch.stack([right.lengths.cpu(), sizes], 1).unique(dim=0, return_counts=True)
    expected = torch.tensor([_expected_jaccard(n, k) for n, k in pairs.tolist()], dtype=torch.double)
    return float((expected * counts).sum() / counts.sum())


def score_table(scores: Scores) -> TextTable:
    """Return the scores as a table, shares in percent."""
    rows = (
        ("Jaccard, size chosen by the model", percent(scores.jaccard)),
        ("Jaccard, true size given", percent(scores.jaccard_true_size)),
        ("Jaccard of a random subset, true size given", percent(scores.chance)),
        ("precision", percent(scores.precision)),
        ("recall", percent(scores.recall)),
        ("subsets exactly right", percent(scores.exact)),
        ("sets", str(scores.sets)),
        ("items of a set, mean", f"{scores.mean_set_size:.2f}"),
        ("items chosen by the model, mean", f"{scores.mean_size:.2f}"),
        ("items of the right subset, mean", f"{scores.mean_true_size:.2f}"),
    )
    return TextTable("scores (%) and sizes", ("measure", "value"), rows)


def size_rule_table(selector: SubsetSelector) -> TextTable:
    """Return the validation score of each size rule, and which one is used."""
    rows = tuple(
        (name, percent(score), "used" if isinstance(selector.size_rule_, SIZE_RULES[name]) else "")
        for name, score in selector.size_scores_.items()
    )
    return TextTable("size rules, on the validation sets", ("rule", "Jaccard (%)", ""), rows)


def _expected_jaccard(n: int, k: int) -> float:
    if k == 0:
        return 1.0
    hits = torch.arange(max(0, 2 * k - n), k + 1, dtype=torch.double)
    size, others = torch.tensor(k, dtype=torch.double), torch.tensor(n - k, dtype=torch.double)
    log = _log_choose(size, hits) + _log_choose(others, size - hits) - _log_choose(size + others, size)
    return float((log.exp() * hits / (2 * k - hits)).sum())


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def _share(both: np.ndarray, part: np.ndarray, other: np.ndarray) -> float:
    # An empty pick is right if the right subset is empty, and wrong otherwise.
    empty = np.where(other == 0, 1.0, 0.0)
    return float(np.where(part > 0, both / np.maximum(part, 1), empty).mean())
