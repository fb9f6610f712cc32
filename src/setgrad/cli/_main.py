"""The door: reads the command line, runs a command, shows the answer, and turns errors into exit codes."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO, TextIOWrapper
from textwrap import fill
from typing import Any, NoReturn, final

import setgrad
from setgrad.cli._aside import aside
from setgrad.cli._command import Command
from setgrad.cli._datasets import DATASETS
from setgrad.cli._demo import DEMO
from setgrad.cli._evaluate import EVALUATE
from setgrad.cli._fit import FIT
from setgrad.cli._output import deliver, tell
from setgrad.cli._predict import PREDICT
from setgrad.cli._report import REPORT
from setgrad.cli._screen import show
from setgrad.errors import SetgradError

COMMANDS: dict[str, Command] = {command.name: command for command in (DEMO, FIT, PREDICT, EVALUATE, REPORT, DATASETS)}

_WIDTH = 80
_TOUR = (
    "setgrad demo                                            fit on data that come along",
    "setgrad datasets moons -o moons/                        or get them as tables, and go step by step:",
    "setgrad fit moons/train.parquet --set-id set --item-id item --chosen chosen -o model/",
    "setgrad predict model/ moons/test.parquet -o picks.parquet",
    "setgrad evaluate model/ moons/test.parquet",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 if all went well, 1 for wrong data or options, 2 for wrong usage.

    Results go to the standard output; progress and errors go to the standard error.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that does not know a letter shows a question mark; the standard error does so by itself.
        sys.stdout.reconfigure(errors="replace")
    words = list(sys.argv[1:] if argv is None else argv)
    # The help page and the version are results too, and argparse would not say that they cannot be written.
    parser, page = _parser(), StringIO()
    try:
        with redirect_stdout(page):
            args = parser.parse_args(words)
    except SystemExit:
        return deliver(lambda stream: stream.write(page.getvalue()))
    except _UsageError as error:
        return _fail(str(error), "--json" in words, 2)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        # What happens on the way, such as the bar of a fit, is not the result.
        with aside():
            answer = COMMANDS[args.command].run(args)
        return _say(answer.data) if args.json else deliver(lambda stream: show(answer.parts, stream))
    except KeyboardInterrupt:
        return _fail("stopped; a fit with --checkpoint goes on from there when it is started again", args.json, 130)
    except (SetgradError, OSError) as error:
        return _fail(str(error), args.json, 1)
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        remedy = "take a smaller --batch-size, --dim or --samples" if args.command == "fit" else "take a smaller table"
        return _fail(f"the memory is not enough; {remedy}", args.json, 1)


def _is_memory(error: Exception) -> bool:
    """Whether memory was asked for in vain; torch says so in words on a CPU."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in ("out of memory", "allocate memory"))


def _say(data: dict[str, Any]) -> int:
    return deliver(lambda stream: print(json.dumps(data), file=stream))


def _fail(message: str, as_json: bool, code: int) -> int:
    line = " ".join(message.splitlines())
    tell(line)
    if as_json:
        _say({"error": line})
    return code


@final
class _UsageError(Exception):
    """A command line that cannot be understood."""


@final
class _Parser(ArgumentParser):
    """Leaves it to `main` to say what is wrong, which knows whether a machine listens."""

    def error(self, message: str) -> NoReturn:
        """Show how the command is used."""
        self.print_usage(sys.stderr)
        raise _UsageError(message)


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="setgrad",
        description=fill("Learn to choose: from sets of items, and the subset that was chosen from each.", _WIDTH),
        epilog=_listed("a first tour:", _TOUR),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"setgrad {setgrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS.values():
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            usage=command.usage,
            description=fill(command.description, _WIDTH),
            epilog=_listed("examples:", command.examples),
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.declare(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def _listed(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])
