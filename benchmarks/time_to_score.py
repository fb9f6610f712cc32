"""Training time to the same score: the default selector against the published model trained with mask tensors.

Claims checked: on every Amazon category the default reaches the best validation score of the mask-tensor baseline in at
most a fifth of the time that the baseline needs for it.

The baseline is the published way: linear phi of 256, rho 500-500, one step from 1/2 with 5 masks for each item, loss on
S* and as many negatives, Adam with weight decay 1e-5, batches of 128, patience 20, one row for each learning rate. Both
see the loaders' own splits and are validated after every epoch with the true size, each its own way. Clocks start
at the first epoch, with the data on the device; validation counts for both, a warm-up of each does not. The best of a
noisy curve comes late, so "1 point less" gives the ratio of times to one point below the baseline's best as well; where
the baseline learns nothing its best is that of a fresh network, and comes at once. "in all" is when training stopped.

The second table shows what the flips alone are worth: one pass over the training sets with the default model, its gains
by flips and by mask tensors, all else equal, medians of passes in turns.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks._machine import describe, describe_line
from benchmarks._measure import time_side_by_side
from benchmarks._tables import seconds, table
from benchmarks._trials import chosen
from benchmarks.baselines.mask_tensor import MaskTensorMeanField
from setgrad import SubsetSelector, datasets
from setgrad.datasets import AMAZON_CATEGORIES, AMAZON_PROTOCOLS, Task
from setgrad.errors import OptionError
from setgrad.functions import DeepSet, Fresh
from setgrad.inference import AllItems
from setgrad.selector import jaccard, pick_top
from setgrad.selector._fit import resolve_device
from setgrad.selector._model import ChoiceModel
from setgrad.sets import Choices, Sets, subset_sizes

LIMIT = 0.2
SAMPLES = 5
BATCH = 128
# Sets of one validation batch of the baseline: bounds its activations, and is large enough for a GPU.
VALIDATION_BATCH = 512
WEIGHT_DECAY, CLIP = 1e-5, 10.0
POINT = 0.01


@final
@dataclass(frozen=True)
class Plan:
    """How long to train. `most` bounds the epochs of both; `sets` the sets of each split, None for all."""

    most: int = 100
    patience: int = 20
    sets: int | None = None
    repeats: int = 3


FULL = Plan()
QUICK = Plan(most=2, patience=2, sets=24, repeats=1)
WARM_UP = Plan(most=1)


@final
@dataclass(frozen=True)
class Curve:
    """Validation scores after each epoch, the seconds on the clock then, and the test score of the best epoch."""

    seconds: list[float]
    scores: list[float]
    test: float

    @property
    def best(self) -> float:
        """The best validation score."""
        return max(self.scores)

    def time_to(self, score: float) -> float:
        """When the score was first reached; infinity if it never was."""
        return next((s for s, found in zip(self.seconds, self.scores, strict=True) if found >= score), math.inf)

    def to_json(self) -> dict[str, Any]:
        """All of it, with what the tables read."""
        return {**asdict(self), "best": self.best, "time_to_best": self.time_to(self.best)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--categories", help="Amazon categories (default: all; with --quick: safety)")
    parser.add_argument("--protocols", default="farthest", help="farthest, random (default: farthest)")
    parser.add_argument("--baseline-lr", default="1e-4,1e-3", help="learning rates of the baseline (default: both)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each; tables show medians (default: 1)")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: all cores)")
    parser.add_argument("--data-dir", help="folder of the data files (default: the variable SETGRAD_DATA)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train all in turns and print both tables."""
    device = resolve_device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    plan = QUICK if options.quick else FULL
    usual = ("safety",) if options.quick else AMAZON_CATEGORIES
    categories = chosen(options.categories, AMAZON_CATEGORIES, "Amazon category") if options.categories else usual
    protocols = chosen(options.protocols, AMAZON_PROTOCOLS, "Amazon protocol")
    rates = _rates(options.baseline_lr)
    machine = describe(device)
    print(describe_line(machine), flush=True)
    names = [f"amazon:{category}:{protocol}" for protocol in protocols for category in categories]
    results = []
    for name in names:
        _say(name)
        few = plan.sets
        task = datasets.load(name, data_dir=options.data_dir, n_train=few, n_validation=few, n_test=few)
        results.append(compare(task, rates, plan, range(options.seeds), device))
    print(f"\n## Time to the best validation score of the mask-tensor baseline, seeds: {options.seeds}\n")
    print(time_table(results))
    print(f"\n{verdict(results)}")
    print("\n## One pass over the training sets, default model: gains by flips and by mask tensors\n")
    print(pass_table(results), flush=True)
    return {"machine": machine, "plan": asdict(plan), "limit": LIMIT, "tasks": results}


def compare(
    task: Task, rates: Sequence[float], plan: Plan, seeds: Sequence[int], device: torch.device
) -> dict[str, Any]:
    """All that is measured on one task, ready for JSON; a time that was never reached is None."""
    # Libraries choose their kernels by the shapes of a task, so each task has a warm-up of its own.
    train_baseline(task, rates[0], WARM_UP, device)
    train_default(task, WARM_UP, device)
    rivals: dict[float, list[Curve]] = {rate: [] for rate in rates}
    ours: list[Curve] = []
    selector = SubsetSelector()
    for seed in seeds:
        for rate in rates:
            rivals[rate].append(train_baseline(task, rate, plan, device, seed))
        curve, selector = train_default(task, plan, device, seed)
        ours.append(curve)
    flips, masks = time_passes(selector.model_, task.train, plan.repeats, device)
    rows = []
    for rate, curves in rivals.items():
        pairs = list(zip(curves, ours, strict=True))
        rows.append(
            {
                "learning_rate": rate,
                "best": _middle(rival.best for rival in curves),
                "test": _middle(rival.test for rival in curves),
                "time_to_best": _middle(rival.time_to(rival.best) for rival in curves),
                "time_in_all": _middle(rival.seconds[-1] for rival in curves),
                "default_time": _finite(_middle(own.time_to(rival.best) for rival, own in pairs)),
                "ratio": _finite(_middle(ratio(rival, own) for rival, own in pairs)),
                "ratio_one_point_less": _finite(_middle(ratio(rival, own, less=POINT) for rival, own in pairs)),
                "curves": [curve.to_json() for curve in curves],
            }
        )
    return {
        "task": task.name,
        "training_sets": len(task.train),
        "baseline": rows,
        "default": {
            "best": _middle(own.best for own in ours),
            "test": _middle(own.test for own in ours),
            "time_to_best": _middle(own.time_to(own.best) for own in ours),
            "time_in_all": _middle(own.seconds[-1] for own in ours),
            "curves": [curve.to_json() for curve in ours],
        },
        "pass": {"flips": flips, "mask_tensor": masks, "ratio": masks / flips},
    }


def ratio(rival: Curve, own: Curve, less: float = 0.0) -> float:
    """Time of the default over that of the baseline, both to the baseline's best score `less` something."""
    target = rival.best - less
    return own.time_to(target) / rival.time_to(target)


def train_default(task: Task, plan: Plan, device: torch.device, seed: int = 0) -> tuple[Curve, SubsetSelector]:
    """Fit the selector as it comes."""
    selector = SubsetSelector(max_epochs=plan.most, random_state=seed, device=str(device), verbose=0)
    selector.fit(*task.train, validation=task.validation)
    clock = np.cumsum([epoch["seconds"] for epoch in selector.history_]).tolist()
    scores = [epoch["validation_jaccard"] for epoch in selector.history_]
    return Curve(clock, scores, selector.score_true_size(*task.test)), selector


def train_baseline(task: Task, rate: float, plan: Plan, device: torch.device, seed: int = 0) -> Curve:
    """Train the published model with mask tensors, stop early, and score the weights of the best epoch."""
    train, validation, test = (
        Choices(part.sets.to(device), part.subsets.to(device)) for part in (task.train, task.validation, task.test)
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        function = DeepSet(tuple(train.sets.item_shape), phi="paper", width=256, hidden=(500, 500)).to(device)
    rival = MaskTensorMeanField(function, samples=SAMPLES, seed=seed)
    optimiser = torch.optim.Adam(function.parameters(), lr=rate, weight_decay=WEIGHT_DECAY, fused=True)
    rng = np.random.default_rng(seed)
    clock: list[float] = []
    scores: list[float] = []
    best, best_epoch = function.state_dict(), 0
    started = time.perf_counter()
    while len(scores) < plan.most and len(scores) - best_epoch < plan.patience:
        order = rng.permutation(len(train))
        for numbers in np.array_split(order, math.ceil(len(order) / BATCH)):
            sets, subsets = train.sets.take(numbers), train.subsets.take(numbers)
            loss = rival.loss(rival.logits(sets), subsets, draw_negatives(subsets, rival.generator))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(function.parameters(), CLIP)
            optimiser.step()
        score = score_baseline(rival, validation)
        scores.append(score)
        if score > max(scores[:-1], default=-1.0):
            best, best_epoch = {name: value.clone() for name, value in function.state_dict().items()}, len(scores)
        clock.append(time.perf_counter() - started)
    function.load_state_dict(best)
    return Curve(clock, scores, score_baseline(rival, test))


def draw_negatives(subsets: Sets, generator: torch.Generator) -> Tensor:
    """Mark as many random items outside S* as S* has, `(total,)`, or all of them where there are fewer."""
    chosen, _ = subsets.padded()
    draw = torch.rand(chosen.shape, generator=generator, device=chosen.device).masked_fill(chosen, 2)
    place = draw.argsort(1).argsort(1)
    return ((place < chosen.sum(1, keepdim=True)) & ~chosen).flatten()


def score_baseline(rival: MaskTensorMeanField, data: Choices) -> float:
    """Mean Jaccard score with the true size, rounded as the selector rounds it."""
    with torch.no_grad():
        parts = [
            rival.logits(data.sets[start : start + VALIDATION_BATCH]).flatten()
            for start in range(0, len(data), VALIDATION_BATCH)
        ]
    picked = pick_top(torch.cat(parts), data.sets, subset_sizes(data.subsets))
    return round(float(jaccard(picked, data.subsets).mean()), 5)


def time_passes(model: ChoiceModel, data: Choices, repeats: int, device: torch.device) -> tuple[float, float]:
    """Seconds of one pass over the training sets by flips and by mask tensors, with copies of one model."""
    data = Choices(data.sets.to(device), data.subsets.to(device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        works: list[Callable[[], object]] = [
            make_pass(copy.deepcopy(model), data, masks=masks) for masks in (False, True)
        ]
        by_flips, by_masks = time_side_by_side(works, device, repeats)
    return by_flips.clock, by_masks.clock


def make_pass(model: ChoiceModel, data: Choices, *, masks: bool) -> Callable[[], Tensor]:
    """One pass with the selector's own batches and loss; only the way to the gains differs. Returns the last loss."""
    usual = SubsetSelector()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=usual.learning_rate, weight_decay=usual.weight_decay, fused=True
    )
    logits = _mask_logits(model) if masks else _flip_logits(model)
    batches = np.array_split(np.arange(len(data)), math.ceil(len(data) / usual.batch_size))
    loss = AllItems()

    def work() -> Tensor:
        model.train()
        value = torch.zeros(())
        for numbers in batches:
            subsets = data.subsets.take(numbers)
            value = loss(logits(data.sets.take(numbers)), subsets, None, None)
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), usual.clip)
            optimiser.step()
        return value.detach()

    return work


def _flip_logits(model: ChoiceModel) -> Callable[[Sets], Tensor]:
    noise = Fresh(0)
    return lambda sets: model.infer(model.bind(sets), noise).logits


def _mask_logits(model: ChoiceModel) -> Callable[[Sets], Tensor]:
    function: Any = model.function
    # The rival knows no modular term: it gets the same phi and rho without it, and the term is added here.
    core = DeepSet(model.config.item_shape, function.phi, hidden=model.config.hidden, skip=False)
    core.rho = function.rho
    rival = MaskTensorMeanField(core, samples=model.config.samples)

    def logits(sets: Sets) -> Tensor:
        bound: Any = model.bind(sets)
        features, _ = sets.with_values(bound.features).padded()
        gains = rival.gains(features, features.new_full(features.shape[:2], 0.5)).mean(1).flatten()
        return gains if bound.scores is None else gains + bound.scores

    return logits


def time_table(results: Sequence[dict[str, Any]]) -> str:
    """One row for each task and learning rate of the baseline."""
    head = ["task (training sets), learning rate", "baseline: best", "after", "in all", "test"]
    head += ["default: there after", "ratio", "1 point less", "default: best", "after", "in all", "test"]
    rows = []
    for result in results:
        own = result["default"]
        for row in result["baseline"]:
            rows.append(
                [
                    f"{result['task'].partition(':')[2]} ({result['training_sets']}), {row['learning_rate']:g}",
                    _percent(row["best"]),
                    seconds(row["time_to_best"]),
                    seconds(row["time_in_all"]),
                    _percent(row["test"]),
                    "never" if row["default_time"] is None else seconds(row["default_time"]),
                    _ratio(row["ratio"]),
                    _ratio(row["ratio_one_point_less"]),
                    _percent(own["best"]),
                    seconds(own["time_to_best"]),
                    seconds(own["time_in_all"]),
                    _percent(own["test"]),
                ]
            )
    return table(head, rows)


def verdict(results: Sequence[dict[str, Any]]) -> str:
    """How many rows keep the claim, in all and for the better learning rate of each task."""
    every = [row for result in results for row in result["baseline"]]
    better = [max(result["baseline"], key=lambda row: row["best"]) for result in results]
    lines = []
    for name, rows in (("all rows", every), ("the better learning rate of each task", better)):
        for key, less in (("ratio", ""), ("ratio_one_point_less", ", one point less")):
            ratios = [math.inf if row[key] is None else row[key] for row in rows]
            kept = sum(r <= LIMIT for r in ratios)
            lines.append(
                f"- {name}{less}: ratio at most {LIMIT:g} in {kept} of {len(rows)}, "
                f"median {_ratio(_finite(statistics.median(ratios)))}, worst {_ratio(_finite(max(ratios)))}"
            )
    return "\n".join(lines)


def pass_table(results: Sequence[dict[str, Any]]) -> str:
    """One row for each task."""
    rows = [
        [
            f"{result['task'].partition(':')[2]} ({result['training_sets']})",
            seconds(result["pass"]["mask_tensor"]),
            seconds(result["pass"]["flips"]),
            f"{result['pass']['ratio']:.2f}",
        ]
        for result in results
    ]
    return table(["task (training sets)", "mask tensors", "flips", "ratio"], rows)


def _middle(values: Any) -> float:
    return float(statistics.median(values))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _ratio(value: float | None) -> str:
    return "never" if value is None else f"{value:.3f}"


def _rates(text: str) -> list[float]:
    try:
        rates = [float(entry) for entry in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise OptionError(f"--baseline-lr takes positive numbers separated by commas, e.g. 1e-4,1e-3, not {text!r}")
    return rates


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr, flush=True)
