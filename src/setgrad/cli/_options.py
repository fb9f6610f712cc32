"""The options of the estimator as options of a command, from their declarations and the docstring."""

from __future__ import annotations

import inspect
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from setgrad.selector import PRESETS, SubsetSelector
from setgrad.selector._options import Option, declared_options

# Values of --preset and the options they stand for. "paper" is the old name of diffmf.
PRESET_OPTIONS: dict[str, dict[str, Any]] = {"default": {}, "paper": PRESETS["diffmf"], **PRESETS}
_PREFIX = "selector_"


@final
@dataclass(frozen=True)
class _Reader:
    """How the text of a type is converted, its placeholder on the help page, and its name in an error."""

    convert: Callable[[str], Any]
    metavar: str
    name: str


# From strict to lax: an option that may be a number or a name is a number if its text is one.
_READERS: dict[Any, _Reader] = {
    int: _Reader(int, "N", "a whole number"),
    float: _Reader(float, "X", "a number"),
    Sequence[int]: _Reader(
        lambda text: tuple(int(part) for part in text.split(",")), "N,N,...", "whole numbers separated by commas"
    ),
    Path: _Reader(str, "FILE", "a file"),
    str: _Reader(str, "NAME", "a name"),
}


def argument_texts(doc: str) -> dict[str, str]:
    r"""Return the text about each argument in the `Args:` section of a docstring.

    Examples:
        >>> argument_texts("Does it.\n\nArgs:\n    size: How\n        many.\n    name: Which.\n")
        {'size': 'How many.', 'name': 'Which.'}
    """
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", doc + "\n", re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def declare_option(option: Option, text: str, parser: Any) -> None:
    """Add one option with its help text to a parser or a group; without it on the command line, nothing is stored."""
    help_text = f"{text} [{_default_text(option.default)}]".replace("%", "%%")
    arguments: dict[str, Any] = {"dest": _PREFIX + option.name, "default": SUPPRESS, "help": help_text}
    flag = "--" + option.name.replace("_", "-")
    if bool in option.kinds:
        parser.add_argument(flag, action=BooleanOptionalAction, **arguments)
    else:
        metavar = _readers(option)[0].metavar
        parser.add_argument(flag, type=partial(_convert, option), metavar=metavar, **arguments)


def declare_selector(parser: ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Add the options of the estimator and its presets to a command, without those that it does not have."""
    group = parser.add_argument_group("options of the selector", "as in Python; defaults in brackets")
    group.add_argument(
        "--preset",
        choices=PRESET_OPTIONS,
        default="default",
        help="start from the defaults, or from the options of a published method [default]",
    )
    texts = argument_texts(inspect.getdoc(SubsetSelector) or "")
    for option in (option for option in declared_options() if option.name not in without):
        declare_option(option, texts.get(option.name, ""), group)


def make_selector(args: Namespace, **defaults: Any) -> SubsetSelector:
    """Return the selector for the options of a command line.

    Args:
        args: The parsed command line.
        **defaults: Defaults of this command that differ from those of the estimator.

    Raises:
        OptionError: If an option is not allowed.
    """
    given = {name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)}
    # With --json a program reads the output, and nobody looks at the progress bar.
    quiet = {"verbose": 0} if args.json else {}
    selector = SubsetSelector(**{**PRESET_OPTIONS[args.preset], **defaults, **quiet, **given})
    selector.validate()
    return selector


def _readers(option: Option) -> list[_Reader]:
    return [reader for kind, reader in _READERS.items() if kind in option.kinds]


def _convert(option: Option, text: str) -> Any:
    if text.lower() == "none" and type(None) in option.kinds:
        return None
    readers = _readers(option)
    for reader in readers:
        try:
            return reader.convert(text)
        except ValueError:
            continue
    raise ArgumentTypeError(f"{text!r} is not {' or '.join(reader.name for reader in readers)}")


def _default_text(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, (tuple, list)) else str(default).lower()
