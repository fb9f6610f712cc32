"""Old names that still work for a while, with a warning that names the new one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

from setgrad.errors import unknown_name

Value = TypeVar("Value")


def deprecated_name(module: str, name: str, names: Mapping[str, Any], *, removed_in: str) -> Any:
    """Look up an old name for a module's `__getattr__`, and warn.

    Args:
        module: Name of the module.
        name: The attribute that was asked for.
        names: The objects by their old names; each has a `__name__`.
        removed_in: The version without the old names.

    Raises:
        AttributeError: If the name is not an old one.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     found = deprecated_name("shapes", "Circle", {"Circle": complex}, removed_in="1.0.0")
        >>> found is complex, str(caught[0].message)
        (True, 'shapes.Circle is now shapes.complex; the old form will be removed in 1.0.0')
    """
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    found = names[name]
    _warn(f"{module}.{name} is now {module}.{found.__name__}", removed_in)
    return found


def deprecated_string(argument: str, value: Value | str, objects: Mapping[str, Value], *, removed_in: str) -> Value:
    """Turn a string of an earlier interface into the object that replaced it, and warn; an object passes as it is.

    Args:
        argument: Name of the argument, for the warning.
        value: What the caller gave.
        objects: The objects by their old strings.
        removed_in: The version that no longer takes strings.

    Raises:
        OptionError: If the string is unknown.

    Examples:
        >>> deprecated_string("scale", 2.0, {"half": 0.5}, removed_in="1.0.0")
        2.0
    """
    if not isinstance(value, str):
        return value
    if value not in objects:
        raise unknown_name(argument, value, objects)
    found = objects[value]
    _warn(f"{argument}={value!r} is now {argument}={found!r}", removed_in)
    return found


def _warn(message: str, removed_in: str) -> None:
    # The caller of the function that calls this module's functions.
    warnings.warn(f"{message}; the old form will be removed in {removed_in}", DeprecationWarning, stacklevel=4)
