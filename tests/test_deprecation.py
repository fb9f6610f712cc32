"""Old names and strings still work, and the warning names the line that uses them and the new form."""

import types
import warnings

import pytest

from setgrad._deprecation import deprecated_name, deprecated_string
from setgrad.errors import OptionError


class New:
    def __repr__(self) -> str:
        return "New()"


def _module() -> types.ModuleType:
    module = types.ModuleType("shapes")
    module.__getattr__ = lambda name: deprecated_name("shapes", name, {"Old": New}, removed_in="9.0.0")  # type: ignore[method-assign]
    return module


def test_an_old_name_gives_the_new_object_and_warns_at_the_callers_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _module().Old
    assert found is New
    assert str(caught[0].message) == "shapes.Old is now shapes.New; the old form will be removed in 9.0.0"
    assert (caught[0].category, caught[0].filename) == (DeprecationWarning, __file__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shapes' has no attribute 'Other'"):
        _ = _module().Other


def _takes(shape: object) -> object:
    return deprecated_string("shape", shape, {"new": New()}, removed_in="9.0.0")


def test_an_old_string_gives_the_object_and_warns_at_the_callers_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _takes("new")
    assert isinstance(found, New)
    assert str(caught[0].message) == "shape='new' is now shape=New(); the old form will be removed in 9.0.0"
    assert caught[0].filename == __file__


def test_an_object_passes_without_a_warning_and_an_unknown_string_is_an_error() -> None:
    value = New()
    assert _takes(value) is value
    with pytest.raises(OptionError, match="unknown shape 'old'; choose one of: new"):
        _takes("old")
