"""Scores of a selector on sets whose right subsets are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._text_table import TextTable, percent
from setgrad.errors import DataError, NotFittedError, parameter
from setgrad.selector import SIZE_RULES, SubsetSelector, jaccard
from setgrad.selector._fitted_table import FittedTable
from setgrad.selector._table_input import is_table
from setgrad.sets import Choices, Sets, as_subsets, segment_sum, subset_sizes


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
        found: Share of the right items that were not given and were picked, over sets that have such items; None where
            nothing was given. The other scores count given items as picked.
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
    found: float | None = None


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """The scores of a selector, and what they come from.

    Attributes:
        choices: The sets with their right subsets.
        picks: What the selector chose.
        jaccard: The Jaccard score of each set, `(b,)`.
        scores: Means over the sets.
        probability: The probability of each item to be chosen.
    """

    choices: Choices
    picks: Sets
    jaccard: Tensor
    scores: Scores
    probability: Sets


def evaluate(selector: SubsetSelector, choices: Any, *, given: Any = None) -> Evaluation:
    """Score the picks of a fitted selector against the right subsets.

    Args:
        selector: A fitted selector.
        choices: Sets with their right subsets, as `Choices`; or, after a fit on a table, another table.
        given: Right items that the selector is told, as in `predict`; the scores are then those of completing.

    Returns:
        The scores and what they were computed from.

    Raises:
        DataError: If there are no sets, `choices` is neither a `Choices` nor a table, or a given item is not a right
            one.
        NotFittedError: If the selector is not fitted.
        OptionError: If the selector does not know the columns of a table.

    Examples:
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=20, n_validation=10, n_test=10)
        >>> sel = sg.SubsetSelector(dim=8, max_epochs=1, random_state=0, verbose=0).fit(*task.train)
        >>> evaluation = evaluate(sel, task.test)
        >>> evaluation.scores.sets, evaluation.scores.jaccard == sel.score(*task.test)
        (10, True)
    """
    choices = read_choices(selector, choices, "evaluate")
    if not len(choices):
        raise DataError("there are no sets to evaluate on; give at least one")
    sets, right = choices
    told = None if given is None else _check_given(as_subsets(given, sets), right)
    scores = selector.decision_function(sets, given=told)
    picks = selector.predict(sets, given=told, scores=scores)
    overlaps = jaccard(picks, right)
    sizes, true_sizes = subset_sizes(picks), subset_sizes(right)
    of_true_size = selector.predict(sets, size=true_sizes.tolist(), given=told, scores=scores)
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
            chance=chance_jaccard(right, told),
            precision=_share(both, sizes, true_sizes),
            recall=_share(both, true_sizes, sizes),
            exact=float((overlaps == 1).double().mean()),
            mean_set_size=float(sets.layout.host_lengths.mean()),
            mean_size=float(sizes.mean()),
            mean_true_size=float(true_sizes.mean()),
            found=None if told is None else _found(picks, right, told),
        ),
        selector.predict_proba(sets, given=told, scores=scores),
    )


def read_choices(selector: SubsetSelector, data: Any, name: str) -> Choices:
    """Return choices as they are, or those of a table with the columns that the selector was fitted on.

    Args:
        selector: The selector.
        data: The choices or the table.
        name: What takes them, for messages.

    Raises:
        DataError: If it is neither, or the table cannot be read.
        NotFittedError: If the selector is not fitted.
        OptionError: If the selector does not know the columns of a table.
    """
    if isinstance(data, Choices):
        return data
    if not is_table(data):
        kind = type(data).__name__
        raise DataError(f"{name} takes sets and subsets as Choices, not {kind}; make them: Choices.of(sets, subsets)")
    if not selector.__sklearn_is_fitted__():
        raise NotFittedError("the selector is not fitted yet; call fit first")
    return FittedTable.of(data, selector.table_, chosen=True).read_choices()


def chance_jaccard(right: Sets, given: Sets | None = None) -> float:
    """Return the expected mean Jaccard score of random subsets of the true sizes (hypergeometric distribution).

    Args:
        right: The right subsets.
        given: Right items that every subset has; None for none.

    Examples:
        >>> from setgrad import Sets
        >>> round(chance_jaccard(Sets.from_list([[True, False]])), 6)
        0.5
    """
    told = torch.zeros_like(right.values) if given is None else given.values
    counts = segment_sum(torch.stack([right.values, told], 1).long(), right).cpu()
    kinds, numbers = torch.cat([right.lengths.cpu()[:, None], counts], 1).unique(dim=0, return_counts=True)
    expected = torch.tensor([_expected_jaccard(*kind) for kind in kinds.tolist()], dtype=torch.double)
    return float((expected * numbers).sum() / numbers.sum())


def score_table(scores: Scores) -> TextTable:
    """Return the scores as a table, shares in percent."""
    rows = (
        ("Jaccard, size chosen by the model", percent(scores.jaccard)),
        ("Jaccard, true size given", percent(scores.jaccard_true_size)),
        ("Jaccard of a random subset, true size given", percent(scores.chance)),
        ("precision", percent(scores.precision)),
        ("recall", percent(scores.recall)),
        *([] if scores.found is None else [("found, of the right items that were not given", percent(scores.found))]),
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


def _expected_jaccard(n: int, k: int, given: int) -> float:
    if k == 0:
        return 1.0
    open_items, wanted = n - given, k - given
    hits = torch.arange(max(0, 2 * wanted - open_items), wanted + 1, dtype=torch.double)
    size, others = torch.tensor(wanted, dtype=torch.double), torch.tensor(open_items - wanted, dtype=torch.double)
    log = _log_choose(size, hits) + _log_choose(others, size - hits) - _log_choose(size + others, size)
    return float((log.exp() * (given + hits) / (2 * k - given - hits)).sum())


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def _share(both: np.ndarray, part: np.ndarray, other: np.ndarray) -> float:
    # An empty pick is right if the right subset is empty, and wrong otherwise.
    empty = np.where(other == 0, 1.0, 0.0)
    return float(np.where(part > 0, both / np.maximum(part, 1), empty).mean())


def _check_given(given: Sets, right: Sets) -> Sets:
    wrong = given.values & ~right.values
    if bool(wrong.any()):
        item = int(wrong.nonzero()[0])
        raise DataError(
            f"item {int(right.layout.positions[item])} of set {int(right.layout.ids[item])} (both counted from 0) is "
            f"given, but is not in the right subset; {parameter('given')} must be a part of it"
        )
    return given


def _found(picks: Sets, right: Sets, given: Sets) -> float:
    rest = right.values & ~given.values
    found, total = segment_sum(torch.stack([rest & picks.values, rest], 1).double(), right).unbind(1)
    has_rest = total > 0
    return float((found[has_rest] / total[has_rest]).mean()) if bool(has_rest.any()) else 1.0
