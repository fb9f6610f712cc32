"""What the names in the options stand for. A new method, set function or estimator is one line in its table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from setgrad.encoders import ITEM_ENCODERS, ItemEncoder
from setgrad.functions import (
    Bernoulli,
    DeepSetFunction,
    Exact,
    ExtensionEstimator,
    FreshNoise,
    Gaussian,
    HorseFunction,
    InsetFunction,
    NoiseSource,
    Pathwise,
)
from setgrad.implicit import GMRES, AdaptivePicard
from setgrad.inference import (
    AllItems,
    CopulaRecognition,
    ImplicitMeanField,
    IndependentRecognition,
    OneStepMeanField,
    Recognition,
    SampledNegatives,
    SubsetLoss,
    UnrolledMeanField,
)
from setgrad.inference.mean_field import MeanFieldSolver

if TYPE_CHECKING:
    from setgrad.selector._model import ModelConfig

# Estimators of the multilinear extension, built from the number of samples and a source of noise.
ESTIMATORS: dict[str, Callable[[int, NoiseSource], ExtensionEstimator]] = {
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "pathwise": Pathwise,
    "exact": lambda samples, noise: Exact(),
}
# Set functions, built from the configuration of the model and phi.
FUNCTIONS: dict[str, Callable[[ModelConfig, nn.Module], DeepSetFunction | HorseFunction | InsetFunction]] = {
    "deepset": lambda c, phi: DeepSetFunction(c.item_shape, phi, hidden=c.options.hidden, relation=c.relation),
    "inset": lambda c, phi: InsetFunction(c.item_shape, phi, hidden=c.options.hidden),
    "horse": lambda c, phi: HorseFunction(c.item_shape, phi, hidden=c.options.hidden, heads=c.options.heads),
}
# Encoders of the items: one alone, or its features followed by attention over the set.
CONTEXT, PLUS_CONTEXT = "context", "+context"
PHIS = (*ITEM_ENCODERS, *(name + PLUS_CONTEXT for name in ITEM_ENCODERS if name != CONTEXT))
# Networks that compute where mean field starts, for the methods that have one.
RECOGNITIONS: dict[str, Callable[[ItemEncoder, tuple[int, ...]], Recognition]] = {
    "amortised": IndependentRecognition,
    "copula": CopulaRecognition,
    "free-copula": partial(CopulaRecognition, marginal_entropy=True, free_variance=True),
}
# A training step needs the direction of the gradient, not its last digits.
_ADJOINT = GMRES(tol=1e-3, restart=4, max_steps=8)
# With a full first step the batch norms converge at once, where a half step takes five. With a constant scale the first
# step makes no difference once the logits have grown.
_PICARD = AdaptivePicard(damping=1.0)
# Solvers of mean field by method, built from the number of steps. "direct" has a modular F: one step is exact.
SOLVERS: dict[str, Callable[[int], MeanFieldSolver]] = {
    "implicit": lambda steps: ImplicitMeanField(_PICARD, _ADJOINT, tol=1e-3, max_steps=steps, on_failure="mask"),
    "unrolled": UnrolledMeanField,
    "one-step": OneStepMeanField,
    "amortised": OneStepMeanField,
    "copula": OneStepMeanField,
    "free-copula": OneStepMeanField,
    "direct": OneStepMeanField,
}
# Losses, built from the seed of an epoch.
LOSSES: dict[str, Callable[[int], SubsetLoss]] = {
    "all": lambda seed: AllItems(),
    "negatives": lambda seed: SampledNegatives(FreshNoise(seed)),
}
