"""Errors of setgrad. Every message says what went wrong and what to do about it.

All of them derive from `SetgradError`, so `except sg.errors.SetgradError` catches whatever the library itself
found wrong. The classes also derive from the built-in error a caller would expect (`ValueError`, `TypeError`, ...).
"""

from collections.abc import Iterable


class SetgradError(Exception):
    """Base of all errors raised on purpose by setgrad."""


class ShapeError(SetgradError, ValueError):
    """Tensors whose shapes do not fit together."""


class DataError(SetgradError, ValueError):
    """Input data that cannot be used: NaN, duplicate ids, scattered sets, missing columns, ..."""


class OptionError(SetgradError, ValueError):
    """An option with an unknown name or a value out of its range."""


class TrainingError(SetgradError, ArithmeticError):
    """Training that left the numbers behind."""


class ConvergenceError(SetgradError, ArithmeticError):
    """An equation that was not solved for some samples."""


class SolverError(SetgradError, ArithmeticError):
    """A discrete problem without an answer, or a solver that broke its promise."""


class DerivativeError(SetgradError, RuntimeError):
    """A derivative was asked for that there is none of."""


class StateError(SetgradError, ValueError):
    """A running state that cannot be merged, reduced or gone on with."""


class LostRankError(SetgradError, RuntimeError):
    """Another process of a group failed or did not answer in time."""


class NotFittedError(SetgradError, ValueError, AttributeError):
    """A selector was asked to predict before it was fitted."""


class FileFormatError(SetgradError, ValueError):
    """A file or folder that setgrad did not write, or that was damaged since."""


class MissingDependencyError(SetgradError, ImportError):
    """An optional package is needed and not installed."""


def unknown_name(kind: str, name: object, choices: Iterable[str]) -> OptionError:
    """Build the error for a name that is not in a table; it lists the names that are.

    Example:
        >>> print(unknown_name("method", "magic", ["direct", "unrolled"]))
        unknown method 'magic'; choose one of: direct, unrolled
    """
    return OptionError(f"unknown {kind} {name!r}; choose one of: {', '.join(choices)}")
