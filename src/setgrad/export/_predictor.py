"""A fitted selector as a module of padded tensors, without any object of setgrad in its inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setgrad.encoders import ContextItems, ItemEncoder, Stacked
from setgrad.encoders.linear import LinearItems
from setgrad.encoders.mlp import MLPItems
from setgrad.errors import NotFittedError, OptionError, parameter
from setgrad.export._relative import relative_features
from setgrad.export._trees import PaddedTrees
from setgrad.functions import DeepSetFunction, ItemScores
from setgrad.functions._neural import RELATION_GAIN, Relation, weights_and_biases
from setgrad.functions.pair_scores import PairScores
from setgrad.selector import SubsetSelector
from setgrad.selector._scaler import compress
from setgrad.selector._tables import CONDITIONAL


@final
class PaddedPredictor(nn.Module):
    """Computes the logits of the items of padded sets: `decision_function` as one program of tensors.

    Standardisation, learned vectors of categories and features relative to the set are inside. The result for a set
    does not depend on the padding. It computes in single precision, where `decision_function` does so in double.

    Args:
        selector: A fitted selector of method "conditional" or "direct".

    Raises:
        NotFittedError: If the selector is not fitted.
        OptionError: If a part of the selector has no such form; the message has a remedy.

    Examples:
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=20, n_validation=8, n_test=8)
        >>> selector = SubsetSelector(dim=8, max_epochs=1, random_state=0, verbose=0, device="cpu").fit(*task.train)
        >>> items, mask = task.test.sets.padded()
        >>> logits = PaddedPredictor(selector)(items.double(), mask, torch.zeros_like(mask))
        >>> torch.allclose(logits[mask], selector.decision_function(task.test.sets).values, atol=1e-3)
        True
    """

    def __init__(self, selector: SubsetSelector) -> None:
        super().__init__()
        if not hasattr(selector, "model_"):
            raise NotFittedError("this SubsetSelector is not fitted yet; call fit(sets, subsets) first")
        _check(selector)
        self.model = copy.deepcopy(selector.model_).cpu().eval().requires_grad_(False)
        self.width = self.model.config.item_shape[0]
        self.trees = None if self.model.trees is None else PaddedTrees(self.model.trees)

    def forward(self, items: Tensor, mask: Tensor, given: Tensor) -> Tensor:
        """Return the logit of each item, `(b, n)`; minus infinity for padding.

        Args:
            items: The numbers of the items `(b, n, d)`, in double precision; any numbers for padding.
            mask: Which items are there, `(b, n)`, booleans.
            given: Which items are in the subset already, `(b, n)`, booleans; all false for the first choice.
        """
        items = items.masked_fill(~mask[..., None], 0.0)
        inside = (given & mask).to(self.model.dtype)
        numbers = (items - self.model.mean) / self.model.deviation
        numbers = torch.where(self.model.compressed, compress(numbers), numbers)
        relative = None
        if self.model.relative is not None:
            relative = relative_features(self.model.relative, items, mask)
            numbers = torch.cat([numbers, relative], 2)
        numbers = numbers.to(self.model.dtype)
        scores = None if self.trees is None else self.trees(items, relative).to(self.model.dtype)
        results = []
        for member in self.model.each():
            x = numbers if member.columns is None else _by_rows(member.columns, numbers)
            logits = torch.zeros_like(inside)
            if member.is_function_used:
                logits = _gains(member.function, x, mask, inside)
            if member.pairs is not None:
                compared = x
                if member.columns is not None and any(member.columns.are_texts):
                    compared = _by_rows(member.columns.compared, numbers, x)
                logits = logits + _pair_gains(member.pairs, compared, mask, inside)
            results.append(logits)
        mean = results[0] if len(results) == 1 else torch.stack(results).mean(0)
        mean = mean if scores is None else mean + scores
        return mean.masked_fill(~mask, -torch.inf)


def _by_rows(function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    result = function(*(part.flatten(0, 1) for part in parts))
    return result.unflatten(0, (parts[0].shape[0], parts[0].shape[1]))


def _encode(phi: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Return the features of padded items."""
    if isinstance(phi, Stacked):
        return _encode(phi.then, _encode(phi.first, x, mask), mask)
    if isinstance(phi, MLPItems):
        return phi.layers(x)
    if isinstance(phi, LinearItems):
        return phi.linear(x)
    assert isinstance(phi, ContextItems)
    x = phi.embed(x)
    for block in phi.blocks:
        x = block(x, mask)
    return phi.norm(x)


def _gains(function: Any, x: Tensor, mask: Tensor, inside: Tensor) -> Tensor:
    """Return the gain of each item at the subset; that of an item inside is at the subset without it."""
    features = _encode(function.phi, x, mask)
    if isinstance(function, ItemScores):
        gains = function.score(features).squeeze(2)
    else:
        (first, *weights), (bias, *biases) = weights_and_biases(function.rho)
        rows = linear(features, first)
        pooled = (rows * inside[..., None]).sum(1, keepdim=True) + bias
        sign = 1 - 2 * inside
        flipped = _perceptron(pooled + sign[..., None] * rows, weights, biases)
        gains = sign * (flipped - _perceptron(pooled, weights, biases))
        if function.skip is not None:
            gains = gains + function.skip(features).squeeze(2)
    return gains if function.relation is None else gains + _relation(function.relation, x, mask)


def _perceptron(first: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    x = torch.relu(first)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = torch.relu(linear(x, weight, bias))
    return linear(x, weights[-1], biases[-1]).squeeze(2)


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the items of each set, `(b, 1, d)`."""
    there = mask.to(x.dtype)[..., None]
    return (x * there).sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)


def _relation(relation: Relation, x: Tensor, mask: Tensor) -> Tensor:
    scale = RELATION_GAIN * relation.unit**2 * relation.items.out_features**-0.5
    return (relation.items(x) * (relation.means(_mean(x, mask)) * scale)).sum(2)


def _pair_gains(pairs: PairScores, x: Tensor, mask: Tensor, inside: Tensor) -> Tensor:
    units = x * pairs.scale
    units = units / units.norm(dim=2, keepdim=True).clamp(min=1e-12)
    rows, weights = torch.cat([units, torch.ones_like(units[..., :1])], 2), pairs.all_weights
    sums = (rows * inside[..., None]).sum(1, keepdim=True) * weights
    return (rows * sums).sum(2) - inside * (rows.square() * weights).sum(2)


def _check(selector: SubsetSelector) -> None:
    """Raise an OptionError if a part has no form with padded tensors."""
    config = selector.model_.config
    options, members = config.options, selector.model_.each()
    if options.method not in (CONDITIONAL, "direct"):
        raise OptionError(
            f"{parameter('method')}={options.method!r} infers logits from random samples, which a program of tensors "
            f"cannot draw as setgrad does; fit with {parameter('method')}='conditional' (the default) or 'direct'"
        )
    if not all(isinstance(member.function, DeepSetFunction | ItemScores) for member in members):
        raise OptionError(
            f"{parameter('function')}={options.function!r} cannot be exported; fit with {parameter('function')}="
            "'deepset', the default"
        )
    if len(config.item_shape) != 1:
        raise OptionError(
            f"items of shape {config.item_shape} cannot be exported, only rows of numbers; encode them first, and fit "
            "on the features"
        )
    unknown = next((name for member in members if (name := _unknown(member.function.phi)) is not None), None)
    if unknown is not None:
        raise OptionError(
            f"the encoder {unknown} cannot be exported; fit with {parameter('phi')}='context', 'mlp', 'paper', "
            "'mlp+context' or 'paper+context', on features that your own module computed"
        )


def _unknown(phi: ItemEncoder) -> str | None:
    if isinstance(phi, Stacked):
        return _unknown(phi.first) or _unknown(phi.then)
    return None if isinstance(phi, ContextItems | MLPItems | LinearItems) else type(phi).__name__
