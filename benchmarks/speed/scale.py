"""Data larger than memory: fit and predict on Parquet files that are streamed, killed and resumed.

Claims checked: a fit of two epochs and a prediction of 50 million rows, in sets of 10 to 100,000 items, stay within 6
GB; and a fit that is killed three times at random moments gives the model of one that was not, bit for bit.

The table has six numbers, a category and a fact of the set; up to 20 items of a set are chosen. `setgrad fit --stream`
and `setgrad predict --stream` run in processes of their own, whose time of the processor and peak of memory the system
reports. The rate of a fit counts the rows of every epoch, and all that a fit does beside training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import table
from benchmarks.speed.scale_data import write_parts

# What a run with the default sizes must stay within, in bytes.
LIMIT = 6e9
_COLUMNS = ("--set-id", "set", "--chosen", "chosen")


@final
@dataclass(frozen=True)
class Run:
    """What one command took.

    Attributes:
        seconds: Time from start to end, all of its processes together.
        cpu: Time of the processor.
        peak: Peak of memory of the largest process, in bytes.
        kills: How often it was killed.
        result: What it printed as JSON.
    """

    seconds: float
    cpu: float
    peak: int
    kills: int
    result: dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rows", type=int, default=50_000_000, help="rows of the table (default: 50 million)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs (default: 2)")
    parser.add_argument("--kills", type=int, default=3, help="kills of the second fit (default: 3)")
    parser.add_argument("--dim", type=int, default=128, help="features of an item in the model (default: 128)")
    parser.add_argument("--largest", type=int, default=100_000, help="items of the largest sets (default: 100,000)")
    parser.add_argument("--held-out", type=float, default=0.2, help="share of the sets to validate on (default: 0.2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the table, the fit and the kills (default: 0)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: 1)")
    parser.add_argument("--folder", type=Path, help="folder for the table and the models (default: a temporary one)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    if options.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return _run(options, Path(folder))
    options.folder.mkdir(parents=True, exist_ok=True)
    return _run(options, options.folder)


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    machine = announce(torch.device("cpu"), options.threads)
    rows, largest = (4000, 300) if options.quick else (options.rows, options.largest)
    started = time.perf_counter()
    data = folder / "data"
    sets = write_parts(data, rows, largest=largest, seed=options.seed, part_rows=1500 if options.quick else 2**20)
    size = sum(path.stat().st_size for path in data.iterdir())
    print(
        f"{rows:,} rows in {sets:,} sets, {size / 1e9:.2f} GB of Parquet, written in "
        f"{time.perf_counter() - started:.0f} s",
        flush=True,
    )
    fit = ["fit", str(data), "--stream", *_COLUMNS, "--dim", str(8 if options.quick else options.dim)]
    fit += ["--max-epochs", str(options.epochs), "--patience", str(options.epochs), "--random-state", str(options.seed)]
    fit += ["--device", "cpu", "--verbose", "0", "--validation-fraction", str(options.held_out)]
    plain = _measure([*fit, "-o", str(folder / "model")], options.threads)
    _tell("fit", plain)
    resumed = _measure(
        [*fit, "-o", str(folder / "resumed"), "--checkpoint", str(folder / "run.ckpt"), "--checkpoint-minutes", "0.05"],
        options.threads,
        kills=options.kills,
        within=plain.seconds,
        rng=random.Random(options.seed),
    )
    _tell(f"fit, killed {resumed.kills} times", resumed)
    same = _digest(folder / "model") == _digest(folder / "resumed")
    picks = folder / "picks.parquet"
    predict = _measure(["predict", str(folder / "model"), str(data), "--stream", "-o", str(picks)], options.threads)
    _tell("predict", predict)
    done = {
        "fit": (plain, options.epochs * rows),
        f"fit, killed {resumed.kills} times": (resumed, options.epochs * rows),
        "predict": (predict, rows),
    }
    lines = [
        [name, f"{one.seconds:.0f} s", f"{one.cpu:.0f} s", f"{work / one.cpu:,.0f}", f"{one.peak / 1e9:.2f} GB"]
        for name, (one, work) in done.items()
    ]
    print(table(["command", "time", "of the processor", "rows a second of it", "peak"], lines))
    print(f"the models of both fits are {'the same, bit for bit' if same else 'DIFFERENT'}")
    runs = {"fit": plain, "resumed": resumed, "predict": predict}
    is_small = max(one.peak for one in runs.values()) <= LIMIT
    return {
        "machine": machine,
        "rows": rows,
        "sets": sets,
        "bytes": size,
        "runs": {name: asdict(one) for name, one in runs.items()},
        "same": same,
        "failed": not (same and is_small and predict.result["items"] == rows),
    }


def _tell(name: str, one: Run) -> None:
    print(f"{name}: {one.seconds:.0f} s, {one.cpu:.0f} of the processor, peak {one.peak / 1e9:.2f} GB", flush=True)


def _measure(
    arguments: Sequence[str],
    threads: int,
    *,
    kills: int = 0,
    within: float = 0.0,
    rng: random.Random | None = None,
) -> Run:
    """Run a command of setgrad to its end.

    Args:
        arguments: Its arguments.
        threads: Its threads.
        kills: How often it is killed and started again.
        within: About how many seconds it takes in all; kills come at random moments of it.
        rng: Where these are drawn from.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    seconds, cpu, peak, done = 0.0, 0.0, 0, 0
    while True:
        started = time.perf_counter()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "setgrad", *arguments, "--json"], stdout=output, env=environment
            )
            if done < kills and rng is not None:
                time.sleep(within * rng.uniform(0.1, 0.9) / kills)
                # If it has ended before, it waits to be asked how, and the signal does nothing.
                os.kill(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds, peak = seconds + time.perf_counter() - started, max(peak, usage.ru_maxrss * 1024)
            cpu += usage.ru_utime + usage.ru_stime
            if process.returncode == -signal.SIGKILL:
                done += 1
                continue
            if process.returncode:
                raise SystemExit(f"{' '.join(arguments)} failed")
            output.seek(0)
            return Run(seconds, cpu, peak, done, json.load(output))


def _digest(model: Path) -> str:
    """Return a hash of a model: its weights, and its configuration without times."""
    config = json.loads((model / "config.json").read_text())
    for record in config["history"]:
        del record["seconds"]
    del config["origin"]["date"]
    for options in (config["options"], config["options_in_use"]):
        del options["checkpoint_minutes"]
    weights = (model / "weights.safetensors").read_bytes()
    return hashlib.sha256(weights + json.dumps(config, sort_keys=True).encode()).hexdigest()
