"""A set transformer as a user would write it: padded batches, a logit for each item, a loop with early stopping.

Its encoder has the sizes of the default's. It knows nothing of setgrad but the containers of the data.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from setgrad.sets import Choices, Sets

_DIM, _HEADS, _LAYERS, _BATCH, _RATE, _DECAY = 128, 4, 2, 64, 1e-3, 0.1


@final
@dataclass(frozen=True, eq=False)
class PlainFit:
    """A fitted plain model.

    Attributes:
        model: From padded items and their mask to logits `(b, n)`.
        best: Processor seconds until the best epoch was validated.
        total: Processor seconds in all.
        epochs: Number of epochs.
    """

    model: PlainSetTransformer
    best: float
    total: float
    epochs: int


@final
class PlainSetTransformer(nn.Module):
    """Standardised items, two layers of attention, a logit for each item."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, items: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", items.mean(0))
        self.register_buffer("deviation", items.std(0).clamp(min=1e-6))
        layer = nn.TransformerEncoderLayer(
            _DIM, _HEADS, 2 * _DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.embed = nn.Linear(items.shape[1], _DIM)
        self.encoder = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(_DIM), nn.Linear(_DIM, 1))

    def forward(self, items: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of padded items `(b, n, d)`."""
        x = self.embed((items - self.mean) / self.deviation)
        padding = None if bool(mask.all()) else ~mask
        return self.head(self.encoder(x, src_key_padding_mask=padding)).squeeze(2)


def fit_plain(train: Choices, validation: Choices, seed: int, *, max_epochs: int, patience: int) -> PlainFit:
    """Train until the validation score has not improved for a number of epochs, and keep the best weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _fit(train, validation, max_epochs, patience)


def _fit(train: Choices, validation: Choices, max_epochs: int, patience: int) -> PlainFit:
    started = time.process_time()
    model = PlainSetTransformer(train.sets.values)
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY)
    best_score, best_epoch, best_time, best = -1.0, 0, 0.0, model.state_dict()
    for epoch in range(max_epochs):
        model.train()
        for rows in torch.randperm(len(train)).split(_BATCH):
            items, mask = train.sets.take(rows).padded()
            target, _ = train.subsets.take(rows).padded()
            loss = binary_cross_entropy_with_logits(model(items, mask)[mask], target[mask].float())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        score = score_plain(model, validation)
        if score > best_score:
            best_score, best_epoch, best_time = score, epoch, time.process_time() - started
            best = copy.deepcopy(model.state_dict())
        if epoch - best_epoch >= patience:
            break
    model.load_state_dict(best)
    return PlainFit(model, best_time, time.process_time() - started, epoch + 1)


@torch.no_grad()
def predict_plain(model: PlainSetTransformer, sets: Sets, sizes: Tensor) -> list[Tensor]:
    """Return the indices of the best items of each set, so many as `sizes` says."""
    model.eval()
    picks = []
    for rows in torch.arange(len(sets)).split(_BATCH):
        items, mask = sets.take(rows).padded()
        logits = model(items, mask).masked_fill(~mask, -torch.inf)
        picks += [row.topk(int(size)).indices for row, size in zip(logits, sizes[rows], strict=True)]
    return picks


def score_plain(model: PlainSetTransformer, choices: Choices) -> float:
    """Return the mean Jaccard score at the true sizes."""
    sizes = torch.tensor([int(subset.sum()) for subset in choices.subsets])
    scores = []
    for subset, picked in zip(choices.subsets, predict_plain(model, choices.sets, sizes), strict=True):
        both = int(subset[picked].sum())
        either = 2 * len(picked) - both
        scores.append(both / either if either else 1.0)
    return sum(scores) / len(scores)
