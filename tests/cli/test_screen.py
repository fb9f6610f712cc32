"""Tables on a screen, in a file, and without rich."""

import io
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from setgrad._text_table import TextTable
from setgrad.cli._output import show

TABLE = TextTable("title [bold]", ("name", "value"), (("[red]a[/red]", "1.5"), ("b", "20.25")))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_rich_the_table_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = io.StringIO()
    show([TABLE, "done: a/b"], stream)
    assert stream.getvalue().splitlines() == [
        "title [bold]",
        "name          value",
        "------------  -----",
        "[red]a[/red]    1.5",
        "b             20.25",
        "done: a/b",
    ]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_text_is_never_markup(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    show([TABLE, "done: [x]"], stream)
    for text in ("title [bold]", "[red]a[/red]", "20.25", "done: [x]"):
        assert text in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_long_path_stays_in_one_line() -> None:
    path = "/" + "/".join(["folder"] * 60)
    for stream in (io.StringIO(), Terminal()):
        show([f"saved to {path}"], stream)
        assert path in stream.getvalue()


def test_colours_are_used_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream in (io.StringIO(), Terminal()):
        show([TABLE], stream)
        assert ("\x1b[1m" in stream.getvalue()) == stream.isatty()


def test_a_broken_pipe_raises() -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        show(["done"], Closed())


def test_numbers_are_aligned_on_the_right(run: Callable) -> None:
    lines = [line.rstrip() for line in run("datasets", "moons").out.splitlines() if "100000" in line]
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1


def test_letters_that_the_terminal_cannot_show_are_no_error() -> None:
    code = "import sys; from setgrad.cli import main; sys.exit(main(['datasets', 'moons']))"
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=narrow)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?zcan" in done.stdout
