"""Training steps and predictions of `method="unrolled"` with several members, in the ways that the selector has.

Claims checked: on a GPU the default eight members, together and replayed as a CUDA graph, take no more time than one
member alone.

- `apart`: one member after the other, the only way on a CPU;
- `together`: one call for all members;
- `CUDA graph`: the same, replayed as a CUDA graph.

Between epochs members predict the logits of the validation sets, here ten times as many as in a batch.

A batch is as on Amazon: 64 sets of 30 items with 384 features. Times are medians of blocks of steps in turns, of the
clock; ratios are to one member apart. Losses of the fifth step, which is replayed, are compared: Adam amplifies the
rounding of small gradients, so later losses drift apart.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.timing import time_in_turns
from benchmarks.selection.models import MEMBERS
from setgrad.functions import FreshNoise
from setgrad.inference import AllItems
from setgrad.selector import SelectorOptions, resolve_device
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_config import ModelConfig
from setgrad.selector._stacked_weights import CUDAGraphReplay, StackedWeights
from setgrad.selector._trainable_weights import Batch, SeparateWeights, TrainableWeights
from setgrad.sets import Sets

COUNTS = (1, 2, 4, 8, 16)
TARGET = 1.0
BLOCK, REPEATS = 10, 9
RATE = 1e-3
# More steps than are ever run: no graph is recorded.
NEVER = 10**9
EARLY = 5
APART, TOGETHER, GRAPH = "apart", "together", "CUDA graph"
PREDICTED = (APART, TOGETHER)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--members", default=",".join(map(str, COUNTS)), help=f"default: {COUNTS}")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    device = resolve_device(options.device)
    machine = announce(device)
    counts = [1, 2] if options.quick else [int(count) for count in options.members.split(",")]
    batch = make_batch(4 if options.quick else 64, device)
    predicted = make_batch(10 * len(batch.sets), device).sets
    rows = [measure(count, batch, predicted, device, quick=options.quick) for count in counts]
    show(rows)
    return {"machine": machine, "rows": rows}


def make_batch(sets: int, device: torch.device) -> Batch:
    """Return random sets with a fifth of their items chosen."""
    generator = torch.Generator().manual_seed(0)
    drawn = Sets.from_lengths(torch.randn(30 * sets, 384, generator=generator), [30] * sets).to(device)
    chosen = drawn.with_values((torch.rand(30 * sets, generator=generator) < 0.2).to(device))
    return Batch(drawn, chosen, None, None, AllItems())


def make_weights(count: int, way: str, device: torch.device) -> TrainableWeights:
    """Return the weights of the model, to be trained in that way."""
    options = SelectorOptions(
        method="unrolled",
        hidden=(512, 256),
        relation=0,
        pairs=False,
        members=count,
        estimator="bernoulli",
        samples=5,
        loss="all",
        steps=1,
    )
    config = ModelConfig(options, item_shape=(384,), slots=None)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = ChoiceModel(config).to(device)
    descent: dict[str, Any] = {"weight_decay": options.weight_decay, "clip": options.clip}
    if way == APART:
        return SeparateWeights(model, **descent)
    weights = StackedWeights(model, **descent)
    if way == TOGETHER:
        weights.replay = CUDAGraphReplay(warm_up=NEVER)
    return weights


def measure(count: int, batch: Batch, predicted: Sets, device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Return the seconds of a step and of a prediction by each way, and the difference of an early loss."""
    ways = [APART, TOGETHER, *([GRAPH] if device.type == "cuda" else [])]
    trained = {way: (make_weights(count, way, device), FreshNoise(0)) for way in ways}
    losses: dict[str, list[Any]] = {way: [] for way in ways}
    block, usual = 1 if quick else BLOCK, SelectorOptions(method="unrolled")

    def train(way: str) -> None:
        weights, noise = trained[way]
        losses[way] += [weights.step(batch, noise, RATE, usual.average)[0] for _ in range(block)]

    repeats = 1 if quick else REPEATS
    timings = time_in_turns([partial(train, way) for way in ways], device, repeats)
    predictions = time_in_turns([partial(trained[way][0].infer, predicted) for way in PREDICTED], device, repeats)
    early = {way: float(values[min(EARLY, len(values)) - 1]) for way, values in losses.items()}
    return {
        "members": count,
        "seconds": {way: timing.clock / block for way, timing in zip(ways, timings, strict=True)},
        "predict": {way: timing.clock for way, timing in zip(PREDICTED, predictions, strict=True)},
        "difference": max(abs(value / early[APART] - 1) for value in early.values()),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table and the verdict."""
    one = next((row["seconds"][APART] for row in rows if row["members"] == 1), None)
    ways = list(rows[0]["seconds"])
    cells = []
    for row in rows:
        times = [row["seconds"][way] for way in ways]
        shown = [f"{format_seconds(t)}" + ("" if one is None else f" ({t / one:.2f})") for t in times]
        predictions = [format_seconds(row["predict"][way]) for way in PREDICTED]
        cells.append([str(row["members"]), *shown, f"{row['difference']:.1e}", *predictions])
    print()
    heads = [*(f"{way} (to one apart)" for way in ways), "losses differ by", *(f"predict {way}" for way in PREDICTED)]
    print(table(["members", *heads], cells))
    usual = next((row["seconds"].get(GRAPH) for row in rows if row["members"] == MEMBERS), None)
    if one is not None and usual is not None:
        verdict = "met" if usual <= TARGET * one else "missed"
        print(f"\n{MEMBERS} members, CUDA graph, take {usual / one:.2f} times one apart (target {TARGET:g}): {verdict}")
