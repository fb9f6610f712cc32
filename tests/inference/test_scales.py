"""Scales against the norms of torch, for single sets and for a whole batch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.inference import BatchFrobeniusScale, BatchNuclearScale, ConstantScale, L2Scale, Scale
from setgrad.sets import Layout, Sets

ALL_SCALES = [ConstantScale(0.7), L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()]
# Sets of different sizes, more sets than items, more items than sets, one set, one item, equal sizes.
SHAPES = [[4, 0, 1, 3], [2, 1, 0, 2, 1, 2], [7, 5], [6], [1], [3, 3, 3]]


def draw(lengths: list[int], seed: int = 0, dtype=torch.float64) -> tuple[Tensor, Layout]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), generator=generator, dtype=torch.float64).to(dtype), Layout.from_lengths(lengths)


def matrix(gradient: Tensor, layout: Layout) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(Sets(gradient, layout)), batch_first=True)


def expected(scale: Scale, gradient: Tensor, layout: Layout) -> Tensor:
    """Return equation 27 by a loop over the sets."""
    whole, rows = matrix(gradient, layout), []
    for row in Sets(gradient, layout):
        if isinstance(scale, ConstantScale):
            q = torch.tensor(scale.c, dtype=gradient.dtype)
        elif isinstance(scale, L2Scale):
            q = torch.linalg.vector_norm(row)
        else:
            q = torch.linalg.matrix_norm(whole, ord="fro" if isinstance(scale, BatchFrobeniusScale) else "nuc")
        rows.append(2 * row / (max(len(row), 1) * q))
    return torch.cat(rows)


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
@pytest.mark.parametrize("scale", ALL_SCALES, ids=repr)
def test_scales_equal_the_norms_of_torch(scale, lengths):
    gradient, layout = draw(lengths)
    torch.testing.assert_close(scale(gradient, layout), expected(scale, gradient, layout), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("small", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("lengths", [[30] * 20, [3] * 50], ids=["wide", "tall"])
def test_the_nuclear_norm_is_precise_in_float32(lengths, small):
    """Similar sets have small singular values, whose squares are not precise in float32."""
    gradient, layout = draw(lengths)
    size, row = lengths[0], torch.linspace(1, 2, lengths[0], dtype=torch.float64)
    similar = (row + small * gradient.reshape(-1, size)).flatten().float()
    exact, single = similar.double().requires_grad_(), similar.clone().requires_grad_()
    scaled, truth = BatchNuclearScale()(single, layout), expected(BatchNuclearScale(), exact, layout)
    torch.testing.assert_close(scaled.double(), truth, rtol=1e-5, atol=0)
    weight = torch.linspace(-1, 1, len(similar), dtype=torch.float64)
    (slope,) = torch.autograd.grad(scaled @ weight.float(), single)
    (exact_slope,) = torch.autograd.grad(truth @ weight, exact)
    assert float((slope - exact_slope).norm() / exact_slope.norm()) < 1e-4


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
@pytest.mark.parametrize("scale", ALL_SCALES, ids=repr)
def test_derivatives_equal_finite_differences(scale, lengths):
    gradient, layout = draw(lengths, seed=1)
    assert torch.autograd.gradcheck(lambda g: scale(g, layout), gradient.requires_grad_())
    ones = torch.ones_like(gradient).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda g: scale(g, layout), gradient, ones)


def test_the_nuclear_norm_of_a_matrix_of_low_rank():
    """If all sets are equal, one singular value is not 0 up to rounding."""
    row = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    layout = Layout.from_lengths([3, 3, 3, 3])
    gradient = row.repeat(4).requires_grad_()
    result = BatchNuclearScale()(gradient, layout)
    torch.testing.assert_close(result, expected(BatchFrobeniusScale(), gradient.detach(), layout), rtol=1e-7, atol=0)
    (slope,) = torch.autograd.grad(result.sum(), gradient)
    assert slope.isfinite().all()


@pytest.mark.parametrize("lengths", [[3, 0, 1], [0], [0, 0], []], ids=str)
@pytest.mark.parametrize("scale", ALL_SCALES, ids=repr)
def test_a_zero_gradient_stays_zero(scale, lengths):
    layout = Layout.from_lengths(lengths)
    zero = torch.zeros(sum(lengths), dtype=torch.float64, requires_grad=True)
    result = scale(zero, layout)
    assert torch.equal(result, torch.zeros_like(result))
    (slope,) = torch.autograd.grad(result.sum(), zero)
    assert slope.isfinite().all()


@pytest.mark.parametrize("scale", ALL_SCALES, ids=repr)
def test_one_zero_set_among_others(scale):
    gradient, layout = draw([3, 2, 4])
    gradient[3:5] = 0
    result = scale(gradient.requires_grad_(), layout)
    assert result[3:5].abs().max() == 0 and result[:3].abs().min() > 0
    assert torch.autograd.grad(result.sum(), gradient)[0].isfinite().all()


@pytest.mark.parametrize("scale", [L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()], ids=repr)
def test_logits_are_bounded_for_gradients_of_any_size(scale):
    gradient, layout = draw([4, 0, 1, 3])
    bound = 2 / layout.lengths[layout.ids] + 1e-9
    for size in (1e-6, 1.0, 1e6):
        result = scale(size * gradient, layout)
        assert (result.abs() <= bound).all()
        torch.testing.assert_close(result, scale(gradient, layout), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", ALL_SCALES, ids=repr)
def test_the_attributes_linear_and_joint_are_true(scale):
    gradient, layout = draw([3, 2])
    both = scale(gradient, layout)
    alone = scale(gradient[:3], Layout.from_lengths([3]))
    assert torch.allclose(both[:3], alone, rtol=1e-9) != scale.joint
    assert torch.allclose(scale(3 * gradient, layout), 3 * both) == scale.linear
    assert scale(gradient.float(), layout).dtype == torch.float32


@pytest.mark.parametrize("c", [0.0, -1.0, math.inf, math.nan])
def test_a_constant_must_be_positive_and_finite(c):
    with pytest.raises(OptionError, match="positive and finite"):
        ConstantScale(c)
