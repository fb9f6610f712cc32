"""One training step (draw, forward, backward, optimiser), the setgrad way and the mask-tensor way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.mask_tensor import MaskTensorMeanField
from setgrad.encoders import ContextItems
from setgrad.functions import Bernoulli, DeepSetFunction, FreshNoise
from setgrad.inference import AllItems, OneStepMeanField, SampledNegatives, SubsetLoss, mean_field
from setgrad.sets import Choices, Sets

SAMPLES = 5
FEATURES = 2
# "paper" is the published model and loss; "context" is what SubsetSelector() builds for large sets.
MODELS = ("paper", "context")
# Without a look at which items the loss reads, as the rival does it.
EVERY = "setgrad, all items"
WAYS = ("setgrad", EVERY, "mask-tensor")


@final
@dataclass(frozen=True)
class Case:
    """What is measured: a batch of `sets` sets of `items` items, a tenth of them chosen."""

    sets: int
    items: int
    way: str = "setgrad"
    model: str = "paper"

    @property
    def chosen(self) -> int:
        """Size of every S*."""
        return max(1, self.items // 10)


Step = Callable[[Choices], Tensor]


def make_step(case: Case, device: torch.device) -> Step:
    """Build networks and optimiser; the result takes a batch, trains on it once and returns the loss.

    All ways share networks, optimiser, number of samples and loss. The weights do not depend on the way.
    """
    function = _make_function(case.model).to(device)
    optimiser = torch.optim.AdamW(function.parameters(), lr=1e-4, weight_decay=1e-5, fused=True)
    if case.way == "mask-tensor":
        forward = _mask_tensor(function)
    else:
        forward = _setgrad(function, case.model, every=case.way == EVERY)

    def step(batch: Choices) -> Tensor:
        loss = forward(batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def make_batch(case: Case, device: torch.device, seed: int = 0) -> Choices:
    """Draw a batch: the features decide nothing about the cost."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((case.sets * case.items, FEATURES), dtype=np.float32)
    chosen = rng.permuted(np.tile(np.arange(case.items) < case.chosen, (case.sets, 1)), axis=1)
    sets = Sets.from_lengths(torch.from_numpy(values).to(device), np.full(case.sets, case.items))
    return Choices(sets, sets.with_values(torch.from_numpy(chosen.reshape(-1)).to(device)))


def _make_function(model: str) -> DeepSetFunction:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if model == "paper":
            return DeepSetFunction(FEATURES, phi="paper", dim=256, hidden=(500, 500))
        return DeepSetFunction(FEATURES, phi=ContextItems(FEATURES, slots=32))


def _setgrad(function: DeepSetFunction, model: str, *, every: bool) -> Step:
    # The calls of the selector's training loop.
    estimator = Bernoulli(SAMPLES, FreshNoise(1))
    loss: SubsetLoss = SampledNegatives(FreshNoise(2)) if model == "paper" else AllItems()

    def forward(batch: Choices) -> Tensor:
        sets, subsets = batch
        # All subsets of a batch have one size here; the training loop knows sizes on the host as well.
        sizes = np.full(len(sets), max(1, sets.layout.longest // 10))
        coordinates = loss.coordinates(subsets, sizes)
        asked = None if every else coordinates
        logits = mean_field(function, sets, estimator=estimator, solver=OneStepMeanField(), coordinates=asked).logits
        return loss(logits[coordinates] if every and coordinates is not None else logits, subsets, coordinates, None)

    return forward


def _mask_tensor(function: DeepSetFunction) -> Step:
    rival = MaskTensorMeanField(function, samples=SAMPLES, seed=1)

    def forward(batch: Choices) -> Tensor:
        sets, subsets = batch
        size = max(1, sets.layout.longest // 10)
        return rival.loss(rival.logits(sets), subsets, rival.draw_negatives(subsets, size))

    return forward
