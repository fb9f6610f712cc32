"""Options of a command made from the signature and the docstring of an estimator, so that nothing is said twice."""

from __future__ import annotations

import inspect
import re
import types
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Union, final, get_args, get_origin, get_type_hints

from setgrad.cli._words import in_words
from setgrad.errors import OptionError
from setgrad.selector import PRESETS as PUBLISHED
from setgrad.selector import SubsetSelector, check_options

PRESETS: dict[str, Callable[..., SubsetSelector]] = {
    "default": SubsetSelector,
    "paper": SubsetSelector.paper,
    **{name: partial(SubsetSelector.paper, name) for name in PUBLISHED},
}

_PREFIX = "selector_"


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@final
@dataclass(frozen=True)
class _Reader:
    """How a type is read from a text, what stands for it on the help page, and what it is called in an error."""

    read: Callable[[str], Any]
    metavar: str
    words: str


# From the strictest to the laxest: an option that may be a number or a name is a number if it reads like one.
_READERS: dict[Any, _Reader] = {
    int: _Reader(int, "N", "a whole number"),
    float: _Reader(float, "X", "a number"),
    Sequence[int]: _Reader(_whole_numbers, "N,N,...", "whole numbers separated by commas"),
    Path: _Reader(str, "FILE", "a file"),
    str: _Reader(str, "NAME", "a name"),
}


@final
@dataclass(frozen=True)
class Option:
    """One argument of a constructor, as an option of a command."""

    name: str
    kinds: tuple[Any, ...]
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """How the option is written."""
        return "--" + self.name.replace("_", "-")

    @property
    def _readers(self) -> list[_Reader]:
        return [reader for kind, reader in _READERS.items() if kind in self.kinds]

    def read(self, text: str) -> Any:
        """Turn a text into the value; argparse shows what is wrong if it cannot be."""
        if text.lower() == "none" and type(None) in self.kinds:
            return None
        for reader in self._readers:
            try:
                return reader.read(text)
            except ValueError:
                continue
        raise ArgumentTypeError(f"{text!r} is not {' or '.join(reader.words for reader in self._readers)}")

    def declare(self, parser: Any) -> None:
        """Add the option to a parser or a group; an option that is not given leaves no trace."""
        words = f"{self.help} [{_written(self.default)}]".replace("%", "%%")
        place = {"dest": _PREFIX + self.name, "default": SUPPRESS, "help": words}
        if bool in self.kinds:
            parser.add_argument(self.flag, action=BooleanOptionalAction, **place)
        else:
            parser.add_argument(self.flag, type=self.read, metavar=self._readers[0].metavar, **place)


def options_of(estimator: type) -> list[Option]:
    """List what the constructor of an estimator takes, in its order, with types, defaults and help texts.

    Example:
        >>> [option.flag for option in options_of(SubsetSelector)][:3]
        ['--method', '--function', '--phi']
    """
    hints = get_type_hints(estimator.__init__)  # type: ignore[misc]
    texts = argument_texts(inspect.getdoc(estimator) or "")
    return [
        Option(name, _members(hints[name]), parameter.default, texts.get(name, ""))
        for name, parameter in inspect.signature(estimator).parameters.items()
    ]


def argument_texts(doc: str) -> dict[str, str]:
    r"""Take the sentences about each argument out of the `Args:` section of a docstring.

    Example:
        >>> argument_texts("Does it.\n\nArgs:\n    size: How\n        many.\n    name: Which.\n")
        {'size': 'How many.', 'name': 'Which.'}
    """
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", doc + "\n", re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def declare_selector(parser: ArgumentParser) -> None:
    """Give a command the options of the estimator, and its presets."""
    group = parser.add_argument_group("options of the selector", "as in Python; defaults in brackets")
    group.add_argument(
        "--preset",
        choices=PRESETS,
        default="default",
        help='where the defaults come from: what works best, or a published method; "paper" is diffmf [default]',
    )
    for option in options_of(SubsetSelector):
        option.declare(group)


def option_words() -> dict[str, str]:
    """Options of the estimator as flags; those of one word alone may stand for other things in a sentence."""
    return {option.name: option.flag for option in options_of(SubsetSelector) if "_" in option.name}


def make_selector(args: Namespace, **usual: Any) -> SubsetSelector:
    """Build the selector that the options describe; `usual` holds what this command takes where nothing is said."""
    given = {name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)}
    # Machines read the answer, not the bar.
    quiet = {"verbose": 0} if args.json else {}
    selector = PRESETS[args.preset](**{**usual, **quiet, **given})
    # A mistyped name must not wait until a large table has been read.
    with in_words(option_words()):
        check_options(selector.get_params())
    if selector.checkpoint is not None and selector.random_state is None:
        raise OptionError("--checkpoint needs --random-state N, or the same run could not be told from another")
    return selector


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _written(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, (tuple, list)) else str(default).lower()
