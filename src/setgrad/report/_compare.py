"""The scores of a selector beside those of baselines that learned from the same sets, or from sets like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad._text_table import TextTable, percent
from setgrad.report._baselines import AbstractBaseline, Popularity, id_texts, learned_baseline
from setgrad.report._scores import Evaluation
from setgrad.report._set_view import has_names
from setgrad.selector import SubsetSelector, jaccard, pick_top
from setgrad.selector.sizes import calibrate
from setgrad.sets import Choices, subset_sizes

# Every so many sets, one is held out to choose the size rule, as a selector does.
_FOLDS = 5
# Baselines learn from so many items at most, to stay quick.
_MOST_ITEMS = 20_000
# Fewer sets teach too little to compare with.
_FEWEST_SETS = 10


@final
@dataclass(frozen=True, eq=False)
class BaselineScores:
    """The Jaccard scores of a baseline, for each set: with its own size, and with the true size given."""

    name: str
    jaccard: Tensor
    jaccard_true_size: Tensor


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """Baselines and how they were fitted."""

    baselines: tuple[BaselineScores, ...]
    note: str

    def table(self, evaluation: Evaluation) -> TextTable:
        """Return the scores of all methods in percent, the selector first, random subsets last."""
        scores = evaluation.scores
        rows = [("this selector", percent(scores.jaccard), percent(scores.jaccard_true_size), "-")]
        for one in self.baselines:
            lead = 100 * (evaluation.jaccard.cpu() - one.jaccard)
            error = float(lead.std() / len(lead) ** 0.5) if len(lead) > 1 else 0.0
            own, true_size = (percent(float(part.mean())) for part in (one.jaccard, one.jaccard_true_size))
            rows.append((one.name, own, true_size, f"{float(lead.mean()):+.2f} ± {error:.2f}"))
        rows.append(("random subset", "-", percent(scores.chance), "-"))
        columns = ("method", "size by the method", "true size given", "lead of the selector ± standard error")
        return TextTable("mean Jaccard score (%)", columns, tuple(rows))


def compare(selector: SubsetSelector, evaluation: Evaluation, training: Choices | None) -> Comparison | None:
    """Fit the baselines that the data allow and score them on the sets of the evaluation.

    Without training sets each fifth of the sets is scored by baselines that learned from the other four.

    Returns:
        The comparison; None if no baseline can learn.
    """
    test = _on_cpu(evaluation.choices)
    learned_from = test if training is None else _on_cpu(training)
    if evaluation.scores.found is not None or len(learned_from) < _FEWEST_SETS:
        return None
    kinds = [kind for kind in (learned_baseline(), Popularity) if _can_learn(kind, learned_from, test)]
    if not kinds:
        return None
    codes = _coded_parts(selector)
    numbers = np.arange(len(test))
    folds = [numbers] if training is not None else [numbers[number::_FOLDS] for number in range(_FOLDS)]
    sources = [learned_from if training is not None else _take(test, np.setdiff1d(numbers, fold)) for fold in folds]
    sources = [_at_most(source) for source in sources]
    scores = tuple(_score(kind, sources, test, folds, codes) for kind in kinds)
    used = len(sources[0])
    where = f"{used} training sets" if training is not None else f"{used} of these sets, and are scored on the others"
    note = f"The baselines learn from {where}. They choose their size rule on every fifth of them, held out."
    return Comparison(scores, note)


def _score(
    kind: type[AbstractBaseline],
    sources: Sequence[Choices],
    test: Choices,
    folds: Sequence[np.ndarray],
    codes: Sequence[tuple[int, int]],
) -> BaselineScores:
    own, true_size = torch.zeros(2, len(test), dtype=torch.float64)
    for source, fold in zip(sources, folds, strict=True):
        is_held = np.arange(len(source)) % _FOLDS == 0
        model = kind.fit(_take(source, np.flatnonzero(~is_held)), codes)
        held, asked = _take(source, np.flatnonzero(is_held)), _take(test, fold)
        rule, _ = calibrate(model.logits(held), held.subsets)
        logits, right = model.logits(asked), asked.subsets
        own[fold] = jaccard(pick_top(logits, right, rule.sizes_from(0, logits, right)), right)
        true_size[fold] = jaccard(pick_top(logits, right, subset_sizes(right)), right)
    return BaselineScores(kind.name, own, true_size)


def _can_learn(kind: type[AbstractBaseline], source: Choices, test: Choices) -> bool:
    """Return whether there is something to learn: for popularity, ids of which half are known."""
    if kind is not Popularity:
        return bool(source.subsets.values.any()) and not bool(source.subsets.values.all())
    if not has_names(source) or not has_names(test):
        return False
    ids, counts = np.unique(id_texts(source), return_counts=True)
    repeated = ids if source is not test else ids[counts > 1]
    return bool(np.isin(id_texts(test), repeated).mean() >= 0.5)


def _coded_parts(selector: SubsetSelector) -> list[tuple[int, int]]:
    """Return start and width of the numbers of an item that are codes."""
    schema = selector.table_
    parts = [] if schema is None or schema.columns is None else schema.columns.parts
    starts = np.cumsum([0, *(part.width for part in parts)]).tolist()
    return [(start, part.width) for start, part in zip(starts, parts, strict=False) if part.codes]


def _at_most(choices: Choices) -> Choices:
    """Return sets in even steps that have few items enough together."""
    share = choices.sets.layout.total / _MOST_ITEMS
    if share <= 1:
        return choices
    count = max(_FEWEST_SETS, int(len(choices) / share))
    return _take(choices, np.unique(np.linspace(0, len(choices) - 1, count).astype(int)))


def _take(choices: Choices, numbers: np.ndarray) -> Choices:
    """Return some of the sets, with the ids of their items."""
    sets, subsets = (part.take(numbers) for part in choices)
    if choices.item_ids is None:
        return Choices(sets, subsets)
    layout, first = sets.layout, choices.sets.layout.host_offsets[:-1][numbers]
    rows = first[layout.ids.numpy()] + layout.positions.numpy()
    return Choices(sets, subsets, item_ids=np.asarray(choices.item_ids, dtype=object)[rows])


def _on_cpu(choices: Choices) -> Choices:
    return replace(choices, sets=choices.sets.to("cpu"), subsets=choices.subsets.to("cpu"))
