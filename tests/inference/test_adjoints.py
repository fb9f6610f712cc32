"""Derivatives of settled mean field in all modes, and by the named approximations of the adjoint."""

import pytest
import torch
from torch.autograd import forward_ad

from setgrad.functions import DeepSetFunction, Exact, GraphCut
from setgrad.implicit import Direct, Neumann, OneStepAdjoint
from setgrad.inference import ImplicitMeanField, OneStepMeanField, mean_field
from setgrad.sets import Sets


@pytest.fixture
def model(seeded):
    with seeded(0):
        function = DeepSetFunction(2, "mlp", dim=6, hidden=(8,)).double()
        sets = Sets.from_lengths(torch.randn(7, 2, dtype=torch.float64), [4, 0, 3])
    return function, sets


def gradient(model, solver, start=0.5):
    function, sets = model
    found = mean_field(function, sets, estimator=Exact(), solver=solver, start=start)
    pieces = torch.autograd.grad(found.value.square().sum(), list(function.parameters()))
    return torch.cat([piece.flatten() for piece in pieces])


def solution(model):
    function, sets = model
    with torch.no_grad():
        return mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField(tol=1e-12)).value


def test_one_term_is_the_gradient_of_the_last_step(model):
    found = gradient(model, ImplicitMeanField(tol=1e-12, adjoint=OneStepAdjoint()))
    torch.testing.assert_close(found, gradient(model, OneStepMeanField(), start=solution(model)))


def test_many_terms_are_the_implicit_gradient(model):
    right = gradient(model, ImplicitMeanField(tol=1e-12, adjoint=Direct()))
    far, near = (gradient(model, ImplicitMeanField(tol=1e-12, adjoint=Neumann(terms))) for terms in (1, 40))
    torch.testing.assert_close(near, right)
    assert not torch.allclose(far, right, rtol=1e-4)


def modes():
    """Probabilities as a function of the items, of which none requires a gradient."""
    sets = Sets.from_lengths(torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2), [3, 0, 2])

    def probabilities(items):
        return mean_field(
            GraphCut(), sets.with_values(items), estimator=Exact(), solver=ImplicitMeanField(tol=1e-12)
        ).value

    return sets.values, probabilities


# Of torch's own forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_mode_and_transforms_agree_with_backward():
    items, probabilities = modes()
    right = torch.autograd.functional.jacobian(probabilities, items)
    assert right.abs().max() > 0.01
    torch.testing.assert_close(torch.func.jacrev(probabilities)(items), right)
    tangent = torch.cos(torch.arange(10.0, dtype=torch.float64)).reshape(5, 2)
    wanted = torch.einsum("itd,td->i", right, tangent)
    torch.testing.assert_close(torch.func.jvp(probabilities, (items,), (tangent,))[1], wanted)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(probabilities(forward_ad.make_dual(items, tangent))).tangent
    torch.testing.assert_close(moved, wanted)


def test_batches_of_items_may_be_mapped():
    items, probabilities = modes()
    many = torch.stack([items, 2 * items, items.flip(0)])
    found = torch.func.vmap(probabilities)(many)
    torch.testing.assert_close(found, torch.stack([probabilities(one) for one in many]))
