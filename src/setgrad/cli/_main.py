"""The entry point: reads the command line, runs a command, shows its result, and turns errors into exit codes."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO, TextIOWrapper
from textwrap import fill
from typing import Any, NoReturn, final

import setgrad
from setgrad._launch import is_first, launched
from setgrad._progress import showing
from setgrad.cli._command import STOPPED, Command
from setgrad.cli._output import print_error, redirect_to_stderr, show, warnings_in_one_line, write_result
from setgrad.errors import SetgradError

# The commands with a line about each. A command is imported when it is used, because its packages take time.
SUMMARIES = {
    "demo": "fit on built-in data, print the scores, write a report",
    "fit": "learn from a table of choices",
    "tune": "search for good options, and save the best model",
    "predict": "pick from new sets",
    "evaluate": "score a model on sets whose true subsets are known",
    "explain": "tell why items are chosen, and which columns matter",
    "export": "write a model as a program for ONNX or torch.export",
    "report": "write a page about a model: scores, baselines, calibration, importance, sets",
    "datasets": "list the built-in data sets, or write one as tables",
}
# Those that were imported.
COMMANDS: dict[str, Command] = {}

# Commands that several processes run together under torchrun.
_DISTRIBUTED = ("fit", "predict")
_WIDTH = 80
_TOUR = (
    "setgrad demo                                            fit on built-in data",
    "setgrad datasets shop -o shop/                          or write tables, and go step by step:",
    "setgrad fit shop/train.parquet --set-id visit --item-id product --chosen bought --ignore in_cart -o model/",
    "setgrad predict model/ shop/test.parquet -o picks.csv",
    "setgrad report model/ shop/test.parquet -o report.html",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Results go to the standard output, progress and errors to the standard error.

    Args:
        argv: The arguments of the command line; None for those of the process.

    Returns:
        The exit code: 0 for success, 1 for wrong data or options, 2 for wrong usage, 130 if interrupted.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        # A letter that the terminal cannot show becomes a question mark; the standard error does so already.
        sys.stdout.reconfigure(errors="replace")
    words = list(sys.argv[1:] if argv is None else argv)
    # The help page and the version are results too, and argparse does not report that they cannot be written.
    parser, page = _parser(words), StringIO()
    try:
        with redirect_stdout(page):
            args = parser.parse_args(words)
    except SystemExit:
        return write_result(lambda stream: stream.write(page.getvalue()))
    except _UsageError as error:
        return _fail(str(error), "--json" in words, 2)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    process = launched()
    if process is not None and process[1] > 1 and args.command not in _DISTRIBUTED:
        return _fail(f"{args.command} is for one process; start it without torchrun", args.json, 2)
    try:
        with redirect_to_stderr(), warnings_in_one_line(), showing("reading", not args.json and is_first()):
            result = find_command(args.command).run(args)
        if not is_first():
            return result.code
        if args.json:
            return _print_json(result.data) or result.code
        return write_result(lambda stream: show(result.parts, stream)) or result.code
    except KeyboardInterrupt:
        return _fail("stopped; a fit with --checkpoint resumes when it is started again", args.json, STOPPED)
    except SetgradError as error:
        return _fail(error.as_flags(), args.json, 1)
    except OSError as error:
        return _fail(str(error), args.json, 1)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        remedy = "use a smaller --batch-size, --dim or --samples" if args.command == "fit" else "use a smaller table"
        return _fail(f"there is not enough memory; {remedy}", args.json, 1)


def _is_out_of_memory(error: Exception) -> bool:
    # On a CPU torch raises a RuntimeError.
    return isinstance(error, MemoryError) or any(word in str(error) for word in ("out of memory", "allocate memory"))


def _print_json(data: dict[str, Any]) -> int:
    return write_result(lambda stream: print(json.dumps(data), file=stream))


def _fail(message: str, as_json: bool, code: int) -> int:
    line = " ".join(message.splitlines())
    print_error(line)
    if as_json:
        _print_json({"error": line})
    return code


@final
class _UsageError(Exception):
    """A command line that cannot be parsed."""


@final
class _Parser(ArgumentParser):
    """A parser that raises errors, so that `main` can print them as JSON too."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and raise."""
        self.print_usage(sys.stderr)
        raise _UsageError(message)


def _parser(words: Sequence[str]) -> ArgumentParser:
    parser = _Parser(
        prog="setgrad",
        description=fill(
            "Learn to choose subsets: from sets of items, and the subset that was chosen from each.", _WIDTH
        ),
        epilog=_indented("first steps:", _TOUR),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"setgrad {setgrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in SUMMARIES.items():
        # The other commands need no options and no texts, because only one command is run.
        sub = commands.add_parser(
            name, help=summary, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, **_texts(name, words)
        )
        if name in words:
            find_command(name).declare(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def find_command(name: str) -> Command:
    """Return a command by its name."""
    if name not in COMMANDS:
        COMMANDS[name] = getattr(import_module(f"setgrad.cli._{name}"), name.upper())
    return COMMANDS[name]


def _texts(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the texts of a command that is among the words of the command line."""
    if name not in words:
        return {}
    command = find_command(name)
    return {
        "usage": command.usage,
        "description": fill(command.description, _WIDTH),
        "epilog": _indented("examples:", command.examples),
    }


def _indented(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])
