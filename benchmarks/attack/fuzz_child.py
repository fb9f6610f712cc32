"""The fuzzing process of one kind of file: `fuzz.py` starts it, and starts it again when an input ends it.

Nothing of setgrad may be imported before its modules are instrumented, so this is a module of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Seconds and mebibytes that reading one small file may take.
_SECONDS, _MEBIBYTES = 30, 6000
# Packages that read files, also those that are imported where they are used.
_READERS = ("_files", "columns", "encoders", "report", "selector", "sets")


def main(name: str, folder: Path, seconds: int) -> None:
    """Fuzz one kind of file for some seconds; findings and what ended the process lie in the folder."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["setgrad"]):
        _import_readers()
        from benchmarks.attack.fuzz_inputs import INPUTS
        from benchmarks.attack.mutations import mutate_value
        from setgrad.errors import SetgradError

    warnings.simplefilter("ignore")
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    fuzzed = INPUTS[name]
    place = Path(tempfile.mkdtemp(prefix="setgrad-fuzz-"))
    read = fuzzed.prepare(place)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(fuzzed.seeds(place)):
        (corpus / f"seed-{number}").write_bytes(seed)

    def one_input(content: bytes) -> None:
        try:
            read(content)
        except SetgradError as error:
            if len(str(error)) >= 5000:
                _keep(folder, content, f"a message of {len(str(error))} characters: {str(error)[:300]}", "long message")
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            _keep(folder, content, traceback.format_exc(), f"{type(error).__name__}{place.filename}{place.lineno}")

    def mutate(content: bytes, limit: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if fuzzed.is_json and draw.random() < 0.7:
            try:
                return json.dumps(mutate_value(json.loads(content), draw)).encode()[:limit]
            except (ValueError, RecursionError):
                pass
        return bytes(atheris.Mutate(content, limit))

    options = [
        f"-max_total_time={seconds}", f"-timeout={_SECONDS}", f"-rss_limit_mb={_MEBIBYTES}", "-max_len=100000",
        f"-artifact_prefix={folder}/ended-", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], _quiet(one_input), custom_mutator=mutate)
    atheris.Fuzz()


def _import_readers() -> None:
    import pkgutil

    for package in _READERS:
        module = importlib.import_module(f"setgrad.{package}")
        for found in pkgutil.iter_modules(module.__path__):
            importlib.import_module(f"setgrad.{package}.{found.name}")


def _quiet(one_input: Callable[[bytes], None]) -> Callable[[bytes], None]:
    # Progress bars and notes of a fit would fill the log.
    import contextlib
    import io

    def run(content: bytes) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            one_input(content)

    return run


def _keep(folder: Path, content: bytes, text: str, kind: str) -> None:
    """Write a finding, once for each place in the code."""
    name = hashlib.sha256(kind.encode()).hexdigest()[:12]
    if not (folder / f"finding-{name}.txt").exists():
        (folder / f"finding-{name}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        (folder / f"finding-{name}.bin").write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
