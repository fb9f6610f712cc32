"""The trainable part of a selector: its configuration, its members and how they infer logits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from setgrad.columns._module import ColumnItems
from setgrad.columns._part import Part, compared_scales
from setgrad.columns._relative import RelativeFeatures
from setgrad.errors import OptionError, parameter
from setgrad.functions import Bernoulli, BoundSetFunction, ItemScores, NoiseSource, PairScores
from setgrad.functions._neural import make_item_encoder, start_at_zero
from setgrad.functions.average import BoundAverage
from setgrad.functions.given import BoundGiven
from setgrad.functions.modular import BoundModular
from setgrad.functions.pair_scores import BoundSum
from setgrad.inference import MeanField, OneStepMeanField, Recognition
from setgrad.inference.mean_field import solve_bound
from setgrad.selector._model_config import ModelConfig, resolved
from setgrad.selector._parts import bind_members
from setgrad.selector._phi import make_phi
from setgrad.selector._scaler import compress, fit_scale, name_features
from setgrad.selector._statistics import ItemStatistics
from setgrad.selector._tables import (
    CONDITIONAL,
    ESTIMATORS,
    FUNCTIONS,
    RECOGNITIONS,
    LearnedFunction,
)
from setgrad.sets import Sets
from setgrad.trees import BoostedTrees

# Alike items are alike in the features that vary most, as in vectors of an encoder. But a column in a small unit must
# not decide alone, so the scale of a feature is at most so many times the median, or at least the inverse of it.
_MAX_SPREAD = 2.0


@final
class Member(nn.Module):
    """A learned set function with the inference that it is trained for.

    Args:
        config: The configuration of the model.
        phi: An item encoder of the user; None to build the one that the options name.

    Raises:
        OptionError: If the options do not fit the items.
    """

    def __init__(self, config: ModelConfig, phi: nn.Module | None = None) -> None:
        super().__init__()
        self.columns = None if config.all_parts is None else ColumnItems(config.all_parts)
        self.reads_scores, self.is_function_used = config.trees, config.is_function_used
        encoder = make_phi(config) if phi is None else phi
        if config.relation and getattr(encoder, "reads_tokens", False):
            raise OptionError(f"{parameter('relation')} compares numbers, and these items are letters; leave it out")
        if config.pairs and getattr(encoder, "reads_tokens", False):
            raise OptionError(f"{parameter('pairs')} compare numbers, and these items are letters; leave them out")
        if config.options.method == "direct":
            self.function: LearnedFunction = ItemScores(config.feature_shape, encoder, relation=config.relation)
        else:
            self.function = FUNCTIONS[config.options.function](config, encoder)
        self.pairs = PairScores(config.compared_shape, tied=config.compared_texts) if config.pairs else None
        self.recognition: Recognition | None = None
        if config.options.method in RECOGNITIONS:
            # A separate encoder: what tells where to start need not be what tells a good subset.
            second = make_phi(config) if phi is None else make_item_encoder(config.feature_shape, copy.deepcopy(phi))
            self.recognition = RECOGNITIONS[config.options.method](second, config.hidden)

    def bind(self, items: Sets) -> BoundSetFunction:
        """Return F for sets of prepared items."""
        terms: list[BoundSetFunction] = []
        if self.reads_scores:
            terms, items = [BoundModular(items, items.values[:, -1])], items.with_values(items.values[:, :-1])
        featured = self.featured(items)
        if self.is_function_used:
            terms.insert(0, self.function.bind(featured))
        terms += [] if self.pairs is None else [self.pairs.bind(self.compared(items, featured))]
        return BoundSum(terms) if len(terms) > 1 else terms[0]

    def featured(self, items: Sets) -> Sets:
        """Return standardised items with vectors in place of codes."""
        return items if self.columns is None else items.with_values(self.columns(items.values))

    def compared(self, items: Sets, featured: Sets) -> Sets:
        """Return standardised items as the term for pairs reads them, from these and those with vectors."""
        return (
            featured
            if self.columns is None
            else items.with_values(self.columns.compared(items.values, featured.values))
        )

    def infer(
        self,
        config: ModelConfig,
        bound: BoundSetFunction,
        noise: NoiseSource,
        *,
        samples: int | None = None,
        coordinates: Tensor | None = None,
        partial: Tensor | None = None,
    ) -> MeanField:
        """Run mean field on F, or return its gains at partial subsets.

        Args:
            config: The configuration of the model.
            bound: F, bound to the sets.
            noise: Source of the sampling noise.
            samples: Samples of the estimator; None for those of training.
            coordinates: Flat indices of the items whose logits are needed; None for all.
            partial: Partial subsets `(m, total)`; the logits are then the gains there, `(m, total)`.

        Returns:
            The logits and how the inference ended.
        """
        if partial is not None:
            gains = bound.gains(partial)
            return MeanField(gains, None, gains.new_zeros(len(bound.sets)), 1)
        if config.options.method == CONDITIONAL:
            # From the probability 0 the one sample is the empty subset, so the logits are the gains there.
            return solve_bound(bound, Bernoulli(1, noise), OneStepMeanField(), None, 0.0, coordinates)
        if config.options.method == "direct":
            # The gradient of a modular function is the same at every subset, so one sample is exact.
            return solve_bound(bound, Bernoulli(1, noise), OneStepMeanField(), None, 0.5, coordinates)
        start: float | Tensor = 0.5
        if self.recognition is not None:
            with torch.no_grad():
                start = torch.sigmoid(self.recognition.start(bound.sets))
        estimator = ESTIMATORS[resolved(config.options.estimator)](samples or resolved(config.options.samples), noise)
        return solve_bound(bound, estimator, config.solver, config.scale, start, coordinates)


@final
@dataclass(frozen=True, eq=False)
class InferenceResult:
    """Mean logits of the items over the members, and for each set whether the inference of every member converged."""

    logits: Tensor
    converged: Tensor


@final
class ChoiceModel(nn.Module):
    """A model that maps features to logits: the mean over independently trained members.

    Args:
        config: The configuration of the model.
        phi: An item encoder of the user, copied to each member; None to build the one that the options name.
    """

    mean: Tensor
    deviation: Tensor
    compressed: Tensor

    def __init__(self, config: ModelConfig, phi: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        # In float64, so that features with a small spread far from 0, such as times, keep their digits.
        self.register_buffer("mean", torch.zeros(config.item_shape, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(config.item_shape, dtype=torch.float64))
        # Which features are scaled by quantiles, because a few values are far away.
        self.register_buffer("compressed", torch.zeros(config.item_shape, dtype=torch.bool))
        self.relative = None if config.relative is None else RelativeFeatures(config.relative)
        self.trees: BoostedTrees | None = None
        if config.trees:
            # Of an item without columns, each number is a quantity.
            of_relative = 0 if self.relative is None else self.relative.out_dim
            self.trees = BoostedTrees(config.parts or [Part(1)] * config.width, of_relative)
        # What was gathered from a set whose items are only in part given; None if sets are whole.
        self.contexts: list[Tensor] | None = None
        # The phi of a user may be trained already, so every member starts with the same copy of it.
        self.members = nn.ModuleList([Member(config, copy.deepcopy(phi)) for _ in range(config.members)])

    def fit_scaler(self, statistics: ItemStatistics, some: Sets, names: Sequence[str] | None = None) -> None:
        """Set the scale of each feature to that of the items of the training sets.

        Args:
            statistics: The statistics of the items.
            some: Training sets that are in memory; their items stand for all where quantiles are needed.
            names: The column of each number of an item, for messages.

        Raises:
            DataError: If the values of a feature are too large.
        """
        reads_tokens = any(member.function.phi.reads_tokens for member in self.each())
        if not statistics.count or reads_tokens:
            return
        if self.relative is not None:
            self.relative.fit(resolved(statistics.codes), statistics.count)
        if not self.config.options.standardize:
            return
        # Codes stay as they are.
        codes = self.config.codes.to(self.mean.device)
        moments = (statistics.mean, statistics.variance, statistics.largest)
        scale = fit_scale(some.values, moments, codes, name_features(names))
        # In the precision of the items, so that training and prediction subtract the same number.
        dtype = torch.promote_types(statistics.dtype, self.dtype)
        self.mean.copy_(scale.centre.to(dtype))
        self.deviation.copy_(scale.spread.to(dtype))
        self.compressed.copy_(scale.compressed)
        deviation = scale.spread.masked_fill(scale.spread.isinf(), 0)
        varying = deviation[(deviation > 0) & ~codes]
        if len(varying):
            spread = (deviation / varying.median()).clamp(1 / _MAX_SPREAD, _MAX_SPREAD).flatten()
            if self.config.all_parts is not None:
                spread = compared_scales(self.config.all_parts, spread)
            for member in self.each():
                if member.pairs is not None:
                    member.pairs.scale.copy_(spread)

    def start_as_pairs(self) -> None:
        """Make F, before training, its term for pairs alone, where it has one."""
        for member in self.each():
            if member.pairs is not None:
                start_at_zero(member.function)

    def start_as_trees(self) -> None:
        """Make F, before training, the scores of the trees alone."""
        for member in self.each():
            start_at_zero(member.function)
            if member.pairs is not None:
                member.pairs.start(0.0)

    def use_function(self, is_used: bool) -> None:
        """Use all of F, or the score of the trees and the term for pairs alone."""
        self.config = replace(self.config, is_function_used=is_used)
        for member in self.each():
            member.is_function_used = is_used

    def alone(self, number: int) -> ChoiceModel:
        """Return a model with one of the members, which shares all weights with this one."""
        other = copy.copy(self)
        other.config = replace(self.config, options=replace(self.config.options, members=1))
        # A copied module shares the dictionary of its parts.
        other._modules = {**self._modules, "members": nn.ModuleList([self.members[number]])}
        return other

    def each(self) -> list[Member]:
        """Return the members."""
        return [member for member in self.members if isinstance(member, Member)]

    def prepare(self, sets: Sets, folds: Tensor | None = None) -> Sets:
        """Return the sets with all that F reads of an item, in the dtype of the weights.

        That is its standardised numbers, its features relative to the set, and the score of the trees. Sets that are
        prepared stay as they are.

        Args:
            sets: The sets.
            folds: The fold whose trees score each item, `(total,)`; -1, or None for all, for the mean over the folds.
        """
        width = self.config.prepared_width
        if width > self.config.width and tuple(sets.item_shape) == (width,):
            return sets.with_values(sets.values.to(self.dtype))
        items = sets.values.to(torch.promote_types(sets.dtype, self.dtype))
        items = (items - self.mean.to(items.dtype)) / self.deviation.to(items.dtype)
        # Without a question to the host, which a captured CUDA graph could not ask.
        items = torch.where(self.compressed, compress(items), items)
        pieces = [items]
        relative = None if self.relative is None else self.relative(sets)
        if relative is not None:
            pieces.append(relative.to(items.dtype))
        if self.trees is not None:
            scores = self.trees(sets.values.double(), relative, folds)
            pieces.append(scores.to(items.dtype)[:, None])
        items = torch.cat(pieces, 1) if len(pieces) > 1 else items
        return sets.with_values(items.to(self.dtype))

    def bind(self, sets: Sets, known: tuple[Tensor, Tensor] | None = None) -> BoundAverage:
        """Return F for these sets: the mean of the functions of the members.

        Args:
            sets: The sets.
            known: Whether each item is known to be in the subset, and whether it is known to be out, `(total,)` each.
        """
        parts = bind_members(self, sets)
        return BoundAverage(parts if known is None else [BoundGiven(part, *known) for part in parts])

    def in_context(self, contexts: list[Tensor]) -> ChoiceModel:
        """Return a model, with the same weights, of items of one set of which every member has gathered a context."""
        other = copy.copy(self)
        other.contexts = [context.to(self.dtype) for context in contexts]
        return other

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights and of all results."""
        return next(self.parameters()).dtype

    def infer(self, bound: BoundAverage, noise: NoiseSource, *, samples: int | None = None) -> InferenceResult:
        """Run the inference of every member on its own function, and return the mean of the logits."""
        results = [
            member.infer(self.config, part, noise, samples=samples)
            for member, part in zip(self.each(), bound.parts, strict=True)
        ]
        if len(results) == 1:
            return InferenceResult(results[0].logits, results[0].converged)
        logits = torch.stack([result.logits for result in results]).mean(0)
        return InferenceResult(logits, torch.stack([result.converged for result in results]).all(0))
