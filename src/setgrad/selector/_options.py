"""The options of a selector. Each is declared once, with its type, its allowed values and its default.

`SubsetSelector` stores the options as they are passed, `SelectorOptions` is their validated form, and the command line
and the saved file read the same declarations. The help texts are the docstring of `SubsetSelector`.
"""

from __future__ import annotations

import abc
import math
import types
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from functools import cache
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Union, final, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import nn

from setgrad.errors import OptionError, parameter, unknown_name
from setgrad.inference.scales import SCALES
from setgrad.selector._tables import (
    BACKWARD_SOLVERS,
    CONDITIONAL,
    ESTIMATORS,
    FORWARD_SOLVERS,
    FUNCTIONS,
    LOSSES,
    PARTIAL_LOSSES,
    PHIS,
    SOLVERS,
)


@final
@dataclass(frozen=True)
class Allowed:
    """The allowed values of a type: strings from a list, or numbers from a range.

    Attributes:
        choices: The allowed strings.
        minimum: The smallest allowed number.
        above: A number that a value must exceed.
        below: A number that a value must stay below.
    """

    choices: tuple[str, ...] = ()
    minimum: float = -math.inf
    above: float = -math.inf
    below: float = math.inf

    @property
    def has_range(self) -> bool:
        """Whether numbers are limited."""
        return max(self.minimum, self.above) > -math.inf

    @property
    def range_text(self) -> str:
        """The range in words."""
        if self.below == math.inf:
            return f"above {self.above}" if self.minimum == -math.inf else f"of at least {self.minimum}"
        if self.minimum == -math.inf:
            return f"between {self.above} and {self.below}"
        # 2**64 is easier to read than its digits.
        below = f"2**{int(self.below).bit_length() - 1}" if self.below >= 2**32 else self.below
        return f"of at least {self.minimum} and below {below}"

    def contains(self, number: float) -> bool:
        """Return whether a number is finite and in the range."""
        return math.isfinite(number) and self.minimum <= number and self.above < number < self.below


PositiveInt = Annotated[int, Allowed(minimum=1)]
# Above all sense, so that the file of a stranger cannot keep a prediction busy for days.
Steps = Annotated[int, Allowed(minimum=1, below=2**14)]
Samples = Annotated[int, Allowed(minimum=1, below=2**14)]
NonNegativeInt = Annotated[int, Allowed(minimum=0)]
PositiveInts = Annotated[Sequence[int], Allowed(minimum=1)]
Seed = Annotated[int, Allowed(minimum=0, below=2**64)]
PositiveFloat = Annotated[float, Allowed(above=0)]
NonNegativeFloat = Annotated[float, Allowed(minimum=0)]
DecayRate = Annotated[float, Allowed(minimum=0, below=1)]
Fraction = Annotated[float, Allowed(above=0, below=1)]
MethodName = Annotated[str, Allowed(tuple(SOLVERS))]
FunctionName = Annotated[str, Allowed(tuple(FUNCTIONS))]
PhiName = Annotated[str, Allowed(PHIS)]
AttentionName = Annotated[str, Allowed(("auto", "full", "induced"))]
ChunkGradientName = Annotated[str, Allowed(("exact", "sample"))]
EstimatorName = Annotated[str, Allowed(tuple(ESTIMATORS))]
ScaleName = Annotated[str, Allowed(("none", *SCALES))]
ForwardName = Annotated[str, Allowed(tuple(FORWARD_SOLVERS))]
BackwardName = Annotated[str, Allowed(tuple(BACKWARD_SOLVERS))]
LossName = Annotated[str, Allowed(tuple(LOSSES | PARTIAL_LOSSES))]
# Subsets of a training step, for mean field and for the method "conditional".
_SAMPLES, _PARTIAL_SUBSETS = 5, 4


@final
@dataclass(frozen=True)
class Option:
    """The declaration of one option: its name, the types and values that are allowed, and its default."""

    name: str
    kinds: tuple[Any, ...]
    default: Any
    allowed: Allowed = Allowed()

    def check(self, value: Any) -> None:
        """Check one value.

        Raises:
            OptionError: If the value has the wrong type or is not allowed.
        """
        if value is None and type(None) in self.kinds:
            return
        if isinstance(value, nn.Module) and nn.Module in self.kinds:
            return
        if self.allowed.choices:
            if isinstance(value, str) and value in self.allowed.choices:
                return
            if not self._is_number(value):
                numbers = [self._range] if self.allowed.has_range else []
                raise unknown_name(self.name, value, [*self.allowed.choices, *numbers])
        if Path in self.kinds:
            if not isinstance(value, str | PathLike):
                raise self._error("the path of a file", value)
        elif bool in self.kinds:
            if not isinstance(value, bool | np.bool_):
                raise self._error("True or False", value)
        elif Sequence[int] in self.kinds:
            if not isinstance(value, Sequence) or not value or not all(self._is_allowed(entry) for entry in value):
                raise self._error(f"a tuple such as (256,), in which every entry is {self._range}", value)
        elif self.kinds == (int,) and not self.allowed.has_range:
            if not isinstance(value, Integral | np.bool_):
                raise self._error("a whole number", value)
        elif self.allowed.has_range and not self._is_allowed(value):
            raise self._error(("None or " if type(None) in self.kinds else "") + self._range, value)

    @property
    def _range(self) -> str:
        return f"{'a number' if float in self.kinds else 'a whole number'} {self.allowed.range_text}"

    def _is_number(self, value: Any) -> bool:
        # A bool is an int in Python, but never meant as a number.
        return isinstance(value, Real if float in self.kinds else Integral) and not isinstance(value, bool)

    def _is_allowed(self, value: Any) -> bool:
        return self._is_number(value) and self.allowed.contains(value)

    def _error(self, expected: str, value: Any) -> OptionError:
        return OptionError(f"{parameter(self.name)} must be {expected}, not {value!r}")


@dataclass(kw_only=True, repr=False)
class AbstractOptions(abc.ABC):  # noqa: B024, there is nothing to override
    """The options as fields, which `SubsetSelector` and `SelectorOptions` inherit."""

    method: MethodName = CONDITIONAL
    function: FunctionName = "deepset"
    phi: PhiName | nn.Module = "context"
    dim: PositiveInt = 128
    layers: NonNegativeInt = 2
    heads: PositiveInt = 4
    attention: AttentionName = "auto"
    hidden: PositiveInts | None = None
    relation: NonNegativeInt | None = None
    pairs: bool | None = None
    half: bool | None = None
    relative: bool | None = None
    trees: bool | None = None
    members: PositiveInt | None = None
    estimator: EstimatorName | None = None
    samples: Samples | None = None
    predict_samples: Samples | None = None
    chunk_size: PositiveInt = 2**13
    chunk_gradient: ChunkGradientName = "exact"
    steps: Steps | None = None
    forward: ForwardName | None = None
    backward: BackwardName | None = None
    tol: PositiveFloat | None = None
    scale: ScaleName | PositiveFloat | None = None
    loss: LossName | None = None
    learning_rate: PositiveFloat | None = None
    weight_decay: NonNegativeFloat = 0.1
    batch_size: PositiveInt | None = None
    max_epochs: PositiveInt | None = None
    max_time: PositiveFloat | None = None
    patience: PositiveInt | None = None
    clip: PositiveFloat = 1.0
    average: DecayRate = 0.98
    validation_fraction: Fraction = 0.2
    standardize: bool = True
    checkpoint: str | Path | None = None
    checkpoint_minutes: PositiveFloat = 10.0
    device: str | torch.device | None = None
    random_state: Seed | None = None
    # Without a range, because True and False are common values.
    verbose: int = 1

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name; `deep` has no effect, scikit-learn needs it."""
        return {declared.name: getattr(self, declared.name) for declared in declared_options()}

    def __repr__(self) -> str:
        # Compared as text, because an array has no single truth value.
        changed = [f"{o.name}={v!r}" for o in declared_options() if repr(v := getattr(self, o.name)) != repr(o.default)]
        return f"{type(self).__name__}({', '.join(changed)})"


@final
@dataclass(kw_only=True, repr=False, unsafe_hash=True)
class SelectorOptions(AbstractOptions):
    """Validated options of a `SubsetSelector`, which cannot be changed.

    The arguments are those of `SubsetSelector`. `dataclasses.replace` returns a validated copy with other values.

    Raises:
        OptionError: If a value is not allowed, or two values do not go together.

    Examples:
        >>> SelectorOptions(dim=64, layers=1)
        SelectorOptions(dim=64, layers=1)
        >>> SelectorOptions(dim=0)
        Traceback (most recent call last):
        setgrad.errors.OptionError: dim must be a whole number of at least 1, not 0
    """

    def __post_init__(self) -> None:
        for declared in declared_options():
            declared.check(getattr(self, declared.name))
        # A list could be changed, and has no hash.
        object.__setattr__(self, "hidden", None if self.hidden is None else tuple(self.hidden))
        self._check_combinations()

    def __setattr__(self, name: str, value: Any) -> None:
        # A dataclass cannot be frozen if its base, which `SubsetSelector` shares, is not: each field is set once.
        if name in self.__dict__ or name not in {declared.name for declared in declared_options()}:
            raise FrozenInstanceError(f"cannot assign to {name!r}; dataclasses.replace makes a copy with other options")
        object.__setattr__(self, name, value)

    @property
    def resolved_estimator(self) -> str:
        """Name of the estimator after None is resolved."""
        return self.estimator or ("gaussian" if self.method == "implicit" else "bernoulli")

    @property
    def resolved_scale(self) -> str | float | None:
        """The scale, None for the string "none"."""
        return None if self.scale == "none" else self.scale

    @property
    def resolved_predict_samples(self) -> int:
        """Samples of a prediction after None is resolved: more than in training make the result more stable."""
        return self.predict_samples or 4 * self.resolved_samples

    @property
    def resolved_samples(self) -> int:
        """Subsets of a training step after None is resolved."""
        return self.samples or (_PARTIAL_SUBSETS if self.method == CONDITIONAL else _SAMPLES)

    @property
    def resolved_loss(self) -> str:
        """Name of the loss after None is resolved."""
        return self.loss or ("all+list" if self.method == CONDITIONAL else "all")

    def _check_combinations(self) -> None:
        is_smooth = self.resolved_estimator != "bernoulli"
        problem = None
        if self.relation and self.function != "deepset":
            problem = (
                f"{{function}}={self.function!r} has no relation; leave out {{relation}}, or use {{function}}='deepset'"
            )
        elif self.relative and not (isinstance(self.phi, str) and self.phi == "context"):
            problem = "{relative} needs {phi}='context'; leave out {relative}, or use that phi"
        elif self.trees and not (isinstance(self.phi, str) and self.phi == "context"):
            problem = "{trees} read vectors and columns of a table, as {phi}='context' does; leave out {trees}"
        elif self.method == "direct" and self.pairs:
            problem = "{method}='direct' scores every item by itself; leave out {pairs}, or choose another method"
        elif self.method == "direct" and (self.resolved_scale is not None or self.function != "deepset"):
            problem = (
                "{method}='direct' scores every item by itself: it has no scale and no set function to choose; leave "
                "out {scale} and {function}, or choose another method"
            )
        elif self.method == "unrolled" and not is_smooth and (self.steps or 1) > 1:
            problem = (
                f"{{method}}='unrolled' with {{steps}}={self.steps} needs a smooth estimator: use "
                "{estimator}='gaussian', or {method}='one-step', which is what the published DiffMF computes with "
                "Bernoulli samples"
            )
        elif self.method == "implicit" and not is_smooth:
            problem = (
                "{method}='implicit' needs a smooth estimator: leave out {estimator}, or use {estimator}='gaussian', "
                "'pathwise', 'second-difference', 'relaxed' or 'exact'"
            )
        elif self.resolved_loss not in (PARTIAL_LOSSES if self.method == CONDITIONAL else LOSSES):
            allowed = " or ".join(repr(name) for name in (PARTIAL_LOSSES if self.method == CONDITIONAL else LOSSES))
            problem = (
                f"{{method}}={self.method!r} has no {{loss}}={self.loss!r}; use {{loss}}={allowed}, or leave it out"
            )
        elif self.method == CONDITIONAL and any(
            x is not None for x in (self.estimator, self.steps, self.predict_samples)
        ):
            problem = (
                "{estimator}, {steps} and {predict_samples} are parts of mean field, which {method}='conditional' does "
                "not use; leave them out, or choose another method"
            )
        elif self.method != CONDITIONAL and self.half:
            problem = "{half} is a part of {method}='conditional'; leave it out, or use that method"
        elif self.half and self.samples is not None and self.samples < 3:
            problem = "{half} takes one of the {samples}; use {samples}=3 or more, or leave out {half}"
        elif self.method == CONDITIONAL and self.resolved_scale is not None:
            problem = "{method}='conditional' has no scale; leave out {scale}, or choose another method"
        elif self.method != "implicit" and any(part is not None for part in (self.forward, self.backward, self.tol)):
            problem = (
                "{forward}, {backward} and {tol} are parts of {method}='implicit'; leave them out, or use that method"
            )
        elif self.checkpoint is not None and self.random_state is None:
            problem = "{checkpoint} needs {random_state}, because a run without a seed cannot be resumed"
        if problem is not None:
            raise OptionError(
                problem.format_map({option.name: parameter(option.name) for option in declared_options()})
            )


@cache
def declared_options() -> tuple[Option, ...]:
    """Return the declarations of all options in the order of the arguments."""
    hints = get_type_hints(AbstractOptions, include_extras=True)
    return tuple(_declaration(entry.name, hints[entry.name], entry.default) for entry in fields(AbstractOptions))


def _declaration(name: str, hint: Any, default: Any) -> Option:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = tuple(get_args(part)[0] if get_origin(part) is Annotated else part for part in parts)
    # An option may allow names and numbers, as scale does.
    limits = [get_args(part)[1] for part in parts if get_origin(part) is Annotated]
    merged = {key: value for limit in limits for key, value in vars(limit).items() if value != getattr(Allowed, key)}
    return Option(name, kinds, default, Allowed(**merged))
