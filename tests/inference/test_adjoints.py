"""Derivatives of converged mean field in all modes, and by approximate adjoints."""

import pytest
import torch
from torch.autograd import forward_ad

from setgrad.functions import Exact, GraphCut
from setgrad.implicit import Direct, Neumann, OneStepAdjoint
from setgrad.inference import ImplicitMeanField, OneStepMeanField, mean_field
from setgrad.sets import Sets
from tests.inference.oracle import TIGHT, draw, gradient


def test_one_step_adjoint_is_the_gradient_of_the_last_step(make):
    function, sets = make(3.0), draw([4, 0, 3])
    psi = mean_field(function, sets, estimator=Exact(), solver=TIGHT).value.detach()
    result = gradient(function, sets, ImplicitMeanField(tol=1e-12, adjoint=OneStepAdjoint()))
    torch.testing.assert_close(result, gradient(function, sets, OneStepMeanField(), start=psi))


def test_many_neumann_terms_give_the_implicit_gradient(make):
    function, sets = make(3.0), draw([4, 0, 3])
    exact = gradient(function, sets, ImplicitMeanField(tol=1e-12, adjoint=Direct()))
    few, many = (gradient(function, sets, ImplicitMeanField(tol=1e-12, adjoint=Neumann(terms))) for terms in (1, 40))
    torch.testing.assert_close(many, exact)
    assert not torch.allclose(few, exact, rtol=1e-4)


def items_and_probabilities():
    """Return items, which require no gradient, and the map from items to probabilities."""
    sets = Sets.from_lengths(torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2), [3, 0, 2])

    def probabilities(items):
        return mean_field(GraphCut(), sets.with_values(items), estimator=Exact(), solver=TIGHT).value

    return sets.values, probabilities


# A warning of torch's forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_mode_and_transforms_agree_with_reverse_mode():
    items, probabilities = items_and_probabilities()
    jacobian = torch.autograd.functional.jacobian(probabilities, items)
    assert jacobian.abs().max() > 0.01
    torch.testing.assert_close(torch.func.jacrev(probabilities)(items), jacobian)
    tangent = torch.cos(torch.arange(10.0, dtype=torch.float64)).reshape(5, 2)
    expected = torch.einsum("itd,td->i", jacobian, tangent)
    torch.testing.assert_close(torch.func.jvp(probabilities, (items,), (tangent,))[1], expected)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(probabilities(forward_ad.make_dual(items, tangent))).tangent
    torch.testing.assert_close(moved, expected)


def test_inference_can_be_mapped_over_batches():
    items, probabilities = items_and_probabilities()
    many = torch.stack([items, 2 * items, items.flip(0)])
    result = torch.func.vmap(probabilities)(many)
    torch.testing.assert_close(result, torch.stack([probabilities(one) for one in many]))
