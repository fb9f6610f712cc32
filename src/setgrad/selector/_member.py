"""One learned set function with its inference."""

from __future__ import annotations

import copy
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders import ContextItems, ItemEncoder, Stacked
from setgrad.errors import OptionError, parameter
from setgrad.functions import (
    Bernoulli,
    BoundSetFunction,
    DeepSetFunction,
    HorseFunction,
    InsetFunction,
    ItemScores,
    NoiseSource,
)
from setgrad.functions.item_encoder import make_item_encoder
from setgrad.inference import MeanField, OneStepMeanField, Recognition
from setgrad.inference.mean_field import solve_bound
from setgrad.selector._config import ModelConfig
from setgrad.selector._tables import CONTEXT, ESTIMATORS, FUNCTIONS, PLUS_CONTEXT, RECOGNITIONS


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
        encoder = _make_phi(config) if phi is None else phi
        if config.relation and getattr(encoder, "reads_tokens", False):
            raise OptionError(f"{parameter('relation')} compares numbers, and these items are letters; leave it out")
        if config.method == "direct":
            self.function: DeepSetFunction | ItemScores | HorseFunction | InsetFunction = ItemScores(
                config.item_shape, encoder, relation=config.relation
            )
        else:
            self.function = FUNCTIONS[config.options.function](config, encoder)
        self.recognition: Recognition | None = None
        if config.method in RECOGNITIONS:
            # A separate encoder: what tells where to start need not be what tells a good subset.
            second = _make_phi(config) if phi is None else make_item_encoder(config.item_shape, copy.deepcopy(phi))
            self.recognition = RECOGNITIONS[config.method](second, config.hidden)

    def infer(
        self,
        config: ModelConfig,
        bound: BoundSetFunction,
        noise: NoiseSource,
        *,
        samples: int | None = None,
        coordinates: Tensor | None = None,
    ) -> MeanField:
        """Run mean field on F.

        Args:
            config: The configuration of the model.
            bound: F, bound to the sets.
            noise: Source of the sampling noise.
            samples: Samples of the estimator; None for those of training.
            coordinates: Flat indices of the items whose logits are needed; None for all.

        Returns:
            The logits and how the inference ended.
        """
        if config.method == "direct":
            # The gradient of a modular function is the same at every subset, so one sample is exact.
            return solve_bound(bound, Bernoulli(1, noise), OneStepMeanField(), None, 0.5, coordinates)
        start: float | Tensor = 0.5
        if self.recognition is not None:
            with torch.no_grad():
                start = torch.sigmoid(self.recognition.start(bound.sets))
        estimator = ESTIMATORS[config.estimator](samples or config.options.samples, noise)
        return solve_bound(bound, estimator, config.solver, config.scale, start, coordinates)


def _make_phi(config: ModelConfig) -> ItemEncoder:
    """Build the item encoder that the options name."""
    options, name = config.options, config.phi or CONTEXT
    first, joined, _ = name.partition(PLUS_CONTEXT)
    if name != CONTEXT and not joined:
        return make_item_encoder(config.item_shape, name, options.dim)
    in_shape = options.dim if joined else config.item_shape
    context = ContextItems(in_shape, options.dim, layers=options.layers, heads=options.heads, slots=config.slots)
    return Stacked(make_item_encoder(config.item_shape, first, options.dim), context) if joined else context
