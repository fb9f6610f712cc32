"""Local search compared with plain loops on small sets."""

import itertools

import pytest
import torch

from setgrad.functions import BoundSetFunction, DeepSetFunction, Modular
from setgrad.functions.facility_location import FacilityLocation
from setgrad.functions.graph_cut import GraphCut
from setgrad.functions.log_determinant import LogDeterminant
from setgrad.selector import greedy, local_search
from setgrad.selector.item_by_item import choose_item_by_item
from setgrad.sets import Sets

SIZES = [5, 0, 1, 7, 3]
FUNCTIONS = [FacilityLocation(), GraphCut(penalty=2.0), LogDeterminant(), "deep"]


@pytest.fixture(params=FUNCTIONS, ids=lambda f: f if isinstance(f, str) else type(f).__name__)
def bound(request, seeded):
    function = request.param
    if function == "deep":
        with seeded(3):
            function = DeepSetFunction(2, "mlp", dim=8, hidden=(8, 8)).double()
    generator = torch.Generator().manual_seed(0)
    return function.bind(Sets.from_lengths(torch.rand(sum(SIZES), 2, generator=generator, dtype=torch.float64), SIZES))


def value(bound, chosen, number):
    """Return F of one subset of one set; items are counted within the set."""
    mask = torch.zeros(1, bound.sets.layout.total, dtype=torch.bool)
    mask[0, [bound.sets.layout.host_offsets[number] + i for i in chosen]] = True
    return bound.value(mask)[0, number].item()


@pytest.mark.parametrize("size", [None, 0, 2, 6])
def test_greedy_is_the_choice_item_by_item(bound, size):
    """The path itself is compared with a plain loop in `test_item_by_item.py`."""
    sizes = None if size is None else torch.full((len(SIZES),), size)
    expected = choose_item_by_item(bound, sizes=sizes).subsets
    assert torch.equal(greedy(bound, sizes).values, expected.values)


@pytest.mark.parametrize("keep_size", [True, False])
def test_local_search_stops_when_no_single_move_helps(bound, keep_size):
    start = bound.sets.with_values(bound.sets.layout.positions < 2)
    picks = local_search(bound, start, keep_size=keep_size)
    for number, mask in enumerate(picks):
        chosen, n = mask.nonzero()[:, 0].tolist(), SIZES[number]
        now = value(bound, chosen, number)
        assert now >= value(bound, list(range(min(2, n))), number) - 1e-9
        if keep_size:
            assert len(chosen) == min(2, n)
        else:
            moves = [sorted(set(chosen) ^ {i}) for i in range(n)]
            assert all(value(bound, move, number) <= now + 1e-7 for move in moves)


def test_local_search_finds_the_best_pair_of_a_modular_function():
    scores = torch.tensor([[1.0], [5.0], [3.0], [4.0], [2.0]])
    bound = Modular().bind(Sets.from_list([scores]))
    start = bound.sets.with_values(torch.tensor([True, False, False, False, True]))
    best = max(itertools.combinations(range(5), 2), key=lambda pair: sum(scores[list(pair), 0]))
    assert local_search(bound, start, keep_size=True).values.nonzero()[:, 0].tolist() == sorted(best)


@pytest.mark.parametrize("keep_size", [True, False])
def test_local_search_in_large_sets_stops_when_no_move_helps(keep_size):
    items = torch.randn(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bound = GraphCut().bind(Sets.from_list([items, items[:40]]))
    start = bound.sets.with_values(bound.sets.layout.positions % 2 == 0)
    result = local_search(bound, start, keep_size=keep_size)
    again = local_search(bound, result, keep_size=keep_size)
    assert torch.equal(result.values, again.values)
    if keep_size:
        assert [int(mask.sum()) for mask in result] == [150, 20]
        return
    gains = bound.gains(result.values[None])[0]
    assert float(torch.where(result.values, -gains, gains).max()) <= 1e-7


@pytest.mark.parametrize("keep_size", [True, False])
def test_local_search_terminates_in_single_precision(keep_size, seeded):
    """Beside other subsets, the value of a subset may be rounded up; that is no improvement."""
    for seed in range(8):
        with seeded(seed):
            sets = Sets.from_list([torch.randn(40, 3)])
            bound = DeepSetFunction(3).bind(sets)
            start = sets.with_values(torch.rand(40) < 0.5)
        rounds = _Counted(bound)
        with torch.no_grad():
            result = local_search(rounds, start, keep_size=keep_size)
            before, after = bound.value(torch.stack([start.values, result.values]))
        assert float(after) >= float(before) - 1e-5


class _Counted(BoundSetFunction):
    """A set function that fails if a search does not terminate."""

    def __init__(self, bound):
        self.bound, self.sets, self.left = bound, bound.sets, 1000

    def value(self, masks):
        self.left -= 1
        assert self.left, "the search does not terminate"
        return self.bound.value(masks)

    def gains(self, masks, coordinates=None):
        return self.bound.gains(masks, coordinates)


def test_local_search_takes_many_moves_at_once():
    sets = Sets.from_list([torch.ones(500, 1)])
    result = local_search(Modular().bind(sets), sets.with_values(torch.zeros(500, dtype=torch.bool)), keep_size=False)
    assert bool(result.values.all())
