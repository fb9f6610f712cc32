"""The standard output of a shell: shared with C code, closed, full, or with a reader that stops."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from setgrad.cli import _main
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._output import redirect_to_stderr

CALL = "import sys; from setgrad.cli import main; sys.exit(main(sys.argv[1:]))"
# Several commands that end in the same way; each argument is one.
CALLS = """
import sys
from setgrad.cli import main

(code,) = {main(words.split()) for words in sys.argv[1:]}
sys.exit(code)
"""
# A command that prints by Python, by the system and by C; without an end of line, C keeps the text in its buffer.
PRINTING = """
import ctypes, os, sys
from setgrad.cli import _main
from setgrad.cli._command import Command, CommandResult

def run(args):
    print("by Python")
    os.write(1, b"by the system\\n")
    ctypes.CDLL(None).puts(b"by puts")
    ctypes.CDLL(None).printf(b"by printf")
    return CommandResult({"done": True}, ("done",))

_main.COMMANDS["datasets"] = Command("datasets", "", "", "", (), lambda parser: None, run)
code = _main.main(sys.argv[1:])
ctypes.CDLL(None).puts(b"after")
sys.exit(code)
"""
PRINTED = ("by Python", "by the system", "by puts", "by printf")
FULL = Path("/dev/full")
# As in a shell: Python writes its buffer at exit, where it may fail again.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell and the library of C")


def shell(ending: str, *words: object, code: str = CALL) -> subprocess.CompletedProcess[str]:
    """Run the command line in a shell, followed by a redirection or a pipe."""
    line = ["bash", "-c", f'set -o pipefail; "$@" {ending}', "bash", sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT)


@posix
def test_text_printed_by_c_is_not_part_of_the_result() -> None:
    done = shell("", "datasets", "--json", code=PRINTING)
    assert done.returncode == 0
    result, after = done.stdout.splitlines()
    # The output is restored after the command.
    assert (json.loads(result), after) == ({"done": True}, "after")
    assert all(text in done.stderr for text in PRINTED)


@posix
@pytest.mark.parametrize("ending", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_printing_with_closed_descriptors(ending: str) -> None:
    done = shell(ending, "datasets", "--json", code=PRINTING)
    assert done.returncode == 0
    assert ("after" in done.stdout) == (">&-" not in ending.replace("2>&-", ""))
    assert not any(text in done.stdout for text in PRINTED)
    assert all((text in done.stderr) == ("2>&-" not in ending) for text in PRINTED)
    assert "Traceback" not in done.stderr


@posix
def test_descriptors_are_restored_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    with pytest.raises(ZeroDivisionError), redirect_to_stderr():
        os.write(1, b"noise\n")
        raise ZeroDivisionError
    os.write(1, b"result\n")
    assert capfd.readouterr() == ("result\n", "noise\n")
    assert before is None or len(os.listdir("/proc/self/fd")) == before


@posix
@pytest.mark.parametrize(
    ("words", "rich"),
    [(["datasets"], True), (["datasets"], False), (["datasets", "--json"], True), (["fit", "--help"], True)],
)
def test_a_reader_that_stops_is_no_error(words: list[str], rich: bool) -> None:
    code = CALL if rich else f"import sys; sys.modules['rich.console'] = None\n{CALL}"
    line, pipe = [sys.executable, "-c", code, *words], subprocess.PIPE
    writer = subprocess.Popen(line, stdout=pipe, stderr=pipe, env=ENVIRONMENT)
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait() == 0


@posix
def test_a_reader_that_stops_does_not_hide_an_error() -> None:
    done = shell("| true", "datasets", "suns", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: unknown data set 'suns'")
    assert len(done.stderr.splitlines()) == 1


@posix
def test_a_closed_output_is_no_error() -> None:
    done = shell(">&-", "datasets", "datasets --json", code=CALLS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = shell(">&-", "datasets suns", "datasets suns --json", code=CALLS)
    assert (done.returncode, done.stdout) == (1, "")
    assert [line.startswith("error: unknown data set 'suns'") for line in done.stderr.splitlines()] == [True, True]


@posix
def test_results_are_not_written_to_a_closed_output(run: Callable, model: Path, table: Path, tmp_path: Path) -> None:
    # The next file that is opened gets the number of a closed descriptor.
    done = shell(">&-", "predict", model, table, "-o", tmp_path / "closed.csv", "--device", "cpu")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run("predict", model, table, "-o", tmp_path / "open.csv", "--device", "cpu").code == 0
    assert (tmp_path / "closed.csv").read_bytes() == (tmp_path / "open.csv").read_bytes()


@posix
@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [["datasets"], ["datasets", "--json"], ["fit", "--help"]])
def test_a_full_output_is_an_error_of_one_line(words: list[str]) -> None:
    done = shell(f"> {FULL}", *words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the standard output cannot be written: ")
    assert len(done.stderr.splitlines()) == 1


@posix
@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_output_after_another_error() -> None:
    done = shell(f"> {FULL}", "datasets", "suns", "--json")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("error: unknown data set 'suns'")
    assert second.startswith("error: the standard output cannot be written: ")


def test_with_a_closed_standard_error_the_output_stays_empty(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    result = run("datasets", "suns")
    assert (result.code, result.out) == (1, "")


def test_a_broken_pipe_inside_a_command_is_an_error(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> CommandResult:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setitem(_main.COMMANDS, "datasets", Command("datasets", "", "", "", (), lambda parser: None, fail))
    result = run("datasets")
    assert (result.code, result.out) == (1, "")
    assert "Broken pipe" in result.err


def test_an_output_that_is_not_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert _main.main(["datasets", "--json"]) == 1
