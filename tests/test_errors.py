"""Errors carry the names of the parameters that their messages mention."""

import copy
import pickle

import pytest

from setgrad import errors
from setgrad.errors import MissingDependencyError, OptionError, SetgradError, parameter, unknown_name

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, SetgradError)]


def test_marks_are_invisible_in_the_message() -> None:
    error = OptionError(f"{parameter('max_size')} must be at least {parameter('min_size')}")
    assert str(error) == "max_size must be at least min_size"
    assert error.args == ("max_size must be at least min_size",)
    assert repr(error) == "OptionError('max_size must be at least min_size')"


def test_marked_names_become_flags() -> None:
    error = OptionError(
        f"{parameter('max_size')}=1 is less than {parameter('min_size')}=2; raise {parameter('max_size')}"
    )
    assert error.as_flags() == "--max-size=1 is less than --min-size=2; raise --max-size"
    assert error.parameters == ("max_size", "min_size")


@pytest.mark.parametrize(
    "text", ["max_size", "my_max_size", "--max-size", "\ue000", "\ue001max_size\ue000", "\ue000max size\ue001"]
)
def test_text_of_the_user_stays_as_it_is(text: str) -> None:
    error = OptionError(f"{parameter('max_size')} cannot be {text!r} ({text})")
    assert str(error) == f"max_size cannot be {text!r} ({text})"
    assert error.as_flags() == f"--max-size cannot be {text!r} ({text})"
    assert error.parameters == ("max_size",)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_keep_the_parameters(cls: type[SetgradError], duplicate) -> None:
    error = cls(f"raise {parameter('max_size')}")
    error.add_note("fold 3")
    other = duplicate(error)
    assert type(other) is cls
    assert (str(other), other.args) == ("raise max_size", ("raise max_size",))
    assert (other.as_flags(), other.parameters) == ("raise --max-size", ("max_size",))
    assert other.__notes__ == ["fold 3"]


def test_a_message_without_parameters_has_no_flags() -> None:
    error = SetgradError("no column 'max_size'")
    assert (str(error), error.as_flags(), error.parameters) == ("no column 'max_size'", "no column 'max_size'", ())


def test_errors_without_a_message_or_with_several_arguments_behave_as_builtin_ones() -> None:
    assert (str(SetgradError()), SetgradError().as_flags(), SetgradError().parameters) == ("", "", ())
    error = SetgradError(parameter("size"), 3)
    assert (error.args, str(error), error.as_flags()) == (("size", 3), "('size', 3)", "--size 3")


def test_the_message_of_an_import_error_has_no_marks() -> None:
    assert MissingDependencyError(f"{parameter('plot')} needs matplotlib").msg == "plot needs matplotlib"


def test_unknown_name_marks_a_kind_of_one_word() -> None:
    error = unknown_name("phi", "my_phi", ["mlp", "phi_2"])
    assert str(error) == "unknown phi 'my_phi'; choose one of: mlp, phi_2"
    assert error.as_flags() == "unknown --phi 'my_phi'; choose one of: mlp, phi_2"
    assert error.parameters == ("phi",)


def test_unknown_name_leaves_a_phrase_as_plain_text() -> None:
    error = unknown_name("data set", "moon", ["moons"])
    assert (str(error), error.as_flags()) == ("unknown data set 'moon'; choose one of: moons",) * 2
    assert error.parameters == ()
