"""One set of ten million items: peak memory and time of a training step and of a prediction, read in chunks or not.

Claims checked: with phi="umbc" a training step and a prediction of one set of ten million items of 8 numbers take less
than 2 GB of resident memory, of which the mapped file is 0.3 GB; with phi="context" they do not end within the limit of
`--limit-gb`.

The items lie in a `.npy` file (`Sets.from_npy`). One case is one new process: a fit for one epoch of one step, with two
validation sets of 2,000 items, and a choice of 1,000 items. "peak" is the largest resident memory of the process, with
what it has after `import` and with the pages of the file that the system keeps; "without the file" is the largest
anonymous memory, which no system can reclaim. The limit is one of address space, so that a case which needs more fails
and does not stop the machine. "step" is the training step alone, "fit" has validation and calibration too; times are
CPU seconds. The size of the model does not change which part of the memory grows with the set. "umbc implicit" is
`method="implicit"`, which keeps the features of all items; "whole" reads the set at once.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

import setgrad as sg
from benchmarks.lib.machine import add_machine_options, announce
from benchmarks.lib.subprocess_measure import RETURN_MEMORY, measure_in_subprocess, serve_case
from benchmarks.lib.tables import format_bytes, table
from benchmarks.lib.trials import parse_names
from setgrad.sets import Sets

SIZES = (100_000, 1_000_000, 10_000_000)
# How the set is read, and by which method. Mean field keeps the features of all items, and is measured when asked for.
WAYS: dict[str, dict[str, Any]] = {
    "umbc exact": {"phi": "umbc"},
    "umbc sample": {"phi": "umbc", "chunk_gradient": "sample"},
    "umbc implicit": {"phi": "umbc", "method": "implicit"},
    "umbc implicit whole": {"phi": "umbc", "method": "implicit", "chunk_size": 2**40},
    "context": {"phi": "context"},
}
_USUAL, _IN_CHUNKS = ("umbc exact", "umbc sample", "context"), ("umbc exact", "umbc sample")
FEATURES, WANTED, TARGET = 8, 1000, 2e9
# An item is chosen if its first number is above this: six in a thousand.
_CUT = 2.5
_ROWS = 100_000


@final
@dataclass(frozen=True)
class Case:
    """One measurement: a file with one set, and how it is read."""

    path: str
    way: str
    dim: int
    layers: int
    hidden: int
    limit: float


@final
@dataclass(frozen=True)
class Measured:
    """Bytes and CPU seconds; with an error no result."""

    peak: int = 0
    anonymous: int = 0
    fit: float = 0.0
    step: float = 0.0
    predict: float = 0.0
    error: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--items", default=sizes, help=f"items of the set, one size or several (default: {sizes})")
    parser.add_argument("--ways", default=",".join(_USUAL), help=f"of {', '.join(WAYS)} (default: {', '.join(_USUAL)})")
    parser.add_argument("--dim", type=int, default=32, help="numbers that phi computes for an item (default: 32)")
    parser.add_argument("--layers", type=int, default=1, help="attention layers (default: 1)")
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer of F (default: 64)")
    parser.add_argument("--limit-gb", type=float, default=8.0, help="address space of a process (default: 8 GB)")
    add_machine_options(parser, device=False)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print one row for each size and way."""
    machine = announce(torch.device("cpu"), options.threads)
    sizes = [20_000] if options.quick else [int(size) for size in options.items.split(",")]
    rows: list[dict[str, Any]] = []
    for items in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = write_items(Path(folder) / "items.npy", items)
            for way in parse_names(options.ways, WAYS, "way"):
                print(f"measuring {items:,} items, {way}", file=sys.stderr, flush=True)
                case = Case(str(path), way, options.dim, options.layers, options.hidden, 1e9 * options.limit_gb)
                found = measure_in_subprocess("benchmarks.speed.huge_set", case, RETURN_MEMORY)
                rows.append({"items": items, "way": way, **found})
                print(cells(rows[-1]), file=sys.stderr, flush=True)
    print("\n## One large set\n")
    head = ["items", "phi", "peak", "without the file", "step, s", "fit, s", "predict, s"]
    print(table(head, [cells(row) for row in rows]))
    most = max((row["peak"] for row in rows if row["way"] in _IN_CHUNKS and not row["error"]), default=0)
    print(f'\nlargest peak with phi="umbc": {format_bytes(most)} (target: below {format_bytes(int(TARGET))})')
    return {"machine": machine, "rows": rows, "peak": most}


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    head = [f"{row['items']:,}", row["way"]]
    if row["error"]:
        return [*head, row["error"], "", "", "", ""]
    sizes = [format_bytes(row[name]) for name in ("peak", "anonymous")]
    return [*head, *sizes, *(f"{row[name]:.0f}" for name in ("step", "fit", "predict"))]


def write_items(path: Path, items: int) -> Path:
    """Write normal numbers, in parts; the first items do not depend on how many there are."""
    generator = np.random.default_rng(0)
    parts = (
        generator.standard_normal((min(_ROWS, items - start), FEATURES), np.float32) for start in range(0, items, _ROWS)
    )
    sg.sets.write_npy(parts, path)
    return path


def measure(case: Case, device: torch.device) -> Measured:
    """Fit and predict in this process, whose address space is limited."""
    del device
    resource.setrlimit(resource.RLIMIT_AS, (int(case.limit), int(case.limit)))
    watch = _Watch()
    try:
        return _measure(case, watch)
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and "memory" not in text:
            raise
        return Measured(error=f"needs more than {format_bytes(int(case.limit))}")
    finally:
        watch.stop()


def _measure(case: Case, watch: _Watch) -> Measured:
    sets = Sets.from_npy(case.path)
    starts = range(0, len(sets.values), _ROWS)
    chosen = np.concatenate([start + chosen_rows(sets.values[start : start + _ROWS]) for start in starts])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        few = list(torch.randn(2, 2000, FEATURES))
    validation = (Sets.from_list(few), [chosen_rows(items) for items in few])
    selector = sg.SubsetSelector(
        **WAYS[case.way],
        dim=case.dim,
        layers=case.layers,
        hidden=(case.hidden,),
        max_epochs=1,
        device="cpu",
        random_state=0,
        verbose=0,
    )
    started, wall = time.process_time(), time.perf_counter()
    selector.fit(sets, [chosen], validation=validation)
    fit, share = time.process_time() - started, (time.process_time() - started) / (time.perf_counter() - wall)
    started = time.process_time()
    picks = selector.predict(sets, size=WANTED)
    predict = time.process_time() - started
    assert int(picks.values.sum()) == WANTED
    # The history has wall time, of which the process had this share of a core.
    step = selector.history_[0]["seconds"] * share
    return Measured(status("VmHWM"), watch.largest, fit, step, predict)


def chosen_rows(items: torch.Tensor) -> np.ndarray:
    """Return the indices of the items that are chosen."""
    return np.flatnonzero(items[:, 0].numpy() > _CUT)


def status(name: str) -> int:
    """Return a number of bytes from the status of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@final
class _Watch:
    """Notes the largest anonymous memory of this process, for which the system has no peak."""

    def __init__(self) -> None:
        self.largest, self._stopped = 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            self.largest = max(self.largest, status("RssAnon"))


if __name__ == "__main__":
    serve_case(Case, measure)
