"""Mean field as publications describe it: a separate random subset for every item, as rows of one large mask tensor.

The gain of item i is an expectation over subsets of the other items. Each (sample, item) pair draws a mask row over all
of V, once with entry i forced to 1 and once to 0, and rho is evaluated on both sums. The tensors have B x m x |V| x |V|
entries, so time and memory are quadratic in |V|.

This is a fair rival: masks are drawn in one pass, sums are one batched product, activations are in place, and steps
before the last have no graph (the draw would cut it anyway).
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from setgrad.functions import DeepSetFunction
from setgrad.sets import Sets


@final
class MaskTensorMeanField:
    """Mean field with the networks of a `DeepSetFunction`, for sets of equal size."""

    def __init__(self, function: DeepSetFunction, *, samples: int, steps: int = 1, seed: int = 0) -> None:
        if function.skip is not None:
            raise ValueError(
                "the published set function has no modular term; build the DeepSetFunction with skip=False"
            )
        self.function, self.samples, self.steps = function, samples, steps
        self.generator = torch.Generator(next(function.parameters()).device).manual_seed(seed)

    def logits(self, sets: Sets) -> Tensor:
        """Return the logit of every item, `(b, n)`, after `steps` steps from psi = 1/2."""
        features, _ = sets.with_values(self.function.phi(sets)).padded()
        psi = features.new_full(features.shape[:2], 0.5)
        with torch.no_grad():
            for _ in range(self.steps - 1):
                psi = torch.sigmoid(self.gains(features, psi).mean(1))
        return self.gains(features, psi).mean(1)

    def gains(self, features: Tensor, psi: Tensor) -> Tensor:
        """Return F with the item minus F without it, each at a separate subset: `(b, m, n)`."""
        b, n, _ = features.shape
        # Compared in place: the fastest way to draw, and the random numbers become the masks.
        without = torch.rand(b, self.samples, n, n, generator=self.generator, device=psi.device, dtype=psi.dtype)
        without.lt_(psi[:, None, None])
        without.diagonal(dim1=-2, dim2=-1).zero_()
        present = without.clone()
        present.diagonal(dim1=-2, dim2=-1).fill_(1)
        return self._value(present, features) - self._value(without, features)

    def loss(self, logits: Tensor, subsets: Sets, negatives: Tensor) -> Tensor:
        """Return the cross-entropy summed over S* and the negatives (flat item indices), averaged over sets."""
        chosen = subsets.values
        read = chosen.clone()
        read[negatives] = True
        target = chosen.to(logits.dtype)
        each = binary_cross_entropy_with_logits(logits.flatten(), target, reduction="none")
        return (each * read).sum() / len(subsets)

    def draw_negatives(self, subsets: Sets, size: int) -> Tensor:
        """Return as many random items outside S* as S* has, for subsets that all have `size` items."""
        chosen, _ = subsets.padded()
        draw = torch.rand(chosen.shape, generator=self.generator, device=chosen.device)
        places = draw.masked_fill(chosen, -1).topk(min(size, chosen.shape[1] - size), dim=1).indices
        return (places + torch.arange(len(chosen), device=chosen.device)[:, None] * chosen.shape[1]).flatten()

    def _value(self, masks: Tensor, features: Tensor) -> Tensor:
        b, m, n, _ = masks.shape
        # One product for each set, with all its samples and items stacked: features are not copied for each sample.
        sums = torch.bmm(masks.reshape(b, m * n, n), features)
        rho: nn.Sequential = self.function.rho
        return rho(sums).reshape(b, m, n)
