"""Checks of the options of a selector, all before any work is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np
from torch import nn

from setgrad.errors import DataError, OptionError, ShapeError, unknown_name
from setgrad.selector._member import ESTIMATORS, FUNCTIONS, PHIS, SOLVERS, make_scale
from setgrad.selector._train import LOSSES
from setgrad.sets import Sets

_ATTENTION = ("auto", "full", "induced")
_NAMES: dict[str, Any] = {
    "method": SOLVERS,
    "function": FUNCTIONS,
    "estimator": ESTIMATORS,
    "loss": LOSSES,
    "attention": _ATTENTION,
}
# Name of the option, smallest value, whether that value itself is allowed, whether it must be whole.
_NUMBERS = [
    ("dim", 1, True, True),
    ("layers", 0, True, True),
    ("heads", 1, True, True),
    ("samples", 1, True, True),
    ("learning_rate", 0, False, False),
    ("weight_decay", 0, True, False),
    ("batch_size", 1, True, True),
    ("clip", 0, False, False),
    ("average", 0, True, False),
]


def check_options(options: dict[str, Any]) -> None:
    """Raise for the first option that has an unknown name or a number out of its range."""
    for key, choices in _NAMES.items():
        left_open = key == "estimator" and options[key] is None
        if not left_open and (not isinstance(options[key], str) or options[key] not in choices):
            raise unknown_name(key, options[key], choices)
    if not isinstance(options["phi"], nn.Module) and options["phi"] not in PHIS:
        raise unknown_name("phi", options["phi"], PHIS)
    for key, low, closed, whole in _NUMBERS:
        _check_number(key, options[key], low, closed=closed, whole=whole)
    for key in ("members", "predict_samples", "steps", "max_epochs", "patience"):
        if options[key] is not None:
            _check_number(key, options[key], 1, closed=True, whole=True)
    if options["relation"] is not None:
        _check_number("relation", options["relation"], 0, closed=True, whole=True)
        if options["relation"] and options["function"] != "deepset":
            raise OptionError(
                f"function={options['function']!r} has no relation; leave relation out, or use function='deepset'"
            )
    if options["average"] >= 1:
        raise OptionError(f"average must be a rate below 1, not {options['average']}; 0 turns averaging off")
    fraction = options["validation_fraction"]
    if not isinstance(fraction, Real) or not 0 < float(fraction) < 1:
        raise OptionError(f"validation_fraction must lie between 0 and 1, not {fraction!r}")
    hidden = options["hidden"]
    if not isinstance(hidden, Sequence) or not hidden or any(not isinstance(h, Integral) or h < 1 for h in hidden):
        raise OptionError(f"hidden must name at least one layer of at least 1 unit, as a tuple (256,), not {hidden!r}")
    if not isinstance(options["standardize"], bool | np.bool_):
        raise OptionError(f"standardize must be True or False, not {options['standardize']!r}")
    if options["checkpoint"] is not None and not isinstance(options["checkpoint"], str | PathLike):
        raise OptionError(f"checkpoint must be the name of a file, not {options['checkpoint']!r}")
    seed = options["random_state"]
    if seed is not None and (not isinstance(seed, Integral) or not 0 <= int(seed) < 2**64):
        raise OptionError(f"random_state must be None or a whole number of at least 0 and below 2**64, not {seed!r}")
    make_scale(options["scale"])


def constrained_cut(size: Any, threshold: float | None, search: str | None) -> float:
    """The logit above which an item is worth taking under a constraint; refuses what does not go with one."""
    if size is not None:
        raise OptionError("a constraint says which sizes are allowed; instead of size, add SizeRange(n, n) to it")
    if search == "greedy":
        raise OptionError("greedy search knows no constraint; leave search out, or use search='local'")
    if threshold is None:
        return 0.0
    if not isinstance(threshold, Real) or not 0 < threshold < 1:
        raise OptionError(f"with a constraint, threshold is a probability between 0 and 1, not {threshold!r}")
    return math.log(threshold / (1 - threshold))


def check_scores(scores: Any, sets: Sets) -> None:
    """Refuse what `decision_function` did not give for these sets."""
    if not isinstance(scores, Sets) or scores.values.dim() != 1 or not scores.dtype.is_floating_point:
        raise ShapeError(
            f"scores must be what decision_function gave, a Sets of one number for each item, not {scores!r:.80}"
        )
    if not scores.layout.same_as(sets.layout):
        raise ShapeError("scores belong to other sets; pass what decision_function gave for these")
    wrong = ~scores.values.isfinite()
    if bool(wrong.any()):
        raise DataError(f"the scores of set {int(scores.layout.ids[wrong][0])} are not all finite; give real numbers")


def _check_number(key: str, value: Any, low: float, *, closed: bool, whole: bool) -> None:
    kind = "a whole number" if whole else "a number"
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < low or (value == low and not closed):
        raise OptionError(f"{key} must be {kind} {'of at least' if closed else 'above'} {low}, not {value!r}")
