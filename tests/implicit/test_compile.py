"""`torch.compile` changes no result."""

import pytest
import torch

from setgrad.errors import ConvergenceError
from setgrad.implicit import quadratic, root

C = torch.tensor([[4.0], [9.0]], dtype=torch.float64)
pytestmark = pytest.mark.usefixtures("compiler")


def compiled(function):
    return torch.compile(function, backend="eager")


def value(c):
    return root(lambda y, c: y * y - c, torch.ones_like(C), c).value


# Dynamo uses deprecated parts of torch.
@pytest.mark.filterwarnings("ignore")
def test_compiled_root_has_the_same_value_gradient_and_error():
    c = C.clone().requires_grad_()
    result = compiled(value)(c)
    torch.testing.assert_close(result, value(c))
    torch.testing.assert_close(torch.autograd.grad(result.sum(), c)[0], 0.5 / C.sqrt(), rtol=1e-6, atol=0)
    with pytest.raises(ConvergenceError, match="2 of 2 samples failed"):
        compiled(value)(-C)


@pytest.mark.filterwarnings("ignore")
def test_compiled_quadratic_program_has_the_same_value_and_gradient():
    eye, ones = torch.eye(2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    q = torch.tensor([[-1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    result = compiled(lambda q: quadratic(eye, q, A=ones, b=torch.ones(1, dtype=torch.float64)).value)(q)
    assert result.tolist() == [[2.0, -1.0]]
    assert torch.autograd.grad(result[0, 0], q)[0].tolist() == [[-0.5, 0.5]]
