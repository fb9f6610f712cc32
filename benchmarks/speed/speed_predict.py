"""Time of prediction: the default selector, a hand-written set transformer, and LightGBM, side by side.

Claims checked: the default takes at most 1.5 times as long for an item as the forward pass of a plain set transformer
in float32, and chooses from one set of 30 items in under 5 ms.

The models are fitted for one epoch on sets of 30 items with 20 features (`--task rows`: 8), of which 3 to 8 are chosen.
Times are medians of the processor, in turns. "alone" is the time of a call with one set. With `rows` the largest call
has 165,000 rows; the aim there is 5 times LightGBM.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.timing import time_in_turns
from benchmarks.selection.boosting import Boosting
from benchmarks.speed.plain import fit_plain, predict_plain
from benchmarks.speed.speed_tasks import DRAWN, ROWS, TABLE, make_table
from setgrad import SubsetSelector
from setgrad.datasets import Task
from setgrad.sets import Choices, subset_sizes

# Sets of one call.
COUNTS = (1, 60, 1000)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--task", choices=(TABLE, ROWS), default=TABLE, help=f"default: {TABLE}")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: 1)")
    parser.add_argument("--repeats", type=int, default=5, help="calls of each (default: 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    device = torch.device("cpu")
    machine = announce(device, options.threads)
    trained, counts = (20, COUNTS[:2]) if options.quick else (2000, COUNTS)
    sets_of_task, features = DRAWN[options.task]
    if options.task == ROWS and not options.quick:
        counts = (*counts, sets_of_task)
    drawn = ((trained, 1), (20 if options.quick else 200, 2), (max(counts), 3))
    train, held_out, test = (make_table(count, seed, features) for count, seed in drawn)
    small: dict[str, Any] = {"dim": 16, "hidden": (16,)} if options.quick else {}
    selector = SubsetSelector(max_epochs=1, members=1, random_state=0, device="cpu", verbose=0, **small)
    selector.fit(*train, validation=tuple(held_out))
    plain = fit_plain(train, held_out, 0, max_epochs=1, patience=1).model
    task = Task(options.task, "", train, held_out, test, "drawn here")
    rank = Boosting(threads=options.threads)(task, 0)
    rows: dict[str, dict[int, float]] = {}
    for count in counts:
        some = Choices(test.sets[:count], test.subsets[:count])
        sets, sizes = some.sets, torch.from_numpy(subset_sizes(some.subsets))
        calls = {
            "plain set transformer": partial(predict_plain, plain, sets, sizes),
            "default, predict": partial(selector.predict, sets),
            "default, predict(size=...)": partial(selector.predict, sets, size=sizes.tolist()),
            "default, predict_proba": partial(selector.predict_proba, sets),
            "LightGBM with its features": partial(rank, some),
        }
        timings = time_in_turns(list(calls.values()), device, 1 if options.quick else options.repeats)
        for name, timing in zip(calls, timings, strict=True):
            rows.setdefault(name, {})[count] = timing.processor
    print(show(rows))
    return {"machine": machine, "rows": rows}


def show(rows: dict[str, dict[int, float]]) -> str:
    """Return the table: seconds of a call, and how many times those of the plain set transformer."""
    first = next(iter(rows.values()))
    head = ["", *("alone" if count == 1 else f"{count} sets at once" for count in first), "an item of the largest call"]
    cells = [
        [
            name,
            *(f"{format_seconds(row[count])} ({row[count] / first[count]:.1f})" for count in first),
            f"{1e6 * row[max(row)] / max(row) / 30:.1f} us",
        ]
        for name, row in rows.items()
    ]
    return table(head, cells)
