"""Steps and questions of the default model with several members, by the ways that the selector has.

Claims checked: on a GPU the usual eight members, together and played again, take no more time than one member on its
own, which is how the selector trained before it had members.

- `apart`: one member after the other (`OwnWeights`), the only way on a CPU;
- `together`: one call for all (`RowWeights`), its operations started by the host;
- `played again`: the same, recorded once (a CUDA graph).

Between epochs members are asked for the logits of the validation sets, here ten times as many as in a batch.

A batch is as on Amazon: 64 sets of 30 items with 384 features. Times are medians of blocks of steps in turns, of the
clock; ratios are to one member apart. Losses of the fifth step, which is played again, are compared: Adam makes much of
the rounding of small gradients, so that later ones drift apart.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.lib.device import resolve_device
from benchmarks.lib.machine import describe, describe_line
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.timing import time_side_by_side
from benchmarks.selection.models import MEMBERS
from setgrad import SubsetSelector
from setgrad.functions import FreshNoise
from setgrad.inference import AllItems
from setgrad.selector._member import ModelConfig
from setgrad.selector._model import ChoiceModel
from setgrad.selector._replay import Replay
from setgrad.selector._rows import RowWeights
from setgrad.selector._weights import Batch, Descent, OwnWeights, Weights
from setgrad.sets import Sets

COUNTS = (1, 2, 4, 8, 16)
TARGET = 1.0
BLOCK, REPEATS = 10, 9
# A number of steps that is not reached: nothing is recorded.
NEVER = 10**9
EARLY = 5
APART, TOGETHER, PLAYED = "apart", "together", "played again"
ASKED = (APART, TOGETHER)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--members", default=",".join(map(str, COUNTS)), help=f"default: {COUNTS}")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    device = resolve_device(options.device)
    machine = describe(device)
    print(describe_line(machine), flush=True)
    counts = [1, 2] if options.quick else [int(count) for count in options.members.split(",")]
    batch = make_batch(4 if options.quick else 64, device)
    asked = make_batch(10 * len(batch.sets), device).sets
    rows = [measure(count, batch, asked, device, quick=options.quick) for count in counts]
    show(rows)
    return {"machine": machine, "rows": rows}


def make_batch(sets: int, device: torch.device) -> Batch:
    """Sets of items without meaning; a fifth of them chosen."""
    generator = torch.Generator().manual_seed(0)
    drawn = Sets.from_lengths(torch.randn(30 * sets, 384, generator=generator), [30] * sets).to(device)
    chosen = drawn.with_values((torch.rand(30 * sets, generator=generator) < 0.2).to(device))
    return Batch(drawn, chosen, None, None, AllItems())


def make_weights(count: int, way: str, device: torch.device) -> Weights:
    """The default model, ready to be trained in that way."""
    usual = SubsetSelector()
    config = ModelConfig(
        method=usual.method,
        function=usual.function,
        item_shape=(384,),
        phi="context",
        dim=usual.dim,
        layers=usual.layers,
        heads=usual.heads,
        slots=None,
        hidden=tuple(usual.hidden),
        relation=0,
        members=count,
        estimator="bernoulli",
        samples=usual.samples,
        steps=1,
        scale=None,
        standardize=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = ChoiceModel(config).to(device)
    descent = Descent(usual.weight_decay, usual.clip)
    if way == APART:
        return OwnWeights(model, descent)
    weights = RowWeights(model, descent)
    if way == TOGETHER:
        weights.replay = Replay(warm_up=NEVER)
    return weights


def measure(count: int, batch: Batch, asked: Sets, device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Seconds of a step and of a question by each way, and how far the losses of an early step are apart."""
    ways = [APART, TOGETHER, *([PLAYED] if device.type == "cuda" else [])]
    trained = {way: (make_weights(count, way, device), FreshNoise(0), []) for way in ways}
    block, usual = 1 if quick else BLOCK, SubsetSelector()

    def work(way: str) -> None:
        weights, noise, losses = trained[way]
        losses += [weights.step(batch, noise, usual.learning_rate, usual.average)[0] for _ in range(block)]

    works = [lambda way=way: work(way) for way in ways]
    timings = time_side_by_side(works, device, 1 if quick else REPEATS)
    questions = [lambda way=way: trained[way][0].infer(asked) for way in ASKED]
    answers = time_side_by_side(questions, device, 1 if quick else REPEATS)
    early = {way: float(losses[min(EARLY, len(losses)) - 1]) for way, (_, _, losses) in trained.items()}
    return {
        "members": count,
        "seconds": {way: timing.clock / block for way, timing in zip(ways, timings, strict=True)},
        "asked": {way: timing.clock for way, timing in zip(ASKED, answers, strict=True)},
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
        answers = [format_seconds(row["asked"][way]) for way in ASKED]
        cells.append([str(row["members"]), *shown, f"{row['difference']:.1e}", *answers])
    print()
    steps, questions = (f"{way} (to one apart)" for way in ways), (f"asked {way}" for way in ASKED)
    print(table(["members", *steps, "losses differ by", *questions], cells))
    usual = next((row["seconds"].get(PLAYED) for row in rows if row["members"] == MEMBERS), None)
    if one is not None and usual is not None:
        verdict = "met" if usual <= TARGET * one else "missed"
        print(
            f"\n{MEMBERS} members, played again, take {usual / one:.2f} times one apart (target {TARGET:g}): {verdict}"
        )
