"""One fit by several processes: `torchrun --nproc-per-node N -m setgrad fit` beside one process.

Claims checked: the training loss of every epoch is that of one process up to 1e-5, with any number of processes. The
validation losses and scores may differ by more, because rounding grows with the steps; by how much is told.

The table is that of the benchmark `scale`, with smaller sets, and is streamed. Each count of processes fits it once,
and then predicts it in as many parts. Times of the processor are those of all processes together, with torchrun itself;
what they grow by is work that each process repeats: its start, reading the ids, drawing the batches, and the sending.
Where there are fewer cores than processes, seconds tell nothing about a larger machine. Two rates come first: reading
the ids, which every process does, and adding up the gradients of a step in two processes. `--counts` without a number
ends there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import table
from benchmarks.speed.scale_data import write_parts
from setgrad.sets._parquet import ParquetTable
from setgrad.sets._set_index import SetIndex

TOLERANCE = 1e-5
_COMPARED = ("loss", "validation_loss", "validation_jaccard")
_COLUMNS = ("--set-id", "set", "--chosen", "chosen")


@final
@dataclass(frozen=True)
class Run:
    """What a command took.

    Attributes:
        processes: The number of processes.
        seconds: How long it ran.
        cpu: Time of the processor, of all processes.
        peak: The largest peak of memory of a process, in bytes.
    """

    processes: int
    seconds: float
    cpu: float
    peak: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the table (default: 100,000)")
    parser.add_argument("--largest", type=int, default=1000, help="items of the largest sets (default: 1,000)")
    parser.add_argument(
        "--counts", type=int, nargs="*", default=[1, 2, 4], help="numbers of processes (default: 1 2 4)"
    )
    parser.add_argument("--epochs", type=int, default=2, help="epochs (default: 2)")
    parser.add_argument("--dim", type=int, default=128, help="features of an item in the model (default: 128)")
    parser.add_argument("--weights", type=int, default=600_000, help="weights that are added up (default: 600,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the table and the fit (default: 0)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    machine = announce(torch.device("cpu"), 1)
    rows, largest, dim = (4000, 300, 8) if options.quick else (options.rows, options.largest, options.dim)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sets = write_parts(folder / "data", rows, largest=largest, seed=options.seed, part_rows=max(2000, rows // 8))
        print(f"{rows:,} rows in {sets:,} sets; {os.cpu_count()} cores", flush=True)
        rates = {"ids": _id_rate(folder / "data"), "sum": _sum_seconds(folder, options.weights)}
        print(f"ids: {rates['ids']:,.0f} rows a second of the processor", flush=True)
        print(f"{options.weights:,} weights are added up by two processes in {1e3 * rates['sum']:.1f} ms", flush=True)
        data, epochs = str(folder / "data"), str(options.epochs)
        fit = ["fit", data, "--stream", *_COLUMNS, "--dim", str(dim), "--random-state", str(options.seed)]
        fit += ["--max-epochs", epochs, "--patience", epochs, "--device", "cpu"]
        fits, predictions, histories = [], [], []
        for count in options.counts:
            model = folder / f"model{count}"
            fits.append(_torchrun(count, [*fit, "-o", str(model)]))
            config = json.loads((model / "config.json").read_text())
            histories.append(config["history"])
            predict = ["predict", str(model), data, "--stream", "-o"]
            picks = folder / (f"picks{count}" if count > 1 else "picks.parquet")
            predictions.append(_torchrun(count, [*predict, str(picks)]))
    apart = [_difference(histories[0], history) for history in histories]
    found = [("fit", options.epochs * rows, fits), ("predict", rows, predictions)]
    lines = [
        [
            f"{name}, {one.processes}",
            f"{one.seconds:.0f} s",
            f"{one.cpu:.0f} s",
            f"{work / one.cpu:,.0f}",
            f"{one.peak / 1e9:.2f} GB",
            *(f"{difference[key]:.1e}" if name == "fit" else "" for key in _COMPARED),
        ]
        for name, work, runs in found
        for one, difference in zip(runs, apart, strict=True)
    ]
    head = ["command, processes", "time", "of the processor", "rows a second of it", "peak of one", *_COMPARED]
    if lines:
        print(table(head, lines))
    return {
        "machine": machine,
        "rows": rows,
        "sets": sets,
        "fit": [asdict(one) for one in fits],
        "predict": [asdict(one) for one in predictions],
        "difference": apart,
        "rates": rates,
        "failed": any(one["loss"] > TOLERANCE for one in apart),
    }


def _torchrun(count: int, arguments: list[str]) -> Run:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [sys.executable, *launcher, "-m", "setgrad", *arguments, "--json"]
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    # The usage of the processes that torchrun has waited for is part of its own.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed with {count} processes")
    one = Run(count, time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
    print(f"{arguments[0]}, {count} processes: {one.seconds:.0f} s, {one.cpu:.0f} of the processor", flush=True)
    return one


def _id_rate(data: Path) -> float:
    """Return the rows a second of the processor whose ids are read."""
    opened, began = ParquetTable.open(data), time.process_time()
    SetIndex.read(opened, "set", None)
    return opened.rows / (time.process_time() - began)


def _sum_seconds(folder: Path, weights: int) -> float:
    """Return the median time in which two processes add up so many numbers."""
    mp.spawn(_time_sums, args=(str(folder / "meet"), str(folder / "sums"), weights), nprocs=2)
    return float((folder / "sums").read_text())


def _time_sums(rank: int, meet: str, result: str, weights: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    numbers, times = torch.zeros(weights), []
    for _ in range(50):
        began = time.perf_counter()
        dist.all_reduce(numbers)
        times.append(time.perf_counter() - began)
    if rank == 0:
        Path(result).write_text(str(statistics.median(times)))
    dist.destroy_process_group()


def _difference(first: list[dict[str, float]], other: list[dict[str, float]]) -> dict[str, float]:
    """Return the largest difference of each loss and score over the epochs; infinity if the epochs are others."""
    if len(first) != len(other):
        return dict.fromkeys(_COMPARED, float("inf"))
    return {
        name: max(abs(own[name] - record[name]) for own, record in zip(first, other, strict=True)) for name in _COMPARED
    }
