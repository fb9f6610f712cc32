"""Scales against the norms of torch, set by set and for a whole batch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.inference import BatchFrobeniusScale, BatchNuclearScale, ConstantScale, L2Scale, Scale
from setgrad.inference.scales import SCALES
from setgrad.sets import Layout, Sets

SCALES_OF_ALL_KINDS = [ConstantScale(0.7), L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()]
# Ragged, more sets than items and more items than sets, one set, one item, equal sizes.
SHAPES = [[4, 0, 1, 3], [2, 1, 0, 2, 1, 2], [7, 5], [6], [1], [3, 3, 3]]


def draw(lengths: list[int], seed: int = 0, dtype=torch.float64) -> tuple[Tensor, Layout]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), generator=generator, dtype=torch.float64).to(dtype), Layout.from_lengths(lengths)


def matrix(gradient: Tensor, layout: Layout) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(Sets(gradient, layout)), batch_first=True)


def expected(scale: Scale, gradient: Tensor, layout: Layout) -> Tensor:
    """Equation 27, in a loop over the sets."""
    whole, pieces = matrix(gradient, layout), []
    for row in Sets(gradient, layout):
        if isinstance(scale, ConstantScale):
            q = torch.tensor(scale.c, dtype=gradient.dtype)
        elif isinstance(scale, L2Scale):
            q = torch.linalg.vector_norm(row)
        else:
            q = torch.linalg.matrix_norm(whole, ord="fro" if isinstance(scale, BatchFrobeniusScale) else "nuc")
        pieces.append(2 * row / (max(len(row), 1) * q))
    return torch.cat(pieces)


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
@pytest.mark.parametrize("scale", SCALES_OF_ALL_KINDS, ids=repr)
def test_against_the_norms_of_torch(scale, lengths):
    gradient, layout = draw(lengths)
    torch.testing.assert_close(scale(gradient, layout), expected(scale, gradient, layout), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("small", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("lengths", [[30] * 20, [3] * 50], ids=["wide", "tall"])
def test_the_nuclear_norm_in_float32(lengths, small):
    """Sets nearly alike have small singular values, whose squares a float32 does not hold."""
    gradient, layout = draw(lengths)
    size, row = lengths[0], torch.linspace(1, 2, lengths[0], dtype=torch.float64)
    near = (row + small * gradient.reshape(-1, size)).flatten().float()
    exact, found = near.double().requires_grad_(), near.clone().requires_grad_()
    scaled, truth = BatchNuclearScale()(found, layout), expected(BatchNuclearScale(), exact, layout)
    torch.testing.assert_close(scaled.double(), truth, rtol=1e-5, atol=0)
    weight = torch.linspace(-1, 1, len(near), dtype=torch.float64)
    (slope,) = torch.autograd.grad(scaled @ weight.float(), found)
    (wanted,) = torch.autograd.grad(truth @ weight, exact)
    assert float((slope - wanted).norm() / wanted.norm()) < 1e-4


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
@pytest.mark.parametrize("scale", SCALES_OF_ALL_KINDS, ids=repr)
def test_derivatives(scale, lengths):
    gradient, layout = draw(lengths, seed=1)
    assert torch.autograd.gradcheck(lambda g: scale(g, layout), gradient.requires_grad_())
    ones = torch.ones_like(gradient).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda g: scale(g, layout), gradient, ones)


def test_a_matrix_of_low_rank():
    """All sets alike: one singular value, the others are rounding."""
    row = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    layout = Layout.from_lengths([3, 3, 3, 3])
    gradient = row.repeat(4).requires_grad_()
    found = BatchNuclearScale()(gradient, layout)
    torch.testing.assert_close(found, expected(BatchFrobeniusScale(), gradient.detach(), layout), rtol=1e-7, atol=0)
    (slope,) = torch.autograd.grad(found.sum(), gradient)
    assert slope.isfinite().all()


@pytest.mark.parametrize("lengths", [[3, 0, 1], [0], [0, 0], []], ids=str)
@pytest.mark.parametrize("scale", SCALES_OF_ALL_KINDS, ids=repr)
def test_a_zero_gradient_stays_zero(scale, lengths):
    layout = Layout.from_lengths(lengths)
    zero = torch.zeros(sum(lengths), dtype=torch.float64, requires_grad=True)
    found = scale(zero, layout)
    assert torch.equal(found, torch.zeros_like(found))
    (slope,) = torch.autograd.grad(found.sum(), zero)
    assert slope.isfinite().all()


@pytest.mark.parametrize("scale", SCALES_OF_ALL_KINDS, ids=repr)
def test_one_zero_set_among_others(scale):
    gradient, layout = draw([3, 2, 4])
    gradient[3:5] = 0
    found = scale(gradient.requires_grad_(), layout)
    assert found[3:5].abs().max() == 0 and found[:3].abs().min() > 0
    assert torch.autograd.grad(found.sum(), gradient)[0].isfinite().all()


@pytest.mark.parametrize("scale", [L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()], ids=repr)
def test_logits_are_bounded_whatever_the_size_of_the_gradient(scale):
    gradient, layout = draw([4, 0, 1, 3])
    bound = 2 / layout.lengths[layout.ids] + 1e-9
    for size in (1e-6, 1.0, 1e6):
        found = scale(size * gradient, layout)
        assert (found.abs() <= bound).all()
        torch.testing.assert_close(found, scale(gradient, layout), rtol=1e-9, atol=1e-12)


def test_one_set_alone_has_one_norm():
    gradient, layout = draw([5])
    first = L2Scale()(gradient, layout)
    for other in (BatchFrobeniusScale(), BatchNuclearScale()):
        torch.testing.assert_close(other(gradient, layout), first, rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", SCALES_OF_ALL_KINDS, ids=repr)
def test_what_they_say_of_themselves(scale):
    gradient, layout = draw([3, 2])
    both = scale(gradient, layout)
    alone = scale(gradient[:3], Layout.from_lengths([3]))
    assert torch.allclose(both[:3], alone, rtol=1e-9) != scale.joint
    assert torch.allclose(scale(3 * gradient, layout), 3 * both) == scale.linear
    assert scale(gradient.float(), layout).dtype == torch.float32


def test_names():
    assert {name: type(scale) for name, scale in SCALES.items()} == {
        "l2": L2Scale,
        "frobenius-batch": BatchFrobeniusScale,
        "nuclear-batch": BatchNuclearScale,
    }
    for c in (0.0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="positive"):
            ConstantScale(c)


@pytest.mark.parametrize("c", [0.0, -1.0, math.inf, math.nan])
def test_a_constant_is_positive_and_finite(c):
    with pytest.raises(OptionError, match="positive and finite"):
        ConstantScale(c)
