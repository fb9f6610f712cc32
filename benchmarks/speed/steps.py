"""One training step (draw, forward, backward, optimiser), with setgrad and with mask tensors."""

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
# "paper" is the published model and loss; "context" is the model of SubsetSelector() for large sets.
MODELS = ("paper", "context")
# Computes all items, as the rival does, not only those that the loss reads.
ALL_ITEMS = "setgrad, all items"
WAYS = ("setgrad", ALL_ITEMS, "mask-tensor")


@final
@dataclass(frozen=True)
class Case:
    """A case to measure: a batch of `sets` sets of `items` items, a tenth of them chosen."""

    sets: int
    items: int
    way: str = "setgrad"
    model: str = "paper"

    @property
    def chosen(self) -> int:
        """The size of every S*."""
        return max(1, self.items // 10)


Step = Callable[[Choices], Tensor]


def make_step(case: Case, device: torch.device) -> Step:
    """Return a function that trains on a batch once and returns the loss.

    All ways share networks, optimiser, number of samples and loss. The initial weights do not depend on the way.
    """
    function = _make_function(case.model).to(device)
    optimiser = torch.optim.AdamW(function.parameters(), lr=1e-4, weight_decay=1e-5, fused=True)
    if case.way == "mask-tensor":
        forward = _mask_tensor(function)
    else:
        forward = _setgrad(function, case.model, all_items=case.way == ALL_ITEMS)

    def step(batch: Choices) -> Tensor:
        loss = forward(batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def make_batch(case: Case, device: torch.device, seed: int = 0) -> Choices:
    """Draw a random batch: the cost does not depend on the features."""
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


def _setgrad(function: DeepSetFunction, model: str, *, all_items: bool) -> Step:
    # The same calls as in the training loop of the selector.
    estimator = Bernoulli(SAMPLES, FreshNoise(1))
    loss: SubsetLoss = SampledNegatives(FreshNoise(2)) if model == "paper" else AllItems()

    def forward(batch: Choices) -> Tensor:
        sets, subsets = batch
        # All subsets of a batch have one size here; the training loop has the sizes on the host as well.
        sizes = np.full(len(sets), max(1, sets.layout.longest // 10))
        coordinates = loss.coordinates(subsets, sizes)
        wanted = None if all_items else coordinates
        logits = mean_field(function, sets, estimator=estimator, solver=OneStepMeanField(), coordinates=wanted).logits
        read = logits[coordinates] if all_items and coordinates is not None else logits
        return loss(read, subsets, coordinates, None)

    return forward


def _mask_tensor(function: DeepSetFunction) -> Step:
    rival = MaskTensorMeanField(function, samples=SAMPLES, seed=1)

    def forward(batch: Choices) -> Tensor:
        sets, subsets = batch
        size = max(1, sets.layout.longest // 10)
        return rival.loss(rival.logits(sets), subsets, rival.draw_negatives(subsets, size))

    return forward
