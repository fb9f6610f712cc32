"""Which values of the options a search tries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from setgrad.errors import OptionError, parameter, unknown_name
from setgrad.selector._options import declared_options
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.selector import SubsetSelector

# A list has the values themselves, a pair the ends of a range on a logarithmic scale.
Space = list[Any] | tuple[float, float]
USUAL_SPACES: dict[str, Space] = {
    "dim": [32, 64, 128, 256],
    "layers": [1, 2, 3],
    "hidden": [(64,), (256, 128), (512, 256)],
    "relation": [0, 16, 64],
    "pairs": [False, True],
    "half": [False, True],
    "relative": [False, True],
    "learning_rate": (2e-4, 5e-3),
    "weight_decay": (1e-3, 0.5),
}
# Those that decide most; the others are searched by name.
_USUAL = ("dim", "layers", "relation", "pairs", "half", "learning_rate")
# Options of the fit as a whole.
_NOT_SEARCHED = ("checkpoint", "device", "max_time", "random_state", "validation_fraction", "verbose", "phi")


def search_space(selector: SubsetSelector, search: Iterable[str] | Mapping[str, Any] | None) -> dict[str, Space]:
    """Return the values to try of each option.

    Args:
        selector: The selector whose other options stay.
        search: Names of options, or their values; None for the usual options that apply and have their default.

    Raises:
        OptionError: If an option cannot be searched, or a value is not allowed.
    """
    declared = {option.name: option for option in declared_options()}
    if search is None:
        usual = [name for name in _USUAL if _applies(name, selector)]
        return {name: USUAL_SPACES[name] for name in usual if getattr(selector, name) == declared[name].default}
    given = dict(search) if isinstance(search, Mapping) else dict.fromkeys(search)
    spaces: dict[str, Space] = {}
    for name, values in given.items():
        if name not in declared or name in _NOT_SEARCHED:
            raise unknown_name("search", name, [known for known in declared if known not in _NOT_SEARCHED])
        if values is None and name not in USUAL_SPACES:
            raise OptionError(
                f"{parameter('search')} has no usual values of {name}; give them: search={{{name!r}: [..., ...]}}"
            )
        spaces[name] = USUAL_SPACES[name] if values is None else _checked(name, values)
    if not spaces:
        raise OptionError(f"{parameter('search')} names no option; leave it out for the usual ones")
    return spaces


def suggest(trial: Any, spaces: Mapping[str, Space]) -> dict[str, Any]:
    """Return the options that an Optuna trial tries."""
    options = {}
    for name, space in spaces.items():
        if isinstance(space, tuple):
            low, high = space
            is_whole = isinstance(low, Integral) and isinstance(high, Integral)
            draw = trial.suggest_int if is_whole else trial.suggest_float
            options[name] = draw(name, low, high, log=low > 0)
        else:
            # By number, because Optuna keeps no tuples.
            options[name] = space[trial.suggest_categorical(name, list(range(len(space))))]
    return options


def _applies(name: str, selector: SubsetSelector) -> bool:
    options = selector.validate()
    context = isinstance(options.phi, str) and options.phi.endswith("context")
    match name:
        case "dim":
            return isinstance(options.phi, str)
        case "layers":
            return context
        case "relation":
            return options.function == "deepset" and context
        case "pairs":
            return options.method == CONDITIONAL and context
        case "half":
            return options.method == CONDITIONAL and (options.samples is None or options.samples >= 3)
    return True


def _checked(name: str, values: Any) -> Space:
    option = next(option for option in declared_options() if option.name == name)
    if isinstance(values, tuple) and len(values) == 2 and all(_is_number(value) for value in values):
        if values[0] >= values[1]:
            raise OptionError(f"{parameter('search')} has the range {values} of {name}; give its lower end first")
    elif not isinstance(values, list) or not values:
        raise OptionError(
            f"{parameter('search')} must have a list of values of {name}, or the ends of a range (low, high), not "
            f"{values!r:.80}"
        )
    for value in values:
        option.check(value)
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
