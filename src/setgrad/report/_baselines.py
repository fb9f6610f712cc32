"""What the picks are compared with: a learned model of single items, and how often an item was chosen before."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from setgrad.report._item_features import ItemFeatures
from setgrad.sets import Choices


class AbstractBaseline(abc.ABC):
    """A model that gives each item a logit of being chosen."""

    name: str

    @classmethod
    @abc.abstractmethod
    def fit(cls, choices: Choices, codes: Sequence[tuple[int, int]]) -> Self:
        """Learn from choices.

        Args:
            choices: What was chosen.
            codes: Start and width of the numbers of an item that are codes.
        """

    @abc.abstractmethod
    def logits(self, choices: Choices) -> Tensor:
        """Return the logit of each item, `(total,)`."""


@final
@dataclass(frozen=True, eq=False)
class Boosting(AbstractBaseline):
    """Gradient boosting of scikit-learn on single items, with their place in the set."""

    features: ItemFeatures
    model: object
    name = "gradient boosting (scikit-learn)"

    @classmethod
    def fit(cls, choices: Choices, codes: Sequence[tuple[int, int]]) -> Self:
        """Learn from choices."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        features, x = ItemFeatures.fit(choices, codes, relative=True)
        model = HistGradientBoostingClassifier(early_stopping=False, random_state=0)
        return cls(features, model.fit(x, choices.subsets.values.numpy()))

    def logits(self, choices: Choices) -> Tensor:
        """Return the logit of each item."""
        return torch.from_numpy(self.model.decision_function(self.features.of(choices.sets)))  # type: ignore[attr-defined]


@final
@dataclass(frozen=True, eq=False)
class Logistic(AbstractBaseline):
    """Logistic regression on the numbers of an item and their means over the set."""

    features: ItemFeatures
    centre: Tensor
    scale: Tensor
    weights: Tensor
    name = "logistic regression on items and means of sets"

    @classmethod
    def fit(cls, choices: Choices, codes: Sequence[tuple[int, int]]) -> Self:
        """Learn from choices."""
        features, numbers = ItemFeatures.fit(choices, codes, relative=False)
        x = torch.from_numpy(numbers)
        y = choices.subsets.values.double()
        centre, scale = x.mean(0), x.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        return cls(features, centre, scale, _fit_weights((x - centre) / scale, y))

    def logits(self, choices: Choices) -> Tensor:
        """Return the logit of each item."""
        x = (torch.from_numpy(self.features.of(choices.sets)) - self.centre) / self.scale
        return x @ self.weights[:-1] + self.weights[-1]


@final
@dataclass(frozen=True, eq=False)
class Popularity(AbstractBaseline):
    """How often the item with this id was chosen, of the times that it was in a set."""

    ids: np.ndarray
    rates: np.ndarray
    base: float
    name = "popularity of the item"

    @classmethod
    def fit(cls, choices: Choices, codes: Sequence[tuple[int, int]] = ()) -> Self:
        """Count choices."""
        chosen = choices.subsets.values.double().numpy()
        ids, rows = np.unique(id_texts(choices), return_inverse=True)
        # As if each had been there once more and been chosen as often as items are on average.
        base = (chosen.sum() + 1) / (len(chosen) + 2)
        rates = (np.bincount(rows, chosen, len(ids)) + base) / (np.bincount(rows, minlength=len(ids)) + 1)
        return cls(ids, rates, float(base))

    def logits(self, choices: Choices) -> Tensor:
        """Return the log-odds of each item."""
        texts = id_texts(choices)
        place = np.searchsorted(self.ids, texts).clip(max=len(self.ids) - 1)
        rate = torch.from_numpy(np.where(self.ids[place] == texts, self.rates[place], self.base))
        return torch.logit(rate)


def learned_baseline() -> type[AbstractBaseline]:
    """Return gradient boosting if scikit-learn is installed, else logistic regression."""
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        return Logistic
    return Boosting


def id_texts(choices: Choices) -> np.ndarray:
    """Return the ids of the items as an array of texts."""
    ids = choices.item_ids
    assert ids is not None
    return np.array(list(map(str, ids.tolist() if isinstance(ids, np.ndarray) else ids)), dtype=str)


def _fit_weights(x: Tensor, y: Tensor) -> Tensor:
    """Return the weights and the constant of a logistic regression with a small ridge."""
    weights = torch.zeros(x.shape[1] + 1, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = x @ weights[:-1] + weights[-1]
        value = torch.nn.functional.binary_cross_entropy_with_logits(logits, y) + 1e-3 * weights[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach()
