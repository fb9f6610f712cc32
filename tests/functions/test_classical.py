"""Tests of single classical functions; `test_contract.py` has the tests of all set functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.functions import (
    Average,
    Coverage,
    Exact,
    FacilityLocation,
    FromCallable,
    GraphCut,
    LogDeterminant,
    Modular,
    SetFunction,
    multilinear_gradient,
    multilinear_value,
    rbf,
)
from setgrad.sets import Sets
from tests.functions.contract import asymmetric, dot, draw_sets

MASKS = torch.tensor([[True, False, True, True], [False, True, True, False]])


def plain_rbf(x: Tensor, y: Tensor, gamma: float = 1.0) -> Tensor:
    return (-gamma * (x[:, :, None] - y[:, None]).square().sum(3)).exp()


# ---- similarities


def test_rbf_and_its_two_derivatives_equal_the_formula():
    x, y = draw_sets([4]).values[None], draw_sets([3], seed=1).values[None]
    torch.testing.assert_close(rbf(0.7)(x, y), plain_rbf(x, y, 0.7), rtol=1e-14, atol=1e-14)
    weights = draw_sets([16], seed=2).values[:, 0].reshape(1, 4, 4)

    def hessian(k: Callable[[Tensor, Tensor], Tensor], other: Tensor | None) -> Tensor:
        def total(x: Tensor) -> Tensor:
            pairs = k(x, x if other is None else other)
            return (weights[..., : pairs.shape[2]] * pairs).sum()

        return torch.autograd.functional.hessian(total, x)

    for other in (y, None):
        torch.testing.assert_close(hessian(rbf(), other), hessian(plain_rbf, other), rtol=1e-12, atol=1e-12)


def test_rbf_does_not_depend_on_which_item_comes_first():
    items, pair = torch.tensor([[0.0], [1e3], [1e3 + 0.1]]), torch.tensor([[False, True, True]])
    first, last = Sets.from_list([items]), Sets.from_list([items.flip(0)])
    result = GraphCut().value(first, pair)
    torch.testing.assert_close(result, GraphCut().value(last, pair.flip(1)), rtol=1e-6, atol=0)
    torch.testing.assert_close(result, GraphCut().value(first.to(torch.float64), pair).float(), rtol=1e-6, atol=0)


# A warning of torch's forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_derivatives_of_rbf_at_equal_items_in_every_mode(seeded):
    x, y = draw_sets([4]).values[None].clone(), draw_sets([3], seed=1).values[None].clone()
    x[0, 1], y[0, 2] = x[0, 0], x[0, 0]
    inputs = (x.requires_grad_(), y.requires_grad_())
    with seeded(0):
        assert gradcheck(rbf(0.7), inputs, check_forward_ad=True)
        assert gradgradcheck(rbf(0.7), inputs)
    mapped = torch.func.vmap(rbf(0.7), in_dims=(0, None))(torch.stack([x, x + 1]), y)
    torch.testing.assert_close(mapped, torch.stack([plain_rbf(x, y, 0.7), plain_rbf(x + 1, y, 0.7)]))


def test_rbf_is_precise_far_from_the_origin():
    far = draw_sets([5]).values[None].float() + 4096.0
    torch.testing.assert_close(rbf()(far, far), plain_rbf(far, far), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)], ids=str)
def test_items_of_any_shape(shape):
    values = torch.linspace(0, 1, 3 * torch.Size(shape).numel(), dtype=torch.float64).reshape(3, *shape)
    sets, flat = Sets.from_lengths(values, [2, 1]), Sets.from_lengths(values.reshape(3, -1), [2, 1])
    for function in (Modular(), FacilityLocation(), GraphCut(), LogDeterminant()):
        assert torch.equal(function.gains(sets, MASKS[:, :3]), function.gains(flat, MASKS[:, :3]))


@pytest.mark.parametrize("kind", [FacilityLocation, GraphCut, LogDeterminant])
def test_padding_gives_no_nan_in_a_similarity_that_divides_by_norms(kind):
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)

    def cosine(x: Tensor, y: Tensor) -> Tensor:
        x, y = scale * x / x.norm(dim=2, keepdim=True), y / y.norm(dim=2, keepdim=True)
        return x @ y.mT

    sets = draw_sets([3, 0, 1])
    values = sets.values.clone().requires_grad_()
    function = kind(cosine)
    bound = function.bind(sets.with_values(values))
    (bound.value(MASKS).sum() + bound.gains(MASKS).sum()).backward()
    assert values.grad is not None and scale.grad is not None
    assert bool(values.grad.isfinite().all()) and bool(scale.grad.isfinite())


# ---- parameters


def with_parameters() -> dict[str, Callable[[Tensor], SetFunction]]:
    return {
        "score": lambda p: Modular(lambda x: x @ p),
        "weights": Coverage,
        "cover": lambda p: Coverage(cover=lambda x: torch.sigmoid(x * p)),
        "gamma": lambda p: FacilityLocation(rbf(p[0])),
        "penalty": lambda p: GraphCut(penalty=p[1]),
        "ridge": lambda p: LogDeterminant(rbf(p[0]), ridge=p[1]),
    }


@pytest.mark.parametrize("name", with_parameters())
def test_derivatives_by_parameters(name):
    make, sets = with_parameters()[name], draw_sets([3, 0, 1])

    def both(p: Tensor) -> tuple[Tensor, Tensor]:
        bound = make(p).bind(sets)
        return bound.value(MASKS), bound.gains(MASKS)

    assert torch.autograd.gradcheck(both, torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True))


def test_a_module_may_score_items(seeded):
    with seeded(0):
        score = nn.Linear(2, 1).double()
    sets = draw_sets([3, 1])
    Modular(score).value(sets, MASKS).sum().backward()
    assert score.weight.grad is not None
    torch.testing.assert_close(score.weight.grad[0], (MASKS.double() @ sets.values).sum(0))


# ---- relaxations


@pytest.mark.parametrize(
    "function",
    [
        Modular(),
        Coverage(),
        Coverage(torch.tensor([2.0, 0.1])),
        FacilityLocation(),
        FacilityLocation(lambda x, y: dot(x, y) - 0.3),
        GraphCut(),
        GraphCut(asymmetric, penalty=0.9),
    ],
    ids=["modular", "coverage", "weighted", "facility", "negative", "cut", "asymmetric cut"],
)
def test_fractional_masks_give_the_multilinear_extension(function):
    sets = draw_sets([7, 0, 1, 3])
    psi = draw_sets([11], seed=5).values[:, 0]
    psi[2], psi[3] = 0.0, 1.0
    value = multilinear_value(function, sets, psi, estimator=Exact())
    torch.testing.assert_close(function.value(sets, psi[None])[0], value, rtol=1e-13, atol=1e-13)
    gradient = multilinear_gradient(function, sets, psi, estimator=Exact())
    torch.testing.assert_close(function.gains(sets, psi[None])[0], gradient, rtol=1e-13, atol=1e-13)


def test_coverage_is_differentiable_where_items_cover_fully():
    # Items that certainly cover a topic give factors of exactly 0, for one item and for two.
    sets = Sets.from_lengths(torch.tensor([[1.0, 1.0, 0.3], [1.0, 0.2, 0.6], [0.4, 0.5, 0.7]]).double(), [3])
    function, masks = Coverage(cover=lambda x: x), torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
    bound = function.bind(sets)
    assert torch.autograd.gradcheck(lambda x: (bound.value(x), bound.gains(x)), masks)
    # dF/dx_i of a multilinear function is the gain of i.
    (slope,) = torch.autograd.grad(bound.value(masks).sum(), masks)
    torch.testing.assert_close(slope, bound.gains(masks), rtol=1e-14, atol=1e-14)


# ---- number types

INTEGER_SETS = Sets.from_list([[[1, 0], [0, 1], [1, 1]], [[0, 1]]])
FRACTIONS = torch.tensor([[0.5, 0.25, 0.125, 0.75], [1.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        Modular(),
        Modular(lambda x: x[:, 0]),
        Coverage(torch.tensor([0.5, 0.25])),
        Coverage(cover=lambda x: x > 0),
        FacilityLocation(),
        GraphCut(lambda x, y: (x[:, :, None] == y[:, None]).all(3)),
        LogDeterminant(lambda x, y: (x[:, :, None] == y[:, None]).all(3)),
        Average([Modular(), Coverage()]),
    ],
    ids=["modular", "score", "weights", "cover", "facility", "cut", "determinant", "average"],
)
def test_integer_features_have_real_values(function, dtype):
    sets, truth = INTEGER_SETS.to(dtype), INTEGER_SETS.to(torch.float32)
    for masks in (FRACTIONS, MASKS):
        assert torch.equal(function.value(sets, masks), function.value(truth, masks))
        assert torch.equal(function.gains(sets, masks), function.gains(truth, masks))


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_the_average_of_counts_is_real(copies):
    counts, sets = FromCallable(lambda items, masks: masks.bool().sum(1)), draw_sets([3, 1])
    function = Average([counts] * (copies - 1) + [FromCallable(lambda items, masks: 0 * masks.bool().sum(1))])
    value, gains = function.value(sets, MASKS), function.gains(sets, MASKS)
    share = (copies - 1) / copies
    torch.testing.assert_close(value, share * torch.tensor([[2.0, 1.0], [2.0, 0.0]]))
    torch.testing.assert_close(gains, torch.full((2, 4), share))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [Modular, Coverage, FacilityLocation, GraphCut, LogDeterminant])
def test_half_precision_is_kept_and_accurate(kind, dtype):
    sets = draw_sets([3, 0, 1]).to(dtype)
    sets = sets.with_values(sets.values.requires_grad_())
    wide, function = sets.to(torch.float64), kind()
    for masks in (MASKS, FRACTIONS):
        for result, truth in (
            (function.value(sets, masks), function.value(wide, masks)),
            (function.gains(sets, masks), function.gains(wide, masks)),
        ):
            assert result.dtype == dtype
            torch.testing.assert_close(result.double(), truth, rtol=0.02, atol=0.02)
            (slope,) = torch.autograd.grad(result.sum(), sets.values)
            assert slope.dtype == dtype and bool(slope.isfinite().all())


def test_half_precision_allows_a_small_ridge():
    sets = draw_sets([3, 1]).to(torch.float16)
    function = LogDeterminant(rbf(200.0), ridge=1e-6)
    for result, truth in (
        (function.value(sets, MASKS), function.value(sets.to(torch.float64), MASKS)),
        (function.gains(sets, MASKS), function.gains(sets.to(torch.float64), MASKS)),
    ):
        torch.testing.assert_close(result.double(), truth, rtol=0.02, atol=0.02)


# ---- edge cases


def test_facility_location_ignores_negative_similarities():
    sets = Sets.from_lengths(torch.tensor([[1.0], [-1.0]]).double(), [2])
    function = FacilityLocation(dot)
    assert function.value(sets, torch.tensor([[True, False], [True, True]])).tolist() == [[1.0], [2.0]]
    assert function.gains(sets, torch.tensor([[False, False]])).tolist() == [[1.0, 1.0]]


def test_log_determinant_equals_the_closed_forms():
    sets, ridge = draw_sets([4]), 0.3
    pairs = plain_rbf(sets.values[None], sets.values[None])[0] / ridge
    mask = torch.tensor([True, False, True, False])
    inverse = torch.linalg.inv(torch.eye(2, dtype=torch.float64) + pairs[mask][:, mask])
    adding = (1 + pairs[1, 1] - pairs[1, mask] @ inverse @ pairs[mask, 1]).log()
    removing = -inverse[0, 0].log()
    gains = LogDeterminant(ridge=ridge).gains(sets, mask[None])[0]
    torch.testing.assert_close(gains[[1, 0]], torch.stack([adding, removing]), rtol=1e-12, atol=1e-12)


def test_log_determinant_is_precise_with_a_small_ridge():
    sets, mask = draw_sets([5]), torch.tensor([[True, False, True, True, False]])
    function = LogDeterminant(rbf(50.0), ridge=1e-6)
    wide, narrow = function.gains(sets, mask), function.gains(sets.to(torch.float32), mask)
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-4, atol=1e-4)


def test_log_determinant_rejects_indefinite_similarities():
    sets = Sets.from_lengths(torch.tensor([[0.1], [1.0], [1.0]]).double(), [1, 2])
    with pytest.raises(DataError, match="positive semi-definite on set 1"):
        LogDeterminant(lambda x, y: -2 * dot(x, y)).bind(sets)
    with pytest.raises(DataError, match="positive semi-definite on set 0"):
        LogDeterminant().bind(sets.with_values(sets.values * torch.nan))
    # Not positive semi-definite either, but the ridge is large enough.
    LogDeterminant(lambda x, y: -2 * dot(x, y), ridge=5.0).bind(sets)


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan")])
def test_log_determinant_needs_a_positive_ridge(ridge):
    with pytest.raises(OptionError, match="ridge must be positive"):
        LogDeterminant(ridge=ridge)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (Coverage(cover=lambda x: x[:, 0]), ShapeError, "one row of topics"),
        (Coverage(torch.ones(3)), ShapeError, "there are 2 topics"),
        (Modular(lambda x: x), ShapeError, "one number for each of 4 items"),
        (FacilityLocation(lambda x, y: x[..., 0]), ShapeError, r"returned shape \(2, 3\)"),
    ],
    ids=["topics", "weights", "score", "similarity"],
)
def test_wrong_results_of_callables_raise(function, error, message):
    with pytest.raises(error, match=message):
        function.bind(draw_sets([3, 1]))


@pytest.mark.parametrize("bad", [1.5, float("nan")])
def test_coverage_rejects_numbers_that_are_not_probabilities(bad):
    with pytest.raises(DataError, match="between 0 and 1"):
        Coverage().bind(Sets.from_list([[[0.5, bad]]]))


def test_masks_are_checked():
    sets = draw_sets([2])
    with pytest.raises(ShapeError, match=r"mask\[None\]"):
        Modular().value(sets, torch.tensor([True, False]))
    with pytest.raises(ShapeError, match=r"\(m, 2\)"):
        Modular().gains(sets, torch.ones(1, 3))
    with pytest.raises(DataError, match="NaN"):
        Modular().gains(sets, torch.full((1, 2), torch.nan))


def test_a_subset_from_predict_is_one_mask():
    sets = Sets.from_list([torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[1.0, 1]])])
    subset = sets.with_values(torch.tensor([True, False, True]))
    for function in (Coverage(), Modular()):
        for method in (function.value, function.gains):
            torch.testing.assert_close(method(sets, subset), method(sets, subset.values[None]))
    with pytest.raises(ShapeError, match="belongs to other sets"):
        Coverage().value(sets, Sets.from_list([torch.tensor([True]), torch.tensor([True, False])]))
