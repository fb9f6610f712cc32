"""One learned set function with its inference, and what names and numbers stand for which."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from numbers import Real
from typing import Any, final

import torch
from torch import Tensor, nn

from setgrad.encoders import ITEM_ENCODERS, ContextItems, ItemEncoder, Stacked
from setgrad.errors import OptionError, unknown_name
from setgrad.functions import (
    Bernoulli,
    BoundSetFunction,
    DeepSetFunction,
    Exact,
    ExtensionEstimator,
    Gaussian,
    HorseFunction,
    InsetFunction,
    ItemScores,
    NoiseSource,
    Pathwise,
)
from setgrad.functions.item_encoder import make_item_encoder
from setgrad.implicit import GMRES, AdaptivePicard
from setgrad.inference import (
    ConstantScale,
    CopulaRecognition,
    ImplicitMeanField,
    IndependentRecognition,
    MeanField,
    OneStepMeanField,
    Recognition,
    UnrolledMeanField,
)
from setgrad.inference.mean_field import MeanFieldSolver, solve_bound
from setgrad.inference.scales import SCALES, Scale

# Estimators of the multilinear extension by name.
ESTIMATORS: dict[str, Callable[[int, NoiseSource], ExtensionEstimator]] = {
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "pathwise": Pathwise,
    "exact": lambda samples, noise: Exact(),
}
# Set functions by name, made from the shape of an item, phi and the options.
FUNCTIONS: dict[str, Callable[[ModelConfig, nn.Module], DeepSetFunction | HorseFunction | InsetFunction]] = {
    "deepset": lambda c, phi: DeepSetFunction(c.item_shape, phi, hidden=c.hidden, relation=c.relation),
    "inset": lambda c, phi: InsetFunction(c.item_shape, phi, hidden=c.hidden),
    "horse": lambda c, phi: HorseFunction(c.item_shape, phi, hidden=c.hidden, heads=c.heads),
}
# What F sees of an item, by name: an encoder alone, or its features followed by attention over the set.
CONTEXT, AND_CONTEXT = "context", "+context"
PHIS = (*ITEM_ENCODERS, *(name + AND_CONTEXT for name in ITEM_ENCODERS if name != CONTEXT))
# Networks that say where mean field starts, for the methods that have one.
RECOGNITIONS: dict[str, Callable[[ItemEncoder, tuple[int, ...]], Recognition]] = {
    "amortised": IndependentRecognition,
    "copula": CopulaRecognition,
    "free-copula": partial(CopulaRecognition, marginal_entropy=True, free_variance=True),
}
# An epoch needs the direction of a gradient, not its last digits.
_ADJOINT = GMRES(tol=1e-3, restart=4, max_steps=8)
# A whole first step: under the norms of a batch it is the last one, where a half one takes five. With a constant scale
# it makes no difference once the logits have grown.
_STEPS = AdaptivePicard(damping=1.0)
# Inference methods by name: the solver that mean field runs with. "direct" has a modular F and needs one step.
SOLVERS: dict[str, Callable[[int], MeanFieldSolver]] = {
    "implicit": lambda steps: ImplicitMeanField(_STEPS, _ADJOINT, tol=1e-3, max_steps=steps, on_failure="mask"),
    "unrolled": UnrolledMeanField,
    "one-step": OneStepMeanField,
    "amortised": OneStepMeanField,
    "copula": OneStepMeanField,
    "free-copula": OneStepMeanField,
    "direct": OneStepMeanField,
}


@final
@dataclass(frozen=True)
class ModelConfig:
    """All that is needed, beside the weights, to build the model again."""

    method: str
    function: str
    item_shape: tuple[int, ...]
    phi: str | None
    dim: int
    layers: int
    heads: int
    slots: int | None
    hidden: tuple[int, ...]
    relation: int
    members: int
    estimator: str
    samples: int
    steps: int
    scale: str | float | None
    standardize: bool

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ModelConfig:
        """The inverse of `to_json`; models of the first versions had no relation."""
        shapes = {name: tuple(data[name]) for name in ("item_shape", "hidden")}
        return ModelConfig(**{"relation": 0, **data, **shapes})


@final
class Member(nn.Module):
    """A learned set function with the inference that it is trained for."""

    def __init__(self, config: ModelConfig, phi: nn.Module | None = None) -> None:
        super().__init__()
        encoder = make_phi(config) if phi is None else phi
        if config.relation and getattr(encoder, "reads_tokens", False):
            raise OptionError("relation compares numbers, and these items are letters; leave it out")
        if config.method == "direct":
            self.function: DeepSetFunction | ItemScores | HorseFunction | InsetFunction = ItemScores(
                config.item_shape, encoder, relation=config.relation
            )
        else:
            self.function = FUNCTIONS[config.function](config, encoder)
        self.recognition: Recognition | None = None
        if config.method in RECOGNITIONS:
            # Eyes of its own: what tells where to start need not be what tells a good subset.
            own = make_phi(config) if phi is None else make_item_encoder(config.item_shape, copy.deepcopy(phi))
            self.recognition = RECOGNITIONS[config.method](own, config.hidden)

    def infer(
        self,
        config: ModelConfig,
        bound: BoundSetFunction,
        noise: NoiseSource,
        *,
        samples: int | None = None,
        coordinates: Tensor | None = None,
    ) -> MeanField:
        """Run mean field on F, bound to its sets, with the method that the configuration names."""
        if config.method == "direct":
            # The gradient of a modular function is the same at every subset: one sample is exact.
            return solve_bound(bound, Bernoulli(1, noise), OneStepMeanField(), None, 0.5, coordinates)
        start: float | Tensor = 0.5
        if self.recognition is not None:
            with torch.no_grad():
                start = torch.sigmoid(self.recognition.start(bound.sets))
        estimator = make_estimator(config.estimator, samples or config.samples, noise)
        return solve_bound(bound, estimator, make_solver(config), make_scale(config.scale), start, coordinates)


def make_solver(config: ModelConfig) -> MeanFieldSolver:
    """Make the solver that a method names."""
    if config.method not in SOLVERS:
        raise unknown_name("method", config.method, SOLVERS)
    if config.method == "direct" and (make_scale(config.scale) is not None or config.function != "deepset"):
        raise OptionError(
            "method='direct' scores every item by itself: it has no scale and no set function to choose; leave scale "
            "and function out, or choose another method"
        )
    smooth = config.estimator != "bernoulli"
    if config.method == "unrolled" and not smooth and config.steps > 1:
        raise OptionError(
            f"method='unrolled' with steps={config.steps} needs a smooth estimator: use estimator='gaussian', "
            "or method='one-step', which is what the published DiffMF computes with Bernoulli samples"
        )
    if config.method == "implicit" and not smooth:
        raise OptionError(
            "method='implicit' needs a smooth estimator: leave it out, or use estimator='gaussian', 'pathwise' or "
            "'exact'"
        )
    return SOLVERS[config.method](config.steps)


def make_estimator(name: str, samples: int, noise: NoiseSource) -> ExtensionEstimator:
    """Make the estimator of the multilinear extension that a name stands for."""
    if name not in ESTIMATORS:
        raise unknown_name("estimator", name, ESTIMATORS)
    return ESTIMATORS[name](samples, noise)


def make_scale(scale: str | float | None) -> Scale | None:
    """Make the scale that a name or a number stands for."""
    if scale is None or scale == "none":
        return None
    if isinstance(scale, str):
        if scale not in SCALES:
            raise unknown_name("scale", scale, ["none", *SCALES, "a positive number"])
        return SCALES[scale]
    if not isinstance(scale, Real) or isinstance(scale, bool):
        raise unknown_name("scale", scale, ["none", *SCALES, "a positive number"])
    return ConstantScale(float(scale))


def make_phi(config: ModelConfig) -> ItemEncoder:
    """Make the encoder of items that the options name."""
    name = config.phi or CONTEXT
    first, joined, _ = name.partition(AND_CONTEXT)
    if name != CONTEXT and not joined:
        return make_item_encoder(config.item_shape, name, config.dim)
    read = config.dim if joined else config.item_shape
    context = ContextItems(read, config.dim, layers=config.layers, heads=config.heads, slots=config.slots)
    return Stacked(make_item_encoder(config.item_shape, first, config.dim), context) if joined else context
