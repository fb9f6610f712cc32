"""A score of items by facts of their set, against a loop over the items."""

import torch

from setgrad.functions._interaction import INTERACTION_GAIN, Interaction
from setgrad.sets import Sets


def test_the_score_is_that_of_a_loop(seeded):
    with seeded(0):
        interaction = Interaction(5, own=[0, 3], facts=[1, 4], hidden=3)
        torch.nn.init.normal_(interaction.items.weight)
        items = [torch.randn(n, 5) for n in (3, 0, 1, 4)]
    for part in items:
        part[:, [1, 4]] = part[:1, [1, 4]]
    interaction.requires_grad_(False)
    found = interaction(Sets.from_list(items))
    wanted = [
        INTERACTION_GAIN
        * float(
            (interaction.items.weight @ item[[0, 3]])
            @ torch.tanh(interaction.hidden.weight @ item[[1, 4]] + interaction.hidden.bias)
        )
        for part in items
        for item in part
    ]
    torch.testing.assert_close(found, torch.tensor(wanted))


def test_a_new_interaction_changes_nothing_and_learns(seeded):
    with seeded(0):
        interaction = Interaction(2, own=[0], facts=[1], hidden=4)
        sets = Sets.from_list([torch.randn(3, 2), torch.randn(2, 2)])
    scores = interaction(sets)
    assert not scores.any()
    scores.sum().backward()
    assert interaction.items.weight.grad.any()
