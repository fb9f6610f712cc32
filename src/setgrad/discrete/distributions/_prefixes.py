"""All sets of items that may fill the first places of a ranking, with their exact probabilities, for few items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from setgrad.discrete.distributions._log_space import FLOOR
from setgrad.errors import OptionError

# 2^14 sets of 14 items each; one more item doubles time and memory.
MAX_ITEMS = 14


def prefixes(logits: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Iterate over the sets of 0, 1, ..., length - 1 items that fill the first places.

    Args:
        logits: (*batch, n), finite (FLOOR instead of minus infinity).
        length: The number of places.

    Yields:
        For each size the probabilities of the sets, (*batch, sets); the sets as rows of bool, (sets, n); and
        log-probabilities of the next item, (*batch, sets, n).

    Raises:
        OptionError: If there are too many items.
    """
    n = logits.shape[-1]
    if n > MAX_ITEMS:
        raise OptionError(
            f"this quantity has no closed form, and summing over the 2^{n} sets of {n} items would take too long (the "
            f"maximum is {MAX_ITEMS}); estimate it as a mean over sample(), with log_prob()"
        )
    masses = torch.ones((*logits.shape[:-1], 1), dtype=logits.dtype, device=logits.device)
    for size in range(length):
        placed = list(combinations(range(n), size))
        rows = torch.zeros(len(placed), n, dtype=torch.bool)
        if size:
            rows.scatter_(1, torch.tensor(placed), True)
        rows = rows.to(logits.device)
        following = torch.where(rows, FLOOR, logits[..., None, :]).log_softmax(-1)
        yield masses, rows, following
        places = {items: place for place, items in enumerate(combinations(range(n), size + 1))}
        targets = torch.tensor(
            [[places[tuple(sorted((*items, i)))] if i not in items else 0 for i in range(n)] for items in placed],
            device=logits.device,
        )
        flow = torch.where(rows, 0, masses[..., None] * following.exp()).flatten(-2)
        masses = flow.new_zeros((*logits.shape[:-1], len(places))).index_add(-1, targets.flatten(), flow)
