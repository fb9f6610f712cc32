"""The help pages have examples, and the options of the estimator."""

import inspect
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import setgrad
from setgrad.cli._main import SUMMARIES, find_command
from setgrad.cli._options import argument_texts, declare_option
from setgrad.selector import SubsetSelector
from setgrad.selector._options import Option, declared_options


@pytest.mark.parametrize("name", ["demo", "fit", "predict", "evaluate", "report", "datasets"])
def test_help_has_worked_examples(run: Callable, name: str) -> None:
    result = run(name, "--help")
    assert (result.code, result.err) == (0, "")
    command = find_command(name)
    assert 2 <= len(command.examples) <= 3
    for example in command.examples:
        assert f"  {example}" in result.out
    assert " ".join(command.description.split()) in " ".join(result.out.split())


@pytest.mark.parametrize("name", SUMMARIES)
def test_examples_can_be_parsed(name: str) -> None:
    for example in find_command(name).examples:
        words = example.replace("\\\n", " ").partition("   #")[0].split()
        assert words[:2] == ["setgrad", name]
        parser = ArgumentParser()
        find_command(name).declare(parser)
        parser.add_argument("--json", action="store_true")
        parser.parse_args(words[2:])


def test_the_overview_lists_every_command(run: Callable) -> None:
    result = run("--help")
    assert result.code == 0
    for name, summary in SUMMARIES.items():
        assert find_command(name).summary == summary and find_command(name).name == name
        assert summary in " ".join(result.out.split())


def test_the_overview_imports_no_command() -> None:
    """Nor any optional package."""
    names = ("setgrad.selector", "setgrad.discrete", "pyarrow", "rich", "sklearn", "matplotlib")
    code = (
        "import sys\nfrom setgrad.cli import main\nmain(['--help'])\n"
        f"print([name for name in sys.modules if name.startswith({names})])"
    )
    # -I: neither the user's site nor PYTHONPATH may add imports.
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_a_command_the_overview_is_shown(run: Callable) -> None:
    result = run()
    assert result.code == 2
    assert result.out == ""
    assert "first steps" in result.err


def test_version(run: Callable) -> None:
    result = run("--version")
    assert (result.code, result.out) == (0, f"setgrad {setgrad.__version__}\n")


def test_entry_point_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"setgrad": "setgrad.cli:main"}


@pytest.mark.parametrize("name", ["fit", "demo"])
def test_options_are_those_of_the_estimator(run: Callable, name: str) -> None:
    page = " ".join(run(name, "--help").out.split())
    texts = argument_texts(inspect.getdoc(SubsetSelector))
    assert list(texts) == [option.name for option in declared_options()]
    for option in declared_options():
        assert f" --{option.name.replace('_', '-')}" in page
        # argparse wraps at hyphens too, so compare without white space
        assert texts[option.name].replace(" ", "") in page.replace(" ", "")


OPTIONS = {
    Option("colour", (str,), "red"): "Its colour, at 100%.",
    Option("sizes", (Sequence[int],), (1, 2)): "Its sizes.",
    Option("rate", (float, str, type(None)), None): "Its rate.",
    Option("max_items", (int, type(None)), 3): "Its limit.",
    Option("loud", (bool,), True): "Whether it is loud.",
}


def parse(words: list[str]) -> dict[str, object]:
    parser = ArgumentParser()
    for option, text in OPTIONS.items():
        declare_option(option, text, parser)
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
        (["--max-items", "None"], {"max_items": None}),
        (["--max-items", "4"], {"max_items": 4}),
        (["--no-loud"], {"loud": False}),
    ],
)
def test_an_option_is_read_by_its_type(words: list[str], value: dict[str, object]) -> None:
    assert parse(words) == value


def test_help_text_and_default_come_from_the_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    page = " ".join(capsys.readouterr().out.split())
    assert "Its colour, at 100%. [red]" in page
    assert "Its sizes. [1,2]" in page


def test_the_package_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "setgrad", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"setgrad {setgrad.__version__}\n"
