"""Data larger than memory: fit and predict on Parquet files that are streamed, killed and resumed.

Claims checked: a fit of two epochs and a prediction of 50 million rows, in sets of 10 to 100,000 items, stay within 6
GB; and a fit that is killed at random moments and resumed gives the same model, bit for bit.

The table has six numbers, a category and a fact of the set; up to 20 items of a set are chosen. `setgrad fit --stream`
and `setgrad predict --stream` run in processes of their own, whose time of the processor and peak of memory the system
reports. The rate of a fit counts the rows of every epoch, and all that it does beside training, again after each kill.

Without --seconds the first of two fits is not killed, and the second one three times. With --seconds a call ends after
about so long, and the next call with the same folder goes on: both fits are then killed in every call, at moments that
are drawn for each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import table
from benchmarks.speed.scale_data import write_parts
from benchmarks.speed.scale_runs import Runs

# What a run with the default sizes must stay within, in bytes.
LIMIT = 6e9
_COLUMNS = ("--set-id", "set", "--chosen", "chosen")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rows", type=int, default=50_000_000, help="rows of the table (default: 50 million)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs (default: 2)")
    parser.add_argument("--kills", type=int, default=3, help="kills of the second fit (default: 3)")
    parser.add_argument("--dim", type=int, default=128, help="features of an item in the model (default: 128)")
    parser.add_argument("--largest", type=int, default=100_000, help="items of the largest sets (default: 100,000)")
    parser.add_argument("--held-out", type=float, default=0.2, help="share of the sets to validate on (default: 0.2)")
    parser.add_argument("--parts", type=int, default=1, help="parts in which the picks are written (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the table, the fit and the kills (default: 0)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: 1)")
    parser.add_argument("--seconds", type=float, help="end after about so many seconds; the next call goes on")
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
    runs = Runs(folder / "runs.jsonl", options.threads, options.seconds, random.Random(f"{time.time_ns()}"))
    rows = 4000 if options.quick else options.rows
    sets, size = _table(folder, rows, options)
    data = str(folder / "data")
    fit = ["fit", data, "--stream", *_COLUMNS, "--dim", str(8 if options.quick else options.dim)]
    fit += ["--max-epochs", str(options.epochs), "--patience", str(options.epochs), "--random-state", str(options.seed)]
    fit += ["--device", "cpu", "--verbose", "0", "--validation-fraction", str(options.held_out)]
    models = [folder / "model", folder / "resumed"]
    for number, (name, model) in enumerate(zip(("fit", "fit again"), models, strict=True)):
        # The states of a fit that is not killed are not saved, and cost no time.
        saved = ["--checkpoint", str(folder / f"{number}.ckpt"), "--checkpoint-minutes", "0.05" if number else "2"]
        more = saved if number or options.seconds else []
        runs.finish(name, [*fit, *more, "-o", str(model)], kills=options.kills if number else 0)
    for part in range(options.parts):
        shares = ["--part", f"{part + 1}/{options.parts}"] if options.parts > 1 else []
        out = folder / ("picks" if shares else "picks.parquet")
        runs.finish(f"predict {part}", ["predict", str(models[0]), data, "--stream", *shares, "-o", str(out)])
    if runs.is_over:
        print("the next call with this folder goes on")
        return {"machine": machine, "rows": rows, "failed": False, "finished": False}
    same = _digest(models[0]) == _digest(models[1])
    predicted = [f"predict {part}" for part in range(options.parts)]
    done = {
        "fit": (runs.total("fit"), options.epochs * rows),
        "fit again": (runs.total("fit again"), options.epochs * rows),
        "predict": (runs.total(*predicted), rows),
    }
    lines = [
        [
            name,
            f"{total.kills}",
            f"{total.seconds:.0f} s",
            f"{total.cpu:.0f} s",
            f"{work / total.cpu:,.0f}",
            f"{total.peak / 1e9:.2f} GB",
        ]
        for name, (total, work) in done.items()
    ]
    print(table(["command", "killed", "time", "of the processor", "rows a second of it", "peak"], lines))
    print(f"the models of both fits are {'the same, bit for bit' if same else 'DIFFERENT'}")
    is_small = all(total.peak <= LIMIT for total, _ in done.values())
    items = sum(runs.total(name).items for name in predicted)
    return {
        "machine": machine,
        "rows": rows,
        "sets": sets,
        "bytes": size,
        "runs": {name: total.to_json() for name, (total, _) in done.items()},
        "same": same,
        "finished": True,
        "failed": not (same and is_small and items == rows),
    }


def _table(folder: Path, rows: int, options: argparse.Namespace) -> tuple[int, int]:
    """Write the table, unless it is there, and return its number of sets and of bytes."""
    data, note = folder / "data", folder / "data.json"
    if not note.exists():
        started = time.perf_counter()
        largest, part_rows = (300, 1500) if options.quick else (options.largest, 2**20)
        sets = write_parts(data, rows, largest=largest, seed=options.seed, part_rows=part_rows)
        size = sum(path.stat().st_size for path in data.iterdir())
        note.write_text(json.dumps({"rows": rows, "sets": sets, "bytes": size}))
        print(f"written in {time.perf_counter() - started:.0f} s")
    found = json.loads(note.read_text())
    if found["rows"] != rows:
        raise SystemExit(f"{folder} has a table of {found['rows']:,} rows; name another folder")
    print(f"{rows:,} rows in {found['sets']:,} sets, {found['bytes'] / 1e9:.2f} GB of Parquet", flush=True)
    return found["sets"], found["bytes"]


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
