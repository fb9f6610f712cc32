"""Validation scores against time, for the default and the mask-tensor baseline, and times of passes of both kinds."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.mask_tensor import MaskTensorMeanField
from benchmarks.lib.timing import time_in_turns
from benchmarks.selection.models import Options
from setgrad import SubsetSelector
from setgrad.datasets import Task
from setgrad.functions import DeepSetFunction, FreshNoise
from setgrad.inference import AllItems
from setgrad.selector import jaccard, pick_top
from setgrad.sets import Choices, Sets, subset_sizes

SAMPLES = 5
BATCH = 128
# Sets of one validation batch of the baseline: bounds its activations, and is large enough for a GPU.
VALIDATION_BATCH = 512
WEIGHT_DECAY, CLIP = 1e-5, 10.0
# Digits of stored scores and seconds: curves are long, and times are not more precise.
_SCORE_DIGITS, _SECOND_DIGITS = 5, 4
# Sets in a batch, the default of both.
_BATCH = 64
_RATE = 1e-3


@final
@dataclass(frozen=True)
class Plan:
    """How long to train: `max_epochs` for both, `patience` for the baseline, and `repeats` of a pass."""

    max_epochs: int = 100
    patience: int = 20
    repeats: int = 3


FULL = Plan()
QUICK = Plan(max_epochs=2, patience=2, repeats=1)
WARM_UP = Plan(max_epochs=1)


@final
@dataclass(frozen=True)
class Curve:
    """Seconds and validation score at the end of each epoch, and the test score of the best epoch."""

    seconds: list[float]
    scores: list[float]
    test: float

    @property
    def best(self) -> float:
        """The best validation score."""
        return max(self.scores)

    def time_to(self, score: float) -> float:
        """Return when the score was first reached; infinity if it never was."""
        return next((s for s, reached in zip(self.seconds, self.scores, strict=True) if reached >= score), math.inf)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the tables and the curve, rounded."""
        return {
            "best": round(self.best, _SCORE_DIGITS),
            "test": round(self.test, _SCORE_DIGITS),
            "time_to_best": round(self.time_to(self.best), _SECOND_DIGITS),
            "time_in_all": round(self.seconds[-1], _SECOND_DIGITS),
            "curve": {
                "seconds": [round(value, _SECOND_DIGITS) for value in self.seconds],
                "scores": [round(value, _SCORE_DIGITS) for value in self.scores],
            },
        }


def ratio(rival: Curve, own: Curve, less: float = 0.0) -> float:
    """Return the time of the default over that of the baseline, both to the baseline's best score minus `less`."""
    target = rival.best - less
    return own.time_to(target) / rival.time_to(target)


def default_options(plan: Plan) -> Options:
    """Return the options of the selector, except seed and device: mean field, as the baseline has."""
    return {"method": "unrolled", "max_epochs": plan.max_epochs}


def train_default(
    task: Task, plan: Plan, device: torch.device, seed: int = 0, members: int | None = None
) -> tuple[Curve, SubsetSelector]:
    """Fit the default selector, or one with this number of members."""
    options = {**default_options(plan), "members": members}
    selector = SubsetSelector(**options, random_state=seed, device=str(device), verbose=0)
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
        function = DeepSetFunction(tuple(train.sets.item_shape), phi="paper", dim=256, hidden=(500, 500)).to(device)
    rival = MaskTensorMeanField(function, samples=SAMPLES, seed=seed)
    optimiser = torch.optim.Adam(function.parameters(), lr=rate, weight_decay=WEIGHT_DECAY, fused=True)
    rng = np.random.default_rng(seed)
    clock: list[float] = []
    scores: list[float] = []
    best, best_epoch = function.state_dict(), 0
    started = time.perf_counter()
    while len(scores) < plan.max_epochs and len(scores) - best_epoch < plan.patience:
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
    """Return a mask of as many random items outside S* as S* has, `(total,)`, or of all if there are fewer."""
    chosen, _ = subsets.padded()
    draw = torch.rand(chosen.shape, generator=generator, device=chosen.device).masked_fill(chosen, 2)
    rank = draw.argsort(1).argsort(1)
    return ((rank < chosen.sum(1, keepdim=True)) & ~chosen).flatten()


def score_baseline(rival: MaskTensorMeanField, data: Choices) -> float:
    """Return the mean Jaccard score with the true size, rounded as in the selector."""
    with torch.no_grad():
        parts = [
            rival.logits(data.sets[start : start + VALIDATION_BATCH]).flatten()
            for start in range(0, len(data), VALIDATION_BATCH)
        ]
    picked = pick_top(torch.cat(parts), data.sets, subset_sizes(data.subsets))
    return round(float(jaccard(picked, data.subsets).mean()), 5)


def time_passes(model: Any, data: Choices, repeats: int, device: torch.device) -> tuple[float, float]:
    """Return the seconds of one pass over the training sets by flips and by mask tensors, with copies of one model."""
    data = Choices(data.sets.to(device), data.subsets.to(device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        passes: list[Callable[[], object]] = [
            make_pass(copy.deepcopy(model), data, masks=masks) for masks in (False, True)
        ]
        by_flips, by_masks = time_in_turns(passes, device, repeats)
    return by_flips.clock, by_masks.clock


def make_pass(model: Any, data: Choices, *, masks: bool) -> Callable[[], Tensor]:
    """Return a pass with the batches and the loss of the selector; only the gains differ. It returns the last loss."""
    usual = SubsetSelector(method="unrolled")
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=usual.weight_decay, fused=True)
    logits = _mask_logits(model) if masks else _flip_logits(model)
    batches = np.array_split(np.arange(len(data)), math.ceil(len(data) / _BATCH))
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


def _flip_logits(model: Any) -> Callable[[Sets], Tensor]:
    noise, member = FreshNoise(0), model.each()[0]
    return lambda sets: member.infer(model.config, member.function.bind(model.prepare(sets)), noise).logits


def _mask_logits(model: Any) -> Callable[[Sets], Tensor]:
    function: Any = model.each()[0].function
    # The rival has no modular term: it gets the same phi and rho without it, and the term is added here.
    core = DeepSetFunction(model.config.item_shape, function.phi, hidden=model.config.hidden, skip=False)
    core.rho = function.rho
    rival = MaskTensorMeanField(core, samples=model.config.options.samples)

    def logits(sets: Sets) -> Tensor:
        bound: Any = function.bind(model.prepare(sets))
        features, _ = sets.with_values(bound.features).padded()
        gains = rival.gains(features, features.new_full(features.shape[:2], 0.5)).mean(1).flatten()
        return gains if bound.scores is None else gains + bound.scores

    return logits
