"""The help pages teach, and the options are those of the estimator."""

import inspect
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import setgrad
from setgrad.cli._main import COMMANDS
from setgrad.cli._options import Option, argument_texts, options_of
from setgrad.selector import SubsetSelector


@pytest.mark.parametrize("name", ["demo", "fit", "predict", "evaluate", "report", "datasets"])
def test_help_has_worked_examples(run: Callable, name: str) -> None:
    found = run(name, "--help")
    assert (found.code, found.err) == (0, "")
    command = COMMANDS[name]
    assert 2 <= len(command.examples) <= 3
    for example in command.examples:
        assert f"  {example}" in found.out
    assert " ".join(command.description.split()) in " ".join(found.out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_parsed(name: str) -> None:
    for example in COMMANDS[name].examples:
        words = example.replace("\\\n", " ").partition("   #")[0].split()
        assert words[:2] == ["setgrad", name]
        parser = ArgumentParser()
        COMMANDS[name].declare(parser)
        parser.add_argument("--json", action="store_true")
        parser.parse_args(words[2:])


def test_overview_names_every_command(run: Callable) -> None:
    found = run("--help")
    assert found.code == 0
    for command in COMMANDS.values():
        assert command.summary in " ".join(found.out.split())


def test_no_command_shows_the_overview(run: Callable) -> None:
    found = run()
    assert found.code == 2
    assert found.out == ""
    assert "first tour" in found.err


def test_version(run: Callable) -> None:
    found = run("--version")
    assert (found.code, found.out) == (0, f"setgrad {setgrad.__version__}\n")


def test_entry_point_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"setgrad": "setgrad.cli:main"}


@pytest.mark.parametrize("name", ["fit", "demo"])
def test_options_are_those_of_the_estimator(run: Callable, name: str) -> None:
    page = " ".join(run(name, "--help").out.split())
    for option in options_of(SubsetSelector):
        assert f" {option.flag}" in page
        assert option.help, f"{option.name} has no entry in the docstring"
        # argparse wraps at hyphens too, so compare without white space
        assert option.help.replace(" ", "") in page.replace(" ", "")


def test_options_follow_the_signature() -> None:
    options = options_of(SubsetSelector)
    parameters = inspect.signature(SubsetSelector).parameters
    assert [option.name for option in options] == list(parameters)
    assert [option.default for option in options] == [p.default for p in parameters.values()]
    # Every option can be said on a command line.
    assert all(bool in option.kinds or option._readers for option in options)


class Estimator:
    """Does things.

    Args:
        colour: Its colour,
            at 100%.
        sizes: Its sizes.
        rate: Its rate.
        limit: Its limit.
        loud: Whether it is loud.

    Example:
        >>> 1
        1
    """

    def __init__(
        self,
        *,
        colour: str = "red",
        sizes: Sequence[int] = (1, 2),
        rate: float | str | None = None,
        limit: int | None = 3,
        loud: bool = True,
    ) -> None: ...


def parse(words: list[str]) -> dict[str, object]:
    parser = ArgumentParser()
    for option in options_of(Estimator):
        option.declare(parser)
    return {name.removeprefix("selector_"): value for name, value in vars(parser.parse_args(words)).items()}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], {}),
        (["--colour", "none"], {"colour": "none"}),
        (["--sizes", "8"], {"sizes": (8,)}),
        (["--sizes", "8,9"], {"sizes": (8, 9)}),
        (["--rate", "0.5"], {"rate": 0.5}),
        (["--rate", "l2"], {"rate": "l2"}),
        (["--rate", "none"], {"rate": None}),
        (["--limit", "None"], {"limit": None}),
        (["--limit", "4"], {"limit": 4}),
        (["--no-loud"], {"loud": False}),
    ],
)
def test_a_new_option_appears_and_is_read_by_its_type(words: list[str], value: dict[str, object]) -> None:
    assert parse(words) == value


def test_help_text_and_default_come_from_the_estimator(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    page = " ".join(capsys.readouterr().out.split())
    assert "Its colour, at 100%. [red]" in page
    assert "Its sizes. [1,2]" in page


def test_argument_without_text_has_an_empty_help() -> None:
    assert argument_texts("No section.") == {}
    assert Option("a_b", (int,), 1, "").flag == "--a-b"
