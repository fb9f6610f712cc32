"""The trainable part of a selector: its configuration, its members and how they infer logits."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from setgrad.columns._module import ColumnItems
from setgrad.columns._part import Part, compared_scales, count_features
from setgrad.columns._relative import RelativeFeatures
from setgrad.encoders import ContextItems, ItemEncoder, Stacked
from setgrad.errors import OptionError, parameter
from setgrad.functions import Bernoulli, BoundSetFunction, ItemScores, NoiseSource, PairScores, SetFunction
from setgrad.functions._neural import make_item_encoder, start_at_zero
from setgrad.functions.average import BoundAverage
from setgrad.functions.given import BoundGiven
from setgrad.functions.pair_scores import BoundSum
from setgrad.inference import ConstantScale, ImplicitMeanField, MeanField, OneStepMeanField, Recognition
from setgrad.inference.mean_field import MeanFieldSolver, solve_bound
from setgrad.inference.scales import SCALES, Scale
from setgrad.selector._options import SelectorOptions
from setgrad.selector._scaler import compress, fit_scale, name_features
from setgrad.selector._tables import (
    CONDITIONAL,
    CONTEXT,
    ESTIMATORS,
    FUNCTIONS,
    PLUS_CONTEXT,
    RECOGNITIONS,
    SOLVERS,
    LearnedFunction,
    implicit_mean_field,
)
from setgrad.sets import Sets

Value = TypeVar("Value")
# Alike items are alike in the features that vary most, as in vectors of an encoder. But a column in a small unit must
# not decide alone, so the scale of a feature is at most so many times the median, or at least the inverse of it.
_MAX_SPREAD = 2.0


@final
@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model.

    Attributes:
        options: The options, with every None that concerns the model replaced by the value in use.
        item_shape: Shape of an item.
        slots: Number of induced points of the attention; None for full attention.
        parts: What the numbers of an item are, if they come from the columns of a table; None for quantities.
    """

    options: SelectorOptions
    item_shape: tuple[int, ...]
    slots: int | None
    parts: tuple[Part, ...] | None = None

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of the features of an item: its numbers, with vectors in place of codes."""
        return self.item_shape if self.all_parts is None else (count_features(self.all_parts),)

    @property
    def relative(self) -> tuple[Part, ...] | None:
        """What the numbers of an item are, if it also has features relative to its set."""
        if not self.options.relative:
            return None
        return self.parts or (Part.vector(math.prod(self.item_shape)),)

    @cached_property
    def all_parts(self) -> tuple[Part, ...] | None:
        """What the numbers of an item and its features relative to the set are; None for quantities alone."""
        if self.relative is None:
            return self.parts
        return (*self.relative, Part(RelativeFeatures(self.relative).out_dim, context=True))

    @property
    def facts(self) -> list[int]:
        """The features of an item that are facts of its set, from columns of a table."""
        return self._places(lambda part: part.context)

    @property
    def own(self) -> list[int]:
        """The features of an item that facts of its set act on: its categories."""
        # With numbers too, score and size were worse where facts do not matter.
        return self._places(lambda part: not part.context and part.codes > 0 and not part.words)

    def _places(self, is_wanted: Callable[[Part], bool]) -> list[int]:
        places: list[int] = []
        start = 0
        for part in self.parts or ():
            places += range(start, start + part.features) if is_wanted(part) else ()
            start += part.features
        return places

    @property
    def codes(self) -> Tensor:
        """Whether each number of an item is a code, with the shape of an item."""
        if self.parts is None:
            return torch.zeros(self.item_shape, dtype=torch.bool)
        return torch.cat([torch.full((part.width,), part.codes > 0) for part in self.parts])

    @property
    def phi(self) -> str | None:
        """Name of the item encoder; None for a module of the user."""
        return None if isinstance(self.options.phi, nn.Module) else self.options.phi

    @property
    def members(self) -> int:
        """Number of members."""
        return resolved(self.options.members)

    @property
    def relation(self) -> int:
        """Rank of the relation."""
        return resolved(self.options.relation)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of the hidden layers of F."""
        return tuple(resolved(self.options.hidden))

    @property
    def pairs(self) -> bool:
        """Whether F has a term for pairs."""
        return resolved(self.options.pairs)

    @cached_property
    def solver(self) -> MeanFieldSolver:
        """The solver of mean field."""
        options = self.options
        solver = SOLVERS[options.method](resolved(options.steps))
        if not isinstance(solver, ImplicitMeanField):
            return solver
        return implicit_mean_field(solver, forward=options.forward, backward=options.backward, tol=options.tol)

    @cached_property
    def scale(self) -> Scale | None:
        """The scale of the logits."""
        scale = self.options.resolved_scale
        return SCALES[scale] if isinstance(scale, str) else None if scale is None else ConstantScale(float(scale))

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelConfig:
        # Nothing in it changes, and a module that was passed as phi is not copied with every copy of the model.
        return self

    def with_options(self, **changes: Any) -> ModelConfig:
        """Return a copy with other options."""
        return replace(self, options=replace(self.options, **changes))


def resolved(value: Value | None) -> Value:
    """Return a value that is known after None was resolved."""
    assert value is not None
    return value


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
        encoder = _make_phi(config) if phi is None else phi
        if config.relation and getattr(encoder, "reads_tokens", False):
            raise OptionError(f"{parameter('relation')} compares numbers, and these items are letters; leave it out")
        if config.pairs and getattr(encoder, "reads_tokens", False):
            raise OptionError(f"{parameter('pairs')} compare numbers, and these items are letters; leave them out")
        if config.options.method == "direct":
            self.function: LearnedFunction = ItemScores(config.feature_shape, encoder, relation=config.relation)
        else:
            self.function = FUNCTIONS[config.options.function](config, encoder)
        self.pairs = PairScores(config.feature_shape) if config.pairs else None
        self.recognition: Recognition | None = None
        if config.options.method in RECOGNITIONS:
            # A separate encoder: what tells where to start need not be what tells a good subset.
            second = _make_phi(config) if phi is None else make_item_encoder(config.feature_shape, copy.deepcopy(phi))
            self.recognition = RECOGNITIONS[config.options.method](second, config.hidden)

    def bind(self, items: Sets) -> BoundSetFunction:
        """Return F for sets of standardised items."""
        if self.columns is not None:
            items = items.with_values(self.columns(items.values))
        bound = self.function.bind(items)
        return bound if self.pairs is None else BoundSum([bound, self.pairs.bind(items)])

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


def _make_phi(config: ModelConfig) -> ItemEncoder:
    """Build the item encoder that the options name."""
    options, name = config.options, config.phi or CONTEXT
    first, joined, _ = name.partition(PLUS_CONTEXT)
    if name != CONTEXT and not joined:
        return make_item_encoder(config.feature_shape, name, options.dim)
    in_shape = options.dim if joined else config.feature_shape
    context = ContextItems(in_shape, options.dim, layers=options.layers, heads=options.heads, slots=config.slots)
    return Stacked(make_item_encoder(config.feature_shape, first, options.dim), context) if joined else context


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
        # The phi of a user may be trained already, so every member starts with the same copy of it.
        self.members = nn.ModuleList([Member(config, copy.deepcopy(phi)) for _ in range(config.members)])

    def fit_scaler(self, sets: Sets, names: Sequence[str] | None = None) -> None:
        """Compute the scale of each feature over the items of the training sets.

        Args:
            sets: The training sets.
            names: The column of each number of an item, for messages.

        Raises:
            DataError: If the values of a feature are too large.
        """
        reads_tokens = any(member.function.phi.reads_tokens for member in self.each())
        if not sets.layout.total or reads_tokens:
            return
        if self.relative is not None:
            self.relative.fit(sets)
        if not self.config.options.standardize:
            return
        # Codes stay as they are.
        codes = self.config.codes.to(sets.device)
        scale = fit_scale(sets.values.double(), codes, name_features(names))
        # In the precision of the items, so that training and prediction subtract the same number.
        dtype = torch.promote_types(sets.dtype, self.dtype)
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

    def standardised(self, sets: Sets) -> Sets:
        """Return the sets with standardised features, in the dtype of the weights."""
        items = sets.values.to(torch.promote_types(sets.dtype, self.dtype))
        items = (items - self.mean.to(items.dtype)) / self.deviation.to(items.dtype)
        if bool(self.compressed.any()):
            items = torch.where(self.compressed, compress(items), items)
        if self.relative is not None:
            items = torch.cat([items, self.relative(sets).to(items.dtype)], 1)
        return sets.with_values(items.to(self.dtype))

    def bind(self, sets: Sets, known: tuple[Tensor, Tensor] | None = None) -> BoundAverage:
        """Return F for these sets: the mean of the functions of the members.

        Args:
            sets: The sets.
            known: Whether each item is known to be in the subset, and whether it is known to be out, `(total,)` each.
        """
        items = self.standardised(sets)
        parts = [member.bind(items) for member in self.each()]
        return BoundAverage(parts if known is None else [BoundGiven(part, *known) for part in parts])

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


@final
class LearnedSetFunction(SetFunction):
    """F of a fitted selector, for sets with raw features.

    Args:
        model: The model.
        exact_model: Returns the same model in double precision, for sets in double precision.
        check: Checks sets and returns them in the canonical form.
    """

    def __init__(
        self, model: ChoiceModel, exact_model: Callable[[], ChoiceModel], check: Callable[[Sets], Sets]
    ) -> None:
        self.model, self.exact_model, self.check = model, exact_model, check

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return F for these sets, on the device of the model."""
        sets = self.check(sets)
        model = self.exact_model() if sets.dtype == torch.float64 else self.model
        return model.bind(sets.to(model.mean.device))
