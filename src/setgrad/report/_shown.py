"""One set with what was chosen and what was right, ready to be drawn; and which sets of many are worth a look."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from setgrad._text_table import percent
from setgrad.report._scores import Evaluation
from setgrad.selector import SubsetSelector


@final
@dataclass(frozen=True, eq=False)
class Shown:
    """The items of one set `(n, ...)`, and for each of them whether it was picked, whether right, and how probable."""

    name: str
    items: np.ndarray
    picked: np.ndarray
    right: np.ndarray
    probability: np.ndarray
    labels: tuple[str, ...]
    jaccard: float

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Masks of the four kinds of items, by the names that `MARKS` uses."""
        return {
            "rest": ~self.picked & ~self.right,
            "right": self.picked & self.right,
            "missed": ~self.picked & self.right,
            "wrong": self.picked & ~self.right,
        }

    @property
    def caption(self) -> str:
        """What happened, in words and numbers."""
        counts = {state: int(mask.sum()) for state, mask in self.states.items()}
        return (
            f"{self.name}: Jaccard {percent(self.jaccard)}; {int(self.picked.sum())} of {len(self.items)} items "
            f"chosen, {counts['right']} right, {counts['wrong']} wrong, {counts['missed']} missed"
        )

    def top(self, count: int) -> Shown:
        """At most so many items: those picked or right first, then the most probable; in order of probability."""
        order = np.argsort(-self.probability, kind="stable")
        if len(order) > count:
            matters = (self.picked | self.right)[order]
            order = order[np.sort(np.concatenate([np.flatnonzero(matters), np.flatnonzero(~matters)])[:count])]
        return self._take(order)

    def _take(self, order: np.ndarray) -> Shown:
        return replace(
            self,
            items=self.items[order],
            picked=self.picked[order],
            right=self.right[order],
            probability=self.probability[order],
            labels=tuple(self.labels[place] for place in order),
        )


def sets_to_show(selector: SubsetSelector, evaluation: Evaluation, count: int) -> list[Shown]:
    """Take sets from the worst to the best score in even steps, so that the failures are seen too."""
    choices = evaluation.choices
    full = np.flatnonzero(choices.sets.layout.host_lengths > 0)
    if not len(full):
        return []
    ranked = full[np.argsort(evaluation.overlap.cpu().numpy()[full], kind="stable")]
    numbers = ranked[np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int))]
    sets, right, picked = (part.take(numbers).to("cpu") for part in (choices.sets, choices.subsets, evaluation.picks))
    probability = selector.predict_proba(sets)
    return [
        Shown(
            name=f"set {number if choices.set_ids is None else choices.set_ids[number]}",
            items=sets[place].numpy(),
            picked=picked[place].numpy(),
            right=right[place].numpy(),
            probability=probability[place].numpy(),
            labels=_labels(choices.item_ids, *choices.sets.layout.host_offsets[number : number + 2].tolist()),
            jaccard=float(evaluation.overlap[number]),
        )
        for place, number in enumerate(numbers.tolist())
    ]


def _labels(item_ids: Any, start: int, end: int) -> tuple[str, ...]:
    return tuple(str(item) for item in (range(end - start) if item_ids is None else item_ids[start:end]))
