"""Errors that setgrad raises. Every message says what went wrong and how to fix it.

All classes derive from `SetgradError`, so `except sg.errors.SetgradError` catches every error that the library raises
on purpose. Each class also derives from the built-in error that a caller would expect (`ValueError`, `TypeError`, ...).

A message marks the names of parameters with `parameter`. The marks are invisible in the message; they let the command
line write `--max-size` where the library writes `max_size`, and leave text that came from the user as it is.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Self

# Two private-use characters, which no table or option contains, around the name of a parameter.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARKED = re.compile(f"{_OPEN}([A-Za-z_][A-Za-z0-9_]*){_CLOSE}")


def parameter(name: str) -> str:
    """Return the name of a parameter, marked as one for use in the message of a `SetgradError`.

    Examples:
        >>> error = OptionError(f"{parameter('max_size')} must be at least 1, not {0}")
        >>> print(error)
        max_size must be at least 1, not 0
        >>> print(error.as_flags())
        --max-size must be at least 1, not 0
    """
    return f"{_OPEN}{name}{_CLOSE}"


class SetgradError(Exception):
    """Base class of all errors that setgrad raises on purpose.

    The message may contain names marked by `parameter`; `str(error)` and `error.args` hold it without the marks.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_MARKED.sub(r"\1", arg) if isinstance(arg, str) else arg for arg in args))
        self._marked = " ".join(map(str, args))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the message marks, in order and each once."""
        return tuple(dict.fromkeys(_MARKED.findall(self._marked)))

    def as_flags(self) -> str:
        """Return the message with every marked parameter written as a flag of the command line."""
        return _MARKED.sub(lambda match: "--" + match[1].replace("_", "-"), self._marked)

    def with_context(self, before: str = "", after: str = "") -> Self:
        """Return the same error with text before and after its message.

        Examples:
            >>> print(DataError("the value is missing").with_context("row 3: "))
            row 3: the value is missing
        """
        return type(self)(f"{before}{self._marked}{after}")


class ShapeError(SetgradError, ValueError):
    """Shapes or lengths do not fit together."""


class DataError(SetgradError, ValueError):
    """The input data cannot be used: NaN, duplicate ids, rows of a set that are not adjacent, missing columns, ...

    Attributes:
        faults: The errors that this one joins; empty for a single one.
    """

    def __init__(self, *args: object, faults: Iterable["DataError"] = ()) -> None:
        super().__init__(*args)
        self.faults = tuple(faults)

    @staticmethod
    def joined(errors: Iterable["DataError"]) -> "DataError":
        """Return one error with the messages of several, in order.

        Examples:
            >>> print(DataError.joined([DataError("no price"), DataError("no brand")]))
            2 faults: no price; no brand
        """
        faults = [fault for error in errors for fault in error.faults or (error,)]
        if len(faults) == 1:
            return faults[0]
        return DataError(f"{len(faults)} faults: " + "; ".join(fault._marked for fault in faults), faults=faults)


class OptionError(SetgradError, ValueError):
    """An option has an unknown name or a value out of its range."""


class TrainingError(SetgradError, ArithmeticError):
    """Training produced a loss or weights that are not finite."""


class ConvergenceError(SetgradError, ArithmeticError):
    """An equation was not solved for at least one sample."""


class SolverError(SetgradError, ArithmeticError):
    """A discrete problem has no solution, or a solver returned an invalid one."""


class InfeasibleError(SolverError):
    """Sets have no subset that a constraint allows.

    Attributes:
        reasons: Why, for each of these sets by its index, counted from 0.
    """

    def __init__(self, *args: object, reasons: Mapping[int, str] | None = None) -> None:
        super().__init__(*args)
        self.reasons = dict(reasons or {})


class DerivativeError(SetgradError, RuntimeError):
    """A derivative was requested that does not exist or is not implemented."""


class StateError(SetgradError, ValueError):
    """A running state cannot be merged, reduced or continued."""


class LostRankError(SetgradError, RuntimeError):
    """Another process of the group failed or did not respond in time.

    Attributes:
        remedy: What to do.
    """

    remedy = "look at the messages of the other processes, then start all of them again"

    def __init__(self, *args: object) -> None:
        # An error that one thread raises in another one has no message of its own.
        super().__init__(*(args or (f"another process of the group was lost; {self.remedy}",)))


class NotFittedError(SetgradError, ValueError, AttributeError):
    """A selector must be fitted before this call."""


class FileFormatError(SetgradError, ValueError):
    """A file or folder is damaged or was not written by setgrad."""


class MissingDependencyError(SetgradError, ImportError):
    """An optional package is needed and not installed."""


def unknown_name(kind: str, name: object, choices: Iterable[str]) -> OptionError:
    """Return the error for a name that is not one of the choices; the message lists them.

    Args:
        kind: What the name stands for. A single word is the name of a parameter and is marked as one; a phrase of
            several words ("compound data set") is plain text.
        name: The value that was passed.
        choices: The valid names.

    Examples:
        >>> error = unknown_name("method", "magic", ["direct", "unrolled"])
        >>> print(error)
        unknown method 'magic'; choose one of: direct, unrolled
        >>> print(error.as_flags())
        unknown --method 'magic'; choose one of: direct, unrolled
    """
    subject = parameter(kind) if kind.isidentifier() else kind
    return OptionError(f"unknown {subject} {name!r}; choose one of: {', '.join(choices)}")
