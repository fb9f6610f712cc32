"""Mean-field inference: the probabilities psi that solve psi = sigmoid(gradient of the multilinear extension).

The iteration starts at a constant and takes a fixed number of steps. What is differentiated is a choice of its own:
the last step alone, or all of them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, unknown_name
from setgrad.functions import BoundSetFunction, Estimator, SetFunction, as_set_function
from setgrad.inference.scales import SCALES, Scale
from setgrad.sets import Sets, segment_max


@final
@dataclass(frozen=True, eq=False)
class MeanField:
    """What inference found.

    `logits` belong to all items, or to the `coordinates` that were asked for; `value` is their sigmoid. `before` holds
    the probabilities that the last step started from.
    """

    logits: Tensor
    coordinates: Tensor | None
    before: Sets
    steps: int

    @property
    def value(self) -> Tensor:
        """Probability of each item to be chosen."""
        return torch.sigmoid(self.logits)

    @property
    def residual(self) -> Tensor:
        """For each set the largest change of a probability in the last step: far from 0, it had not settled."""
        places = slice(None) if self.coordinates is None else self.coordinates
        before = self.before.values.detach()
        change = torch.zeros_like(before)
        change[places] = (self.value.detach() - before[places]).abs().to(before.dtype)
        return segment_max(change, self.before, empty=0.0)


class MeanFieldSolver(abc.ABC):
    """How many steps to take, and which of them to differentiate."""

    steps: int

    @abc.abstractmethod
    def before_last(self, step: Callable[[Tensor], Tensor], psi: Tensor, *, smooth: bool) -> Tensor:
        """Take all steps but the last, which is the same for everybody."""


@final
@dataclass(frozen=True)
class OneStep(MeanFieldSolver):
    """Take `steps` steps and differentiate the last one only, whatever the estimator.

    With `Bernoulli` samples this is what the published DiffMF computes, without the graph that it builds in vain.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def before_last(self, step: Callable[[Tensor], Tensor], psi: Tensor, *, smooth: bool) -> Tensor:
        """Iterate without a graph."""
        with torch.no_grad():
            for _ in range(self.steps - 1):
                psi = step(psi)
        return psi


@final
@dataclass(frozen=True)
class Unrolled(MeanFieldSolver):
    """Take `steps` steps and differentiate through all of them. More than one step needs a smooth estimator."""

    steps: int = 1

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def before_last(self, step: Callable[[Tensor], Tensor], psi: Tensor, *, smooth: bool) -> Tensor:
        """Iterate with the graph kept."""
        if self.steps > 1 and not smooth and torch.is_grad_enabled():
            raise OptionError(
                f"{self.steps} unrolled steps cannot be differentiated through Bernoulli samples, whose derivative "
                "with respect to psi is 0: use Gaussian(m) or Exact(), or OneStep(steps) for the last step alone"
            )
        for _ in range(self.steps - 1):
            psi = step(psi)
        return psi


def mean_field(
    function: SetFunction,
    sets: Sets,
    *,
    estimator: Estimator,
    solver: MeanFieldSolver | None = None,
    scale: Scale | str | None = None,
    start: float = 0.5,
    coordinates: Tensor | None = None,
) -> MeanField:
    """Infer how likely each item is to be chosen.

    `scale` is None, a `Scale`, or the name of one ("l2"). `coordinates` (flat item numbers) limits the last step to the
    items whose probability will be read.

    Example:
        >>> import setgrad as sg
        >>> sets = sg.Sets.from_list([[[0.0], [3.0]]])
        >>> found = mean_field(sg.functions.Modular(), sets, estimator=sg.functions.Exact())
        >>> [round(p, 3) for p in found.value.tolist()]
        [0.5, 0.953]
    """
    if isinstance(scale, str):
        if scale not in SCALES:
            raise unknown_name("scale", scale, SCALES)
        scale = SCALES[scale]
    bound = as_set_function(function).bind(sets)
    return solve_bound(bound, estimator, solver or OneStep(), scale, start, coordinates)


def solve_bound(
    bound: BoundSetFunction,
    estimator: Estimator,
    solver: MeanFieldSolver,
    scale: Scale | None,
    start: float,
    coordinates: Tensor | None,
) -> MeanField:
    """Run mean field on a function that is already bound to its sets."""
    layout = bound.sets.layout
    if not 0 <= start <= 1:
        raise OptionError(f"mean field starts at a probability between 0 and 1, not {start}")

    def logits(psi: Tensor, wanted: Tensor | None) -> Tensor:
        if scale is None:
            return estimator.gradient(bound, psi, wanted)
        # A scale looks at the gradient of a whole set, so nothing is saved by asking for a part of it.
        scaled = scale(estimator.gradient(bound, psi), layout)
        return scaled if wanted is None else scaled[wanted]

    kind = bound.sets.dtype if bound.sets.dtype.is_floating_point else torch.get_default_dtype()
    psi = torch.full((layout.total,), start, dtype=kind, device=layout.device)
    psi = solver.before_last(lambda p: torch.sigmoid(logits(p, None)), psi, smooth=estimator.smooth)
    return MeanField(logits(psi, coordinates), coordinates, bound.sets.with_values(psi), solver.steps)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise OptionError(f"mean field needs at least 1 step, not {steps}")
