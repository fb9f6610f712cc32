"""Linear layers by oneDNN against those of torch in double precision."""

import pytest
import torch
from torch.nn import functional

from setgrad import _linear
from setgrad._linear import Linear, linear


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Use oneDNN for small products too, and on every CPU that has it."""
    monkeypatch.setattr(_linear, "_LEAST_WORK", 0)
    monkeypatch.setattr(_linear, "_has_wide_vectors", torch.backends.mkldnn.is_available)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def derivatives(function, tensors):
    """Return the values, the first and the second derivatives of a layer followed by a curved function."""
    values = function(*tensors)
    first = torch.autograd.grad(values.sin().sum(), tensors, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), tensors)
    return [values, *first, *second]


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (1, 5)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_derivatives_are_those_of_torch(shape, has_bias):
    tensors = [draw(*shape), draw(4, 5, seed=1), *([draw(4, seed=2)] if has_bias else [])]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    pairs = zip(derivatives(linear, tensors), derivatives(functional.linear, exact), strict=True)
    for own, other in pairs:
        torch.testing.assert_close(own.double(), other, rtol=1e-4, atol=1e-4)


def test_the_positive_part_is_that_of_torch():
    x, weight, bias = draw(7, 5), draw(4, 5, seed=1), draw(4, seed=2)
    expected = functional.linear(x, weight, bias).relu()
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, bias, relu=True), expected)
    torch.testing.assert_close(linear(x, weight, bias, relu=True), expected)
    assert linear(x, weight, relu=True).requires_grad


def test_a_transposed_input_is_read_as_it_is():
    x, weight = draw(5, 7), draw(6, 4, seed=1)
    with torch.no_grad():
        torch.testing.assert_close(linear(x.T, weight[:, :3].repeat(1, 2)[:, :5]), x.T @ weight[:, [0, 1, 2, 0, 1]].T)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_transforms_forward_mode_and_double_precision_work():
    x, weight = draw(7, 5).detach(), draw(4, 5, seed=1).detach()
    expected = functional.linear(x, weight)
    torch.testing.assert_close(torch.func.vmap(linear, (0, None))(x[:, None], weight)[:, 0], expected)
    tangent = torch.func.jvp(lambda x: linear(x, weight), (x,), (x,))[1]
    torch.testing.assert_close(tangent, expected)
    assert torch.equal(linear(x.double(), weight.double()), functional.linear(x.double(), weight.double()))


def test_a_layer_is_that_of_torch(seeded):
    with seeded(0):
        layer = Linear(5, 4)
    x = draw(7, 5).detach()
    torch.testing.assert_close(layer(x), functional.linear(x, layer.weight, layer.bias))
    assert layer(x[:0]).shape == (0, 4)
