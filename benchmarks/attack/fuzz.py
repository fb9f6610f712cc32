"""Coverage-guided fuzzing of the readers of JSON and of tables, with Atheris; by hand, for as long as you like.

    python -m benchmarks.attack.fuzz --seconds 3600 --folder FUZZ

Each kind of file gets its share of the time, in a process of its own, which is started again when an input ends it.
An input is right if it is read, or refused with a `SetgradError`. The folder keeps what was learned (`corpus`), inputs
that end in another error with their traceback (`finding-*`), and inputs that crash, hang or need more than 6 GB
(`ended-*`). A second run goes on from there. Only Python code guides the search: that of Arrow is not instrumented.

Needs `pip install atheris` (Linux, Python 3.11 to 3.13), which is in no extra and not in the lock file.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.attack.fuzz_inputs import INPUTS
from benchmarks.lib.tables import table
from setgrad.errors import MissingDependencyError, SetgradError

# An input number of libFuzzer, at the beginning of a line of its log.
_NUMBER = re.compile(r"^#(\d+)", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; return 1 if there are findings."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=int, default=3600, help="for all kinds together (default: 3600)")
    parser.add_argument("--folder", type=Path, required=True, help="for inputs and findings")
    parser.add_argument("--only", choices=list(INPUTS), action="append", help="only this kind; may be repeated")
    options = parser.parse_args(arguments)
    try:
        _check_atheris()
    except SetgradError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    names = options.only or list(INPUTS)
    rows = [_fuzz(name, options.folder / name, options.seconds // len(names)) for name in names]
    print(table(("input", "runs", "seconds", "kept inputs", "tracebacks", "ended the process"), rows))
    return int(any(row[4:] != ["0", "0"] for row in rows))


def _check_atheris() -> None:
    if importlib.util.find_spec("atheris") is None:
        raise MissingDependencyError("fuzzing needs Atheris; install it: pip install atheris")


def _fuzz(name: str, folder: Path, seconds: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    started, runs = time.monotonic(), 0
    while (left := seconds - (time.monotonic() - started)) > 5:
        log = folder / "log.txt"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "benchmarks.attack.fuzz_child", name, str(folder), str(int(left))]
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
        text = log.read_text(encoding="utf-8", errors="replace")
        numbers = [int(number) for number in _NUMBER.findall(text)]
        runs += max(numbers, default=0)
        if not numbers:
            # It ends before the first input, and would do so forever.
            raise SystemExit(f"fuzzing of {name} does not start:\n{text[-3000:]}")
        if code:
            log.rename(folder / f"ended-{time.time_ns()}.log")
    kept = [path.name for path in folder.iterdir()]
    tracebacks = sum(path.startswith("finding-") and path.endswith(".txt") for path in kept)
    ended = sum(path.startswith("ended-") and path.endswith(".log") for path in kept)
    corpus = len(list((folder / "corpus").iterdir()))
    row = [name, f"{runs:,}", str(int(time.monotonic() - started)), str(corpus), str(tracebacks), str(ended)]
    print(" ".join(row), flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
