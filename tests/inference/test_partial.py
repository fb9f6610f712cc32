"""Partial subsets: how they are drawn, the losses there against plain loops, and what the cross-entropy estimates."""

import itertools
import math
from collections import Counter

import pytest
import torch

from setgrad.functions import FreshNoise
from setgrad.inference import (
    AllItems,
    NextItem,
    PartialCrossEntropy,
    PartialSubsetLoss,
    WeightedSum,
    draw_partial_subsets,
)
from setgrad.inference.partial import AtEveryPart
from setgrad.sets import Sets

LAYOUTS: dict[str, list[list[bool]]] = {
    "ragged": [[True, False, False, False, True], [], [False, False], [True, True, True], [True], [False]],
    "uniform": [[True, False, True], [False, False, False], [True, True, True]],
    "only empty sets": [[], []],
    "no sets": [],
}
LOSSES = [PartialCrossEntropy(), NextItem(), WeightedSum(0.3)]


def make_subsets(rows):
    return Sets.from_lengths(torch.tensor(list(itertools.chain(*rows)), dtype=torch.bool), [len(row) for row in rows])


def entropy(logit, chosen):
    return math.log1p(math.exp(-logit if chosen else logit))


def plain_cross_entropy(gains, part, chosen, weights):
    outside = [i for i in range(len(chosen)) if not part[i]]
    return sum(weights[i] * entropy(gains[i], chosen[i]) for i in outside) / max(1, len(outside))


def plain_next_item(gains, part, chosen, weights):
    outside = [i for i in range(len(chosen)) if not part[i]]
    rest = [i for i in outside if chosen[i]]
    total = sum(math.exp(gains[i]) for i in outside)
    return -sum(weights[i] * math.log(math.exp(gains[i]) / total) for i in rest) / max(1, len(rest))


def plain_loss(loss, *arguments):
    match loss:
        case PartialCrossEntropy():
            return plain_cross_entropy(*arguments)
        case NextItem():
            return plain_next_item(*arguments)
        case WeightedSum(share):
            return plain_cross_entropy(*arguments) + share * plain_next_item(*arguments)
    raise AssertionError(loss)


def make_parts(subsets):
    """Return the empty part, an empty one again, the whole of each subset, random parts, halves of V, and V itself."""
    first = torch.zeros(2, subsets.layout.total, dtype=torch.bool)
    random = torch.rand(5, subsets.layout.total, generator=torch.Generator().manual_seed(1)) < 0.5
    return torch.cat([first, subsets.values[None], random[:3] & subsets.values, random[3:], ~first[:1]])


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_losses_equal_a_plain_loop(loss: PartialSubsetLoss, weighted, name):
    rows = LAYOUTS[name]
    subsets = make_subsets(rows)
    parts, generator = make_parts(subsets), torch.Generator().manual_seed(0)
    gains = 3 * torch.randn(parts.shape, generator=generator, dtype=torch.float64)
    weights = torch.rand(subsets.layout.total, generator=generator, dtype=torch.float64) if weighted else None
    numbers = subsets.with_values(torch.ones(subsets.layout.total) if weights is None else weights)
    expected = []
    for m, (row, part) in enumerate(zip(gains, parts, strict=True)):
        lists = [[x.tolist() for x in column] for column in (*map(subsets.with_values, (row, part)), numbers)]
        for chosen, g, given, w in zip(rows, *lists, strict=True):
            # A later part that is empty does not count, nor does a set without items.
            if chosen and (m == 0 or any(given)):
                expected.append(plain_loss(loss, g, given, chosen, w))
    gains.requires_grad_()
    result = loss(gains, parts, subsets, weights)
    assert result.item() == pytest.approx(sum(expected) / max(1, len(expected)), rel=1e-12)
    result.backward()
    assert gains.grad is not None and bool(gains.grad.isfinite().all())
    # Items of the part and parts that do not count have no influence.
    assert float(gains.grad[parts].abs().sum()) == float(gains.grad[1].abs().sum()) == 0


def test_the_loss_of_the_next_item_does_not_depend_on_the_level_of_the_gains():
    """So it leaves the probabilities that the cross-entropy learns as they are."""
    subsets = make_subsets(LAYOUTS["ragged"])
    parts = make_parts(subsets)
    gains = torch.randn(parts.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shift = torch.randn(len(parts), len(subsets), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moved = gains + shift[:, subsets.layout.ids]
    torch.testing.assert_close(NextItem()(moved, parts, subsets, None), NextItem()(gains, parts, subsets, None))


def test_a_loss_of_whole_subsets_takes_chosen_items_of_a_part_for_certain():
    subsets = make_subsets(LAYOUTS["uniform"])
    gains = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    parts = torch.stack([torch.zeros(9, dtype=torch.bool), subsets.values, ~subsets.values])
    result = AtEveryPart(AllItems())(gains, parts, subsets, None)
    # The second part leaves out the set whose subset is empty, the third the set whose subset is the whole.
    certain = torch.where(parts & subsets.values, 1e3, gains)
    each = torch.stack([AllItems()(row, subsets, None, None) for row in certain]).detach()
    assert result.item() == pytest.approx(float((3 * each[0] + 2 * each[1] + 2 * each[2]) / 7), abs=1e-6)
    result.backward()
    assert gains.grad is not None and float(gains.grad[parts & subsets.values].abs().sum()) == 0
    assert float(gains.grad[2].abs().min()) > 0


def test_large_gains_do_not_overflow():
    subsets = Sets.from_list([torch.tensor([True, False, True])])
    gains = torch.tensor([[800.0, -800.0, 900.0]], dtype=torch.float64)
    parts = torch.zeros(1, 3, dtype=torch.bool)
    # The normaliser is 900 up to rounding, and the items of the subset have 800 and 900.
    assert NextItem()(gains, parts, subsets, None).item() == pytest.approx(50.0)
    assert PartialCrossEntropy()(gains, parts, subsets, None).item() == pytest.approx(0.0)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("samples", [1, 2, 3, 200])
def test_the_first_part_is_empty_and_the_others_are_inside_the_subset(samples, half):
    """But for the last, if it is a random half of V."""
    subsets = make_subsets(LAYOUTS["ragged"])
    parts = draw_partial_subsets(subsets, samples, FreshNoise(0), half=half)
    assert parts.shape == (samples, subsets.layout.total) and parts.dtype == torch.bool
    inside = parts[:-1] if half and samples > 1 else parts
    assert not parts[0].any() and not (inside & ~subsets.values).any()
    assert torch.equal(parts, draw_partial_subsets(subsets, samples, FreshNoise(0), half=half))
    if samples == 200:
        assert torch.equal(inside.any(0), subsets.values)
        assert not torch.equal(parts, draw_partial_subsets(subsets, samples, FreshNoise(1)))


def test_every_half_of_v_is_equally_likely():
    """Whatever is chosen. The last part of each of many sets is compared with eight equal shares."""
    sets = 8000
    subsets = make_subsets([[True, False, True]] * sets)
    halves = draw_partial_subsets(subsets, 3, FreshNoise(2), half=True)[-1].reshape(sets, 3)
    counts = Counter(map(tuple, halves.tolist()))
    statistic = sum((counts[bits] - sets / 8) ** 2 / (sets / 8) for bits in itertools.product([False, True], repeat=3))
    # A chi-square number with 7 degrees of freedom has mean 7 and standard deviation 3.7.
    assert statistic < 7 + 4 * 3.7


def test_sizes_of_parts_are_uniform_and_their_items_equally_likely():
    """Every part of every subset has its probability, and parts of different sets are independent."""
    subsets = Sets.from_list([torch.tensor([True, False, True, True]), torch.tensor([True])])
    draws = 20_000
    parts = draw_partial_subsets(subsets, draws + 1, FreshNoise(3))[1:]
    counts = Counter(map(tuple, parts.tolist()))
    statistic, cells = 0.0, 0
    for bits in itertools.product([False, True], repeat=5):
        if bits[1]:
            assert not counts[bits]
            continue
        size = sum(bits[:4])
        expected = draws / (4 * math.comb(3, size)) / 2
        statistic, cells = statistic + (counts[bits] - expected) ** 2 / expected, cells + 1
    # A chi-square number with 15 degrees of freedom has mean 15 and standard deviation 5.5.
    assert cells == 16 and statistic < 15 + 4 * 5.5


def world():
    """Return the subsets of three items, each with a number of sets in which it is the chosen one."""
    subsets = list(itertools.product([False, True], repeat=3))
    return dict(zip(subsets, [2, 7, 1, 3, 4, 1, 5, 6], strict=True))


def drawn_parts(subset):
    """Return 12 parts in which every part is as often as the draw gives it."""
    size, items = sum(subset), [i for i in range(3) if subset[i]]
    parts = []
    for count in range(size + 1):
        for chosen in itertools.combinations(items, count):
            parts += [tuple(i in chosen for i in range(3))] * (12 // ((size + 1) * math.comb(size, count)))
    assert len(parts) == 12
    return parts


def log_odds(weight, part, item):
    """Return the log-odds of the item under weights of the subsets that hold the part."""
    inside, outside = (
        sum(weight(s) for s in world() if s[item] == kind and all(a <= b for a, b in zip(part, s, strict=True)))
        for kind in (True, False)
    )
    # The items of the part itself have none.
    return math.log(inside / outside) if outside else 0.0


def test_the_cross_entropy_at_the_empty_subset_is_least_at_the_marginal_logits():
    """Whatever the sizes of the subsets. At other parts it is least at the log-odds given that the part was drawn."""
    sets = [subset for subset, count in world().items() for _ in range(count)]
    subsets = Sets.from_list([torch.tensor(s) for s in sets])
    rows = [[(False,) * 3] * len(sets), *zip(*(drawn_parts(s) for s in sets), strict=True)]
    parts = torch.tensor(rows).flatten(1)
    names = list(world())
    best = torch.tensor(
        [
            [
                log_odds(lambda s, a=part: world()[s] * (drawn_parts(s).count(a) if any(a) else 1), part, item)
                for item in range(3)
            ]
            for part in names
        ],
        dtype=torch.float64,
    )
    index = torch.tensor([[names.index(part) for part in row] for row in rows])

    def gradient(table):
        table = table.clone().requires_grad_()
        PartialCrossEntropy()(table[index].flatten(1), parts, subsets, None).backward()
        return table.grad

    marginal = [sum(c for s, c in world().items() if s[i]) / sum(world().values()) for i in range(3)]
    torch.testing.assert_close(best[0], torch.logit(torch.tensor(marginal, dtype=torch.float64)))
    slopes = gradient(best)
    is_open = torch.tensor([[not bit for bit in part] for part in names])
    assert float(slopes[is_open].abs().max()) < 1e-12
    assert float(gradient(best + 0.1)[0].abs().min()) > 1e-4


@pytest.mark.parametrize("loss", LOSSES[:3], ids=lambda loss: type(loss).__name__)
def test_sets_count_the_same_whatever_their_weights_sum_to(loss):
    """A set whose items have weight 0 has no loss, and still counts in the mean."""
    subsets = Sets.from_list([torch.tensor([True, False]), torch.tensor([False, True, True])])
    parts = draw_partial_subsets(subsets, 1, FreshNoise(0))
    gains = torch.linspace(-1, 1, 5, dtype=torch.float64)[None]
    alone = loss(gains[:, :2], parts[:, :2], subsets[:1], None)
    weights = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(loss(gains, parts, subsets, weights), alone / 2)
