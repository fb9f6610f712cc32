"""Tests that every set function of the table in `contract.py` must pass."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setgrad.functions import (
    Average,
    BoundSetFunction,
    DeepSetFunction,
    HorseFunction,
    InsetFunction,
    ItemScores,
    PairScores,
    SetFunction,
)
from setgrad.sets import Sets
from tests.functions.contract import CASES, Case, Sum, draw_sets

SIZES = [3, 0, 1, 4, 2]
CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    parameter: Case = request.param
    return parameter


@pytest.fixture
def function(case: Case, seeded) -> SetFunction:
    with seeded(0):
        function = case.make()
    return function.double() if isinstance(function, nn.Module) else function


def all_masks(count: int) -> Tensor:
    rows = list(itertools.product([False, True], repeat=count))
    return torch.tensor(rows, dtype=torch.bool).reshape(2**count, count)


def draw_masks(sets: Sets, case: Case, seed: int = 1) -> list[Tensor]:
    """Return boolean masks, and fractional ones if the function takes them, including empty and full subsets."""
    generator = torch.Generator().manual_seed(seed)
    fractions = torch.rand(5, sets.layout.total, generator=generator, dtype=torch.float64)
    masks = fractions < 0.5
    masks[0], masks[1] = False, True
    edges = fractions.clone()
    edges[0, ::2], edges[1, ::2] = 0.0, 1.0
    return [masks, fractions, edges] if case.relaxed else [masks]


def generic_gains(bound: BoundSetFunction, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
    return BoundSetFunction.gains(bound, masks, coordinates)


def test_value_equals_the_definition_on_every_subset(case, function):
    if case.truth is None:
        pytest.skip("no definition in plain Python")
    drawn = draw_sets(SIZES)
    # With identical items, because ties must not matter.
    sets = Sets.cat([drawn, Sets.from_lengths(drawn.values[[0, 1, 0, 0]], [4])])
    for number, items in enumerate(sets.to_list()):
        masks = torch.zeros(2 ** len(items), sets.layout.total, dtype=torch.bool)
        masks[:, sets.layout.ids == number] = all_masks(len(items))
        expected = [case.truth(items.tolist(), row.nonzero()[:, 0].tolist()) for row in all_masks(len(items))]
        value = function.value(sets, masks)
        torch.testing.assert_close(value[:, number], torch.tensor(expected, dtype=torch.float64), **CLOSE)
        # The first subset is empty.
        assert value[0, number].abs() <= 1e-15
        others = [other for other in range(len(sets)) if other != number]
        assert torch.equal(value[:, others], value[:1, others].expand(len(masks), -1))


# Equal numbers of masks, sets and items hide a transposed or wrongly broadcast axis in the shapes, but not in the
# numbers.
@pytest.mark.parametrize(("sizes", "rows"), [(SIZES, slice(None)), ([3, 3, 3], slice(1, 4))], ids=["ragged", "equal"])
def test_gains_equal_flips_of_single_items(case, function, sizes, rows):
    sets = draw_sets(sizes)
    bound, drawn = function.bind(sets), draw_masks(sets, case)
    assert bound.relaxed == case.relaxed
    # The last ones reach below 0 and above 1.
    for masks in (*drawn, *(3 * fractions - 1 for fractions in drawn[1:2])):
        torch.testing.assert_close(bound.gains(masks[rows]), generic_gains(bound, masks[rows]), **CLOSE)


def test_fractional_masks_of_0_and_1_equal_boolean_masks(case, function):
    if not case.relaxed:
        pytest.skip("takes whole subsets only")
    sets = draw_sets(SIZES)
    bound, masks = function.bind(sets), draw_masks(sets, case)[0]
    torch.testing.assert_close(bound.value(masks.double()), bound.value(masks), **CLOSE)
    torch.testing.assert_close(bound.gains(masks.double()), bound.gains(masks), **CLOSE)


def test_coordinates_select_gains(case, function):
    sets = draw_sets(SIZES)
    bound = function.bind(sets)
    for coordinates in (torch.tensor([7, 2, 2, 3]), torch.tensor([], dtype=torch.long)):
        for masks in draw_masks(sets, case):
            expected = bound.gains(masks)[:, coordinates]
            torch.testing.assert_close(bound.gains(masks, coordinates), expected, **CLOSE)
            torch.testing.assert_close(generic_gains(bound, masks, coordinates), expected, **CLOSE)


def test_results_do_not_depend_on_the_other_sets_of_the_batch(case, function):
    sets = draw_sets(SIZES)
    for masks in draw_masks(sets, case):
        value, gains = function.value(sets, masks), function.gains(sets, masks)
        for number in range(len(sets)):
            in_set = sets.layout.ids == number
            alone = sets[number : number + 1]
            torch.testing.assert_close(function.value(alone, masks[:, in_set])[:, 0], value[:, number], **CLOSE)
            torch.testing.assert_close(function.gains(alone, masks[:, in_set]), gains[:, in_set], **CLOSE)


def test_results_do_not_depend_on_the_order_of_items(case, function):
    sets = draw_sets(SIZES)
    shuffle = torch.tensor([2, 0, 1, 3, 6, 7, 5, 4, 9, 8])
    shuffled = sets.with_values(sets.values[shuffle])
    for masks in draw_masks(sets, case):
        value, gains = function.value(sets, masks), function.gains(sets, masks)
        torch.testing.assert_close(function.value(shuffled, masks[:, shuffle]), value, **CLOSE)
        torch.testing.assert_close(function.gains(shuffled, masks[:, shuffle]), gains[:, shuffle], **CLOSE)


@pytest.mark.parametrize("sizes", [[0], [0, 0], [1], []], ids=str)
def test_empty_and_tiny_batches(case, function, sizes):
    sets = draw_sets(sizes)
    masks = torch.ones(3, sum(sizes), dtype=torch.bool)
    assert function.value(sets, masks).shape == (3, len(sizes))
    assert function.gains(sets, masks).shape == (3, sum(sizes))
    assert function.value(sets, masks[:0]).shape == (0, len(sizes))
    assert function.gains(sets, masks[:0]).shape == (0, sum(sizes))


def test_number_types_are_kept(case, function):
    sets = draw_sets(SIZES)
    for masks in draw_masks(sets, case):
        narrow = masks.float() if masks.is_floating_point() else masks
        assert function.value(sets, narrow).dtype == function.gains(sets, narrow).dtype == torch.float64
        if isinstance(function, nn.Module):
            continue
        small = sets.to(torch.float32)
        assert function.value(small, masks).dtype == function.gains(small, masks).dtype == torch.float32


def test_derivatives_by_items_equal_finite_differences(case, function):
    sets = draw_sets([3, 0, 1], seed=3)
    for masks in draw_masks(sets, case):

        def both(values: Tensor, masks: Tensor = masks) -> tuple[Tensor, Tensor]:
            bound = function.bind(sets.with_values(values))
            return bound.value(masks), bound.gains(masks)

        assert torch.autograd.gradcheck(both, sets.values.clone().requires_grad_())


def test_derivatives_by_masks_equal_finite_differences(case, function):
    if not case.relaxed:
        pytest.skip("takes whole subsets only")
    sets = draw_sets([3, 0, 1], seed=3)
    masks = draw_masks(sets, case)[1].requires_grad_()
    bound = function.bind(sets)

    def both(masks: Tensor) -> tuple[Tensor, Tensor]:
        # Modular gains do not depend on the masks; the sum keeps them in the graph.
        return bound.value(masks), bound.gains(masks) + 0 * masks

    assert torch.autograd.gradcheck(both, masks)


def bind_with_gradients(function: SetFunction) -> tuple[BoundSetFunction, Sets]:
    """Return the function bound to items that require a gradient."""
    sets = draw_sets(SIZES)
    sets = sets.with_values(sets.values.clone().requires_grad_())
    return function.bind(sets), sets


def test_tensors_are_all_tensors_with_a_gradient(case, function):
    bound, sets = bind_with_gradients(function)
    tensors = bound.tensors()
    assert any(t.requires_grad for t in tensors)
    fixed = bound.with_tensors([t.detach() for t in tensors])
    for masks in draw_masks(sets, case):
        assert bound.value(masks).requires_grad
        assert not fixed.value(masks).requires_grad
        assert not fixed.gains(masks).requires_grad


def test_a_bound_function_is_determined_by_its_tensors(case, function):
    # After use, because cached results of the old tensors must not be copied.
    bound, sets = bind_with_gradients(function)
    masks = draw_masks(sets, case)
    before = [(bound.value(m), bound.gains(m)) for m in masks]
    same = bound.with_tensors(bound.tensors())
    other = bound.with_tensors([2 * t.detach() for t in bound.tensors()])
    for m, (value, gains) in zip(masks, before, strict=True):
        assert torch.equal(same.value(m), value) and torch.equal(same.gains(m), gains)
        assert (other.value(m) - value)[1:].abs().max() > 1e-6
        assert (other.gains(m) - gains).abs().max() > 1e-6
        assert torch.equal(bound.value(m), value) and torch.equal(bound.gains(m), gains)
        torch.testing.assert_close(other.gains(m), generic_gains(other, m), **CLOSE)


def test_derivatives_pass_through_the_tensors(case, function):
    bound, sets = bind_with_gradients(function)
    masks = draw_masks(sets, case)[0]
    sources = [sets.values, *(function.parameters() if isinstance(function, nn.Module) else ())]
    tensors = bound.tensors()
    replaced = [t.detach().requires_grad_() for t in tensors]
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    slopes = torch.autograd.grad(bound.with_tensors(replaced).gains(masks).sum(), replaced, **options)
    # Constants among the tensors have no gradient.
    reached = [(t, slope) for t, slope in zip(tensors, slopes, strict=True) if t.requires_grad]
    through = torch.autograd.grad(
        [t for t, _ in reached], sources, [slope for _, slope in reached], retain_graph=True, **options
    )
    direct = torch.autograd.grad(bound.gains(masks).sum(), sources, **options)
    torch.testing.assert_close(through, direct, **CLOSE)


def test_submodular_and_monotone_functions_are(case, function):
    if not case.submodular:
        pytest.skip("not submodular")
    sets = draw_sets([5], seed=4)
    masks = all_masks(5)
    gains = function.gains(sets, masks)
    inside = (masks[:, None] <= masks[None]).all(2)
    assert inside.sum() == 3**5
    for small, large in inside.nonzero().tolist():
        outside = ~masks[large]
        assert (gains[small] >= gains[large] - 1e-12)[outside].all()
    assert not case.monotone or bool((gains >= -1e-12).all())


def test_masks_of_a_wider_type_than_the_weights(case: Case, function: SetFunction) -> None:
    if not isinstance(function, nn.Module):
        pytest.skip("a function without weights has the type of its items")
    sets = draw_sets(SIZES).to(torch.float32)
    bound = function.float().bind(sets)
    if not bound.relaxed:
        pytest.skip("takes no fractions")
    masks = torch.rand(2, sets.layout.total, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(bound.gains(masks), bound.gains(masks.float()), check_dtype=False, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bound.value(masks), bound.value(masks.float()), check_dtype=False, rtol=1e-4, atol=1e-5)


def test_a_restricted_function_is_the_function_of_these_sets(case, function):
    sets, numbers = draw_sets(SIZES), torch.tensor([3, 1, 4])
    items = sets.with_values(torch.arange(sets.layout.total)).take(numbers)
    for bound in (function.bind(sets), function.bind(sets).prepared()):
        result = bound.restrict(numbers, items)
        if result is None:
            pytest.skip("cannot be restricted")
        alone = function.bind(sets.take(numbers))
        assert torch.equal(result.sets.values, alone.sets.values) and result.sets.layout.same_as(alone.sets.layout)
        for masks in draw_masks(alone.sets, case):
            torch.testing.assert_close(result.value(masks), alone.value(masks), **CLOSE)
            torch.testing.assert_close(result.gains(masks), alone.gains(masks), **CLOSE)


def test_learned_functions_can_be_restricted(seeded):
    sets, numbers = draw_sets(SIZES), torch.tensor([0])
    items = sets.with_values(torch.arange(sets.layout.total)).take(numbers)
    with seeded(0):
        kinds = (DeepSetFunction, ItemScores, HorseFunction, InsetFunction)
        functions = [*(kind(2, phi="mlp", dim=4) for kind in kinds), PairScores(2), Sum()]
    for function in (*functions, Average(functions)):
        assert function.bind(sets.to(torch.float32)).restrict(numbers, items) is not None
