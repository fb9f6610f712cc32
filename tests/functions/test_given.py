"""A function with known items against the function itself, and the term for pairs beside enumeration."""

import pytest
import torch
from torch import nn

from setgrad.errors import DataError, ShapeError
from setgrad.functions import BoundSetFunction, DeepSetFunction, Exact, HorseFunction, InsetFunction, PairScores
from setgrad.functions.given import BoundGiven
from setgrad.functions.pair_scores import BoundSum
from setgrad.sets import Sets
from tests.functions.contract import Sum, draw_sets
from tests.functions.enumeration import enumerate_subsets, wavy

SIZES = [3, 0, 1, 4]
INSIDE = torch.tensor([True, False, False, False, False, True, False, True])
OUTSIDE = torch.tensor([False, True, False, False, True, False, False, False])
FUNCTIONS = {
    "deepset": lambda: DeepSetFunction(2, "mlp", dim=8, hidden=(8, 8)),
    "inset": lambda: InsetFunction(2, dim=8, hidden=(8, 8)),
    "horse": lambda: HorseFunction(2, "mlp", dim=8, hidden=(8,), slots=2),
    "pairs": lambda: PairScores(2),
    "sum": Sum,
    "not relaxed, not restricted": wavy,
}


@pytest.fixture(params=FUNCTIONS)
def bound(request, seeded) -> BoundSetFunction:
    with seeded(0):
        function = FUNCTIONS[request.param]()
    function = function.double() if isinstance(function, nn.Module) else function
    return function.bind(draw_sets(SIZES))


def draw_masks(bound):
    fractions = torch.rand(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [fractions < 0.5, fractions] if bound.relaxed else [fractions < 0.5]


def with_known(masks):
    """Return the masks with the known items, one by one."""
    masks = masks.clone()
    for item in range(8):
        if INSIDE[item] or OUTSIDE[item]:
            masks[:, item] = bool(INSIDE[item])
    return masks


def test_values_and_gains_are_those_with_the_known_items(bound):
    known = BoundGiven(bound, INSIDE, OUTSIDE)
    assert known.relaxed == bound.relaxed and known.sets is bound.sets
    for masks in draw_masks(bound):
        before = masks.clone()
        assert torch.equal(known.value(masks), bound.value(with_known(masks)))
        assert torch.equal(known.gains(masks), bound.gains(with_known(masks)))
        items = torch.tensor([6, 0, 4, 4])
        assert torch.equal(known.gains(masks, items), bound.gains(with_known(masks), items))
        assert torch.equal(masks, before)
        torch.testing.assert_close(known.prepared().gains(masks), known.gains(masks))


def test_gains_are_differences_of_values_for_unknown_items(bound):
    known = BoundGiven(bound, INSIDE, OUTSIDE)
    masks = draw_masks(bound)[0]
    generic, is_known = BoundSetFunction.gains(known, masks), INSIDE | OUTSIDE
    torch.testing.assert_close(known.gains(masks)[:, ~is_known], generic[:, ~is_known])
    # The value does not depend on the masks of known items, but their gains are not 0.
    assert bool((generic[:, is_known] == 0).all()) and bool((known.gains(masks)[:, is_known] != 0).any())


def test_a_restricted_function_keeps_its_known_items(bound):
    known, numbers = BoundGiven(bound, INSIDE, OUTSIDE), torch.tensor([3, 2])
    items = bound.sets.with_values(torch.arange(8)).take(numbers)
    part = known.restrict(numbers, items)
    assert (part is None) == (bound.restrict(numbers, items) is None)
    if part is None:
        return
    for masks in draw_masks(bound):
        torch.testing.assert_close(part.value(masks[:, items.values]), known.value(masks)[:, numbers])
        torch.testing.assert_close(part.gains(masks[:, items.values]), known.gains(masks)[:, items.values])


def test_other_tensors(bound):
    known, masks = BoundGiven(bound, INSIDE, OUTSIDE), draw_masks(bound)[0]
    others = [2 * tensor for tensor in bound.tensors()]
    assert len(known.tensors()) == len(bound.tensors())
    expected = bound.with_tensors(others).value(with_known(masks))
    assert torch.equal(known.with_tensors(others).value(masks), expected)


def test_the_linearisation_is_the_jacobian_of_the_mean_gains(bound):
    """By the numbers from which the masks are made, here their squares; known items do not move."""
    masks = draw_masks(bound)[-1]
    numbers = torch.rand(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for function in (bound, BoundGiven(bound, INSIDE, OUTSIDE)):
        function = function.prepared()
        result = function.linearisation(masks * numbers.square(), 2 * masks * numbers)
        if result is None:
            assert not bound.relaxed
            continue

        def mean_gains(x, function=function):
            return function.gains(masks * x.square()).mean(0)

        torch.testing.assert_close(result[0], mean_gains(numbers))
        jacobian = torch.autograd.functional.jacobian(mean_gains, numbers)
        for number, part in enumerate(result[1]):
            inside = bound.sets.layout.ids == number
            count = SIZES[number]
            torch.testing.assert_close(part[:count, :count], jacobian[inside][:, inside])


def test_an_exact_estimate_is_that_of_the_function_with_the_items_fixed(seeded):
    with seeded(0):
        function = Sum().double()
    sets = draw_sets(SIZES)
    p = torch.rand(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fixed = p.masked_fill(INSIDE, 1.0).masked_fill(OUTSIDE, 0.0)
    truth = enumerate_subsets(function, sets, fixed, torch.zeros(8, dtype=torch.float64))
    gradient = Exact().gradient(BoundGiven(function.bind(sets), INSIDE, OUTSIDE), p)
    # Values do not depend on known items, so an estimate from values has nothing to say about them.
    unknown = ~(INSIDE | OUTSIDE)
    torch.testing.assert_close(gradient[unknown], truth.gradient[unknown])


def test_a_sum_of_functions_has_the_sum_of_their_values_and_gains(bound):
    pairs = PairScores(2, weight=-2.0).double().bind(bound.sets)
    total = BoundSum([bound, pairs])
    assert total.relaxed == bound.relaxed
    for masks in draw_masks(bound):
        torch.testing.assert_close(total.value(masks), bound.value(masks) + pairs.value(masks))
        torch.testing.assert_close(total.gains(masks), bound.gains(masks) + pairs.gains(masks))


def test_a_new_term_for_pairs_prefers_items_that_are_alike():
    function = PairScores(2)
    sets = Sets.from_list([[[1.0, 0.0], [5.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, 0.0]]])
    first = torch.tensor([[True, False, False, False, False]])
    # Three times the cosine: 1, 0, -1, and 0 for an item without a direction. One item alone has no pair.
    assert function.gains(sets, first).tolist() == [[0.0, 3.0, 0.0, -3.0, 0.0]]
    assert function.value(sets, first).item() == 0.0


def test_tied_features_have_one_weight():
    function, sets = (
        PairScores(3, tied=[slice(1, 3)]),
        Sets.from_list([[[1.0, 2.0, 0.0], [1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]]),
    )
    with torch.no_grad():
        function.weights.copy_(torch.tensor([0.5, 1.0, 3.0]))
    plain, first = PairScores(3), torch.tensor([[True, False, False]])
    with torch.no_grad():
        plain.weights.copy_(torch.tensor([0.5, 2.0, 2.0]))
    torch.testing.assert_close(function.gains(sets, first), plain.gains(sets, first))
    function.gains(sets, first).sum().backward()
    assert function.weights.grad is not None and function.weights.grad[1] == function.weights.grad[2] != 0


def test_pairs_of_images_and_wrong_items():
    items = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0))
    flat, images = (Sets.from_list([x]) for x in (items.flatten(1), items))
    both = torch.tensor([[True, False, True]])
    assert torch.equal(PairScores((2, 4)).value(images, both), PairScores(8).value(flat, both))
    with pytest.raises(ShapeError):
        PairScores(7).bind(flat)
    with pytest.raises(DataError):
        PairScores(8).bind(flat.to(torch.complex64))
