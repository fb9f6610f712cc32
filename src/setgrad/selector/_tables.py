"""What the names in the options stand for. A new method, set function or estimator is one line in its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from setgrad import functions as fn
from setgrad import inference as inf
from setgrad.encoders import ITEM_ENCODERS, ItemEncoder
from setgrad.implicit import (
    GMRES,
    AdaptivePicard,
    Anderson,
    BiCGSTAB,
    Broyden,
    Direct,
    EquationSolver,
    LinearSolver,
    Neumann,
    Newton,
    NormalCG,
    OneStepAdjoint,
    Picard,
)

if TYPE_CHECKING:
    from setgrad.selector._model_config import ModelConfig

# Estimators of the multilinear extension, built from the number of samples and a source of noise.
ESTIMATORS: dict[str, Callable[[int, fn.NoiseSource], fn.ExtensionEstimator]] = {
    "bernoulli": fn.Bernoulli,
    "gaussian": fn.Gaussian,
    "pathwise": fn.Pathwise,
    "second-difference": fn.SecondDifference,
    "relaxed": lambda samples, noise: fn.Relaxed(),
    "exact": lambda samples, noise: fn.Exact(),
}
LearnedFunction = fn.DeepSetFunction | fn.HorseFunction | fn.InsetFunction | fn.ItemScores
# Set functions, built from the configuration of the model and phi.
FUNCTIONS: dict[str, Callable[[ModelConfig, nn.Module], LearnedFunction]] = {
    "deepset": lambda c, phi: fn.DeepSetFunction(c.feature_shape, phi, hidden=c.hidden, relation=c.relation),
    "inset": lambda c, phi: fn.InsetFunction(c.feature_shape, phi, hidden=c.hidden),
    "horse": lambda c, phi: fn.HorseFunction(c.feature_shape, phi, hidden=c.hidden, heads=c.options.heads),
}
# Encoders of the items: one alone, or its features followed by attention over the set.
CONTEXT, UMBC, PLUS_CONTEXT = "context", "umbc", "+context"
PHIS = (*ITEM_ENCODERS, *(name + PLUS_CONTEXT for name in ITEM_ENCODERS if name not in (CONTEXT, UMBC)))
# Networks that compute where mean field starts, for the methods that have one.
RECOGNITIONS: dict[str, Callable[[ItemEncoder, Sequence[int]], inf.Recognition]] = {
    "amortised": inf.IndependentRecognition,
    "copula": inf.CopulaRecognition,
    "free-copula": partial(inf.CopulaRecognition, marginal_entropy=True, free_variance=True),
}
# The method that trains F at partial subsets. Its inference is one step from what is given, by default nothing: exact.
CONDITIONAL = "conditional"
# Methods with which a large set may be read in chunks. The others have a second encoder, or no function of subsets.
CHUNKED_METHODS = (CONDITIONAL, "unrolled", "one-step", "implicit")
# A training step needs the direction of the gradient, not its last digits.
_ADJOINT = GMRES(tol=1e-3, restart=4, max_steps=8)
# With a full first step the batch norms converge at once, where a half step takes five. With a constant scale the first
# step makes no difference once the logits have grown.
_PICARD = AdaptivePicard(damping=1.0)
# Solvers of mean field by method, built from the number of steps. "direct" has a modular F: one step is exact.
SOLVERS: dict[str, Callable[[int], inf.MeanFieldSolver]] = {
    "implicit": lambda steps: inf.ImplicitMeanField(_PICARD, _ADJOINT, tol=1e-3, max_steps=steps, on_failure="mask"),
    "unrolled": inf.UnrolledMeanField,
    "one-step": inf.OneStepMeanField,
    "amortised": inf.OneStepMeanField,
    "copula": inf.OneStepMeanField,
    "free-copula": inf.OneStepMeanField,
    "direct": inf.OneStepMeanField,
    CONDITIONAL: inf.OneStepMeanField,
}
# Solvers of the equation of the implicit method.
FORWARD_SOLVERS: dict[str, EquationSolver] = {
    "adaptive-picard": _PICARD,
    "picard": Picard(),
    "anderson": Anderson(),
    "newton": Newton(),
    "broyden": Broyden(),
}
# Solvers of the linear system of its backward pass, built from the tolerance. CG and MINRES are not among them: they
# need a symmetric system, which samples do not give. Neumann and OneStepAdjoint are approximations.
BACKWARD_SOLVERS: dict[str, Callable[[float], LinearSolver]] = {
    "gmres": lambda tol: GMRES(tol=tol),
    "bicgstab": lambda tol: BiCGSTAB(tol=tol),
    "normal-cg": lambda tol: NormalCG(tol=tol),
    "direct": lambda tol: Direct(),
    "neumann": lambda tol: Neumann(terms=10),
    "one-step": lambda tol: OneStepAdjoint(),
}


def implicit_mean_field(
    usual: inf.ImplicitMeanField, *, forward: str | None, backward: str | None, tol: float | None
) -> inf.ImplicitMeanField:
    """Return a solver with other parts; None keeps a part.

    Args:
        usual: The solver.
        forward: Name of the solver of the equation.
        backward: Name of the solver of the backward pass.
        tol: Tolerance of both passes.
    """
    adjoint = usual.adjoint
    if backward is not None:
        adjoint = BACKWARD_SOLVERS[backward](usual.tol if tol is None else tol)
    elif tol is not None:
        adjoint = BACKWARD_SOLVERS["gmres"](tol)
    return replace(
        usual,
        solver=usual.solver if forward is None else FORWARD_SOLVERS[forward],
        adjoint=adjoint,
        tol=usual.tol if tol is None else tol,
    )


# Losses, built from the seed of an epoch.
LOSSES: dict[str, Callable[[int], inf.SubsetLoss]] = {
    "all": lambda seed: inf.AllItems(),
    "negatives": lambda seed: inf.SampledNegatives(fn.FreshNoise(seed)),
}
# Losses of the method "conditional".
PARTIAL_LOSSES: dict[str, inf.PartialSubsetLoss] = {
    "all": inf.PartialCrossEntropy(),
    "list": inf.NextItem(),
    "all+list": inf.WeightedSum(),
}
