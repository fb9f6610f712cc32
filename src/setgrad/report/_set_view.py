"""Sets with the picks and the right subsets, ready to be drawn: which ones, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from setgrad._text_table import percent
from setgrad.report._scores import Evaluation
from setgrad.sets import Choices

# How many letters of an id are shown.
_LETTERS = 120


@final
@dataclass(frozen=True, eq=False)
class SetView:
    """The items of one set `(n, ...)`: whether each was picked, whether it is in the right subset, its probability."""

    name: str
    items: np.ndarray
    picked: np.ndarray
    right: np.ndarray
    probability: np.ndarray
    labels: tuple[str, ...]
    jaccard: float

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Masks of the four kinds of items, by their keys in `MARKS`."""
        return {
            "rest": ~self.picked & ~self.right,
            "right": self.picked & self.right,
            "missed": ~self.picked & self.right,
            "wrong": self.picked & ~self.right,
        }

    @property
    def caption(self) -> str:
        """Counts of right, wrong and missed items, as a sentence."""
        counts = {state: int(mask.sum()) for state, mask in self.states.items()}
        return (
            f"{self.name}: Jaccard {percent(self.jaccard)}; {int(self.picked.sum())} of {len(self.items)} items "
            f"chosen, {counts['right']} right, {counts['wrong']} wrong, {counts['missed']} missed"
        )

    def top(self, count: int) -> SetView:
        """Return at most `count` items, by falling probability; items picked or right come before others."""
        order = np.argsort(-self.probability, kind="stable")
        if len(order) > count:
            relevant = (self.picked | self.right)[order]
            order = order[np.sort(np.concatenate([np.flatnonzero(relevant), np.flatnonzero(~relevant)])[:count])]
        return self._take(order)

    def _take(self, order: np.ndarray) -> SetView:
        return replace(
            self,
            items=self.items[order],
            picked=self.picked[order],
            right=self.right[order],
            probability=self.probability[order],
            labels=tuple(self.labels[index] for index in order),
        )


@final
@dataclass(frozen=True, eq=False)
class ExtremeSets:
    """The indices of the sets with the worst scores and of those with the best, no set twice."""

    worst: list[int]
    best: list[int]


def extreme_sets(evaluation: Evaluation, count: int) -> ExtremeSets:
    """Return `count` sets that are not empty: half of them the worst, half the best, each from its end."""
    filled = np.flatnonzero(evaluation.choices.sets.layout.host_lengths > 0)
    ranked = filled[np.argsort(evaluation.jaccard.cpu().numpy()[filled], kind="stable")].tolist()
    count = min(count, len(ranked))
    return ExtremeSets(ranked[: (count + 1) // 2], ranked[::-1][: count // 2])


def views_of(evaluation: Evaluation, numbers: list[int]) -> list[SetView]:
    """Return sets ready to be drawn."""
    choices = evaluation.choices
    parts = (choices.sets, choices.subsets, evaluation.picks, evaluation.probability)
    sets, right, picked, probability = (part.take(numbers).to("cpu") for part in parts)
    return [
        SetView(
            name=name_of_set(choices, number),
            items=sets[index].numpy(),
            picked=picked[index].numpy(),
            right=right[index].numpy(),
            probability=probability[index].numpy(),
            labels=names_of_items(choices, number),
            jaccard=float(evaluation.jaccard[number]),
        )
        for index, number in enumerate(numbers)
    ]


def name_of_set(choices: Choices, number: int) -> str:
    """Return what a set is called."""
    return f"set {readable(number if choices.set_ids is None else choices.set_ids[number])}"


def names_of_items(choices: Choices, number: int) -> tuple[str, ...]:
    """Return what the items of a set are called; without ids, by their numbers."""
    start, end = choices.sets.layout.host_offsets[number : number + 2].tolist()
    ids = choices.item_ids
    return tuple(readable(item) for item in (range(end - start) if ids is None else ids[start:end]))


def has_names(choices: Choices) -> bool:
    """Return whether items have ids that are more than their numbers in the set."""
    if choices.item_ids is None:
        return False
    positions = choices.sets.layout.positions.cpu().tolist()
    ids = choices.item_ids
    return (ids.tolist() if isinstance(ids, np.ndarray) else list(ids)) != positions


def readable(value: Any) -> str:
    """Return an id or a name as a text that fits on a page."""
    text = str(value)
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"
