"""What a command is, and what it returns."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from setgrad._text_table import TextTable

# The exit code after Ctrl-C.
STOPPED = 130


@final
@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        data: Plain JSON values for programs.
        parts: Text and tables for people.
        code: The exit code, if the result can be written.
    """

    data: dict[str, Any]
    parts: tuple[TextTable | str, ...]
    code: int = 0


@final
@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: Its name on the command line.
        summary: One line for the overview of commands.
        usage: The usage line.
        description: A paragraph for its help page.
        examples: Two or three commands for its help page.
        declare: Adds its options to a parser.
        run: Runs it.
    """

    name: str
    summary: str
    usage: str
    description: str
    examples: tuple[str, ...]
    declare: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], CommandResult]
