"""What a command is, and what it answers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from setgrad.report._grid import Grid


@final
@dataclass(frozen=True)
class Answer:
    """The result of a command, once for machines (plain JSON values) and once for people."""

    data: dict[str, Any]
    parts: tuple[Grid | str, ...]


@final
@dataclass(frozen=True)
class Command:
    """A command: its words for the help page, a function that declares its options, and one that does the work."""

    name: str
    summary: str
    usage: str
    description: str
    examples: tuple[str, ...]
    declare: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], Answer]
