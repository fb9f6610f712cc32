"""The bilinear score of an item and the mean of its set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from setgrad.errors import DataError, OptionError
from setgrad.functions import DeepSetFunction
from setgrad.functions.relation import Relation
from setgrad.sets import Sets
from tests.functions.contract import draw_sets

Seeded = Callable[..., AbstractContextManager[None]]


def _drawn(in_dim: int, rank: int) -> Relation:
    relation = Relation(in_dim, rank).double()
    nn.init.normal_(relation.means.weight)
    return relation


def test_scores_are_products_with_the_mean_of_the_own_set(seeded: Seeded) -> None:
    with seeded(0):
        relation = _drawn(2, 3)
    sets = draw_sets([4, 0, 1, 3])
    found = sets.with_values(relation(sets)).to_list()
    for items, scores in zip(sets.to_list(), found, strict=True):
        for item, score in zip(items, scores, strict=True):
            product = (relation.items.weight @ item) @ (relation.means.weight @ items.mean(0))
            torch.testing.assert_close(score, 8.0 * product / 3**0.5)


def test_a_set_repeated_has_the_scores_of_the_set(seeded: Seeded) -> None:
    """So sets larger than those of training mean nothing new."""
    with seeded(1):
        relation = _drawn(2, 3)
    items = draw_sets([5]).values
    once, often = (relation(Sets.from_list([items.repeat(times, 1)])) for times in (1, 50))
    torch.testing.assert_close(often, once.repeat(50))


def test_a_new_one_says_nothing_and_can_learn(seeded: Seeded) -> None:
    with seeded(2):
        plain = DeepSetFunction(2, dim=8, hidden=(8,), relation=0).double()
        related = DeepSetFunction(2, dim=8, hidden=(8,), relation=4).double()
    related.load_state_dict(plain.state_dict(), strict=False)
    sets, masks = draw_sets([4, 3]), torch.arange(35).reshape(5, 7) % 3 == 0
    torch.testing.assert_close(related.gains(sets, masks), plain.gains(sets, masks), rtol=0, atol=0)
    related.value(sets, masks).sum().backward()
    assert related.relation is not None and related.relation.means.weight.grad is not None
    assert bool((related.relation.means.weight.grad != 0).any())


def test_what_it_cannot_read_is_refused(seeded: Seeded) -> None:
    with seeded(4):
        relation = Relation(1)
    with pytest.raises(DataError, match="real numbers"):
        relation(Sets.from_list([torch.tensor([[1], [2]])]))
    with pytest.raises(OptionError, match="at least 1"):
        Relation(2, rank=0)


def test_few_sets_teach_it_what_is_unlike_the_rest(seeded: Seeded) -> None:
    """The odd one of five is unlike the mean of its set: sixty sets are enough, and the way is not told."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[Sets, Tensor]:
        side = torch.randn(count, 1, 4, generator=generator).sign()
        items = side + 0.1 * torch.randn(count, 5, 4, generator=generator)
        items[:, 0] = -items[:, 0]
        chosen = torch.zeros(count, 5, dtype=torch.bool)
        chosen[:, 0] = True
        return Sets.from_lengths(items.flatten(0, 1), [5] * count), chosen.flatten()

    with seeded(0):
        relation = Relation(4, rank=8)
    optimiser = torch.optim.Adam(relation.parameters(), lr=0.02)
    sets, chosen = draw(60)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(relation(sets), chosen.float()).backward()
        optimiser.step()
    new, right = draw(200)
    assert float(((relation(new) > 0) == right).float().mean()) > 0.99
