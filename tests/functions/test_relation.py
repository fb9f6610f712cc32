"""The bilinear score of an item and the mean of its set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from setgrad.errors import DataError, OptionError
from setgrad.functions import DeepSetFunction
from setgrad.functions._neural import Relation
from setgrad.sets import Sets
from tests.functions.contract import draw_sets

Seeded = Callable[..., AbstractContextManager[None]]


def _random_relation(in_dim: int, rank: int) -> Relation:
    relation = Relation(in_dim, rank).double()
    nn.init.normal_(relation.means.weight)
    return relation


def test_scores_are_products_with_the_mean_of_the_set(seeded: Seeded) -> None:
    with seeded(0):
        relation = _random_relation(2, 3)
    sets = draw_sets([4, 0, 1, 3])
    result = sets.with_values(relation(sets)).to_list()
    for items, scores in zip(sets.to_list(), result, strict=True):
        for item, score in zip(items, scores, strict=True):
            product = (relation.items.weight @ item) @ (relation.means.weight @ items.mean(0))
            torch.testing.assert_close(score, 8.0 * product / 3**0.5)


def test_a_step_changes_scores_by_as_much_with_many_features(seeded: Seeded) -> None:
    """Or training diverges, as it did on images of 4,096 pixels."""
    changes = []
    for count in (384, 6144):
        with seeded(5):
            relation = Relation(count, 64)
        sets = Sets.from_lengths(torch.randn(40, count, generator=torch.Generator().manual_seed(0)), [5] * 8)
        optimiser = torch.optim.Adam(relation.parameters(), lr=1e-3)
        for _ in range(2):
            optimiser.zero_grad()
            relation(sets)[::5].sum().backward()
            optimiser.step()
        changes.append(float(relation(sets).detach().abs().mean()))
    assert 1 / 3 < changes[1] / changes[0] < 3


def test_repeated_items_have_the_same_scores(seeded: Seeded) -> None:
    """Scores do not depend on the size of the set alone."""
    with seeded(1):
        relation = _random_relation(2, 3)
    items = draw_sets([5]).values
    once, repeated = (relation(Sets.from_list([items.repeat(times, 1)])) for times in (1, 50))
    torch.testing.assert_close(repeated, once.repeat(50))


def test_a_new_relation_is_zero_and_has_a_gradient(seeded: Seeded) -> None:
    with seeded(2):
        plain = DeepSetFunction(2, dim=8, hidden=(8,), relation=0).double()
        related = DeepSetFunction(2, dim=8, hidden=(8,), relation=4).double()
    related.load_state_dict(plain.state_dict(), strict=False)
    sets, masks = draw_sets([4, 3]), torch.arange(35).reshape(5, 7) % 3 == 0
    torch.testing.assert_close(related.gains(sets, masks), plain.gains(sets, masks), rtol=0, atol=0)
    related.value(sets, masks).sum().backward()
    assert related.relation is not None and related.relation.means.weight.grad is not None
    assert bool((related.relation.means.weight.grad != 0).any())


def test_invalid_items_and_ranks_raise(seeded: Seeded) -> None:
    with seeded(4):
        relation = Relation(1)
    with pytest.raises(DataError, match="real numbers"):
        relation(Sets.from_list([torch.tensor([[1], [2]])]))
    with pytest.raises(OptionError, match="at least 1"):
        Relation(2, rank=0)


def test_sixty_sets_suffice_to_learn_the_odd_item(seeded: Seeded) -> None:
    """One of five items is unlike the mean of its set, in a direction that differs from set to set."""
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
    test, expected = draw(200)
    assert float(((relation(test) > 0) == expected).float().mean()) > 0.99
