"""One set with the picks and the right subset, ready to be drawn; and the selection of the sets to draw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from setgrad._text_table import percent
from setgrad.report._scores import Evaluation
from setgrad.selector import SubsetSelector


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


def select_views(selector: SubsetSelector, evaluation: Evaluation, count: int) -> list[SetView]:
    """Return `count` sets from the worst to the best score in even steps, so that failures are shown too."""
    choices = evaluation.choices
    nonempty = np.flatnonzero(choices.sets.layout.host_lengths > 0)
    if not len(nonempty):
        return []
    ranked = nonempty[np.argsort(evaluation.jaccard.cpu().numpy()[nonempty], kind="stable")]
    numbers = ranked[np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int))]
    sets, right, picked = (part.take(numbers).to("cpu") for part in (choices.sets, choices.subsets, evaluation.picks))
    probability = selector.predict_proba(sets)
    return [
        SetView(
            name=f"set {number if choices.set_ids is None else choices.set_ids[number]}",
            items=sets[index].numpy(),
            picked=picked[index].numpy(),
            right=right[index].numpy(),
            probability=probability[index].numpy(),
            labels=_labels(choices.item_ids, *choices.sets.layout.host_offsets[number : number + 2].tolist()),
            jaccard=float(evaluation.jaccard[number]),
        )
        for index, number in enumerate(numbers.tolist())
    ]


def _labels(item_ids: Any, start: int, end: int) -> tuple[str, ...]:
    return tuple(str(item) for item in (range(end - start) if item_ids is None else item_ids[start:end]))
