"""`ImplicitMeanField` against enumeration, long unrolling and finite differences, and its edge cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from setgrad.errors import DerivativeError, OptionError
from setgrad.functions import (
    Bernoulli,
    Exact,
    FacilityLocation,
    FreshNoise,
    FromCallable,
    Gaussian,
    GraphCut,
    ItemNoise,
    Modular,
    Pathwise,
    SecondDifference,
    rbf,
)
from setgrad.implicit import CG, GMRES, Newton, Status
from setgrad.inference import ImplicitMeanField, OneStepMeanField, UnrolledMeanField, mean_field
from setgrad.sets import Sets
from tests.inference.oracle import (
    SCALES,
    TIGHT,
    Solve,
    draw,
    exact_gradient,
    gradient,
    relative_error,
    spectral_radius,
    weights,
)


# The spectral radii of the map are 0.30, 0.48, and 1.08, with which plain iteration leaves the solution.
@pytest.mark.parametrize("factor", [5.0, 6.0, 8.0])
def test_the_gradient_of_all_parameters_is_exact(make, factor):
    function, sets = make(factor), draw()
    result = mean_field(function, sets, estimator=Exact(), solver=TIGHT)
    psi = result.value.detach()
    step = torch.sigmoid(Exact().gradient(function.bind(sets), psi))
    torch.testing.assert_close(step, psi, rtol=0, atol=1e-11)
    exact = exact_gradient(function, sets, psi)
    adjoints = (None, CG(), GMRES())
    found = [gradient(function, sets, ImplicitMeanField(tol=1e-12, adjoint=adjoint)) for adjoint in adjoints]
    assert all(relative_error(implicit, exact) < 1e-8 for implicit in found)
    strength = spectral_radius(function, sets, psi)
    assert {5.0: 0.25, 6.0: 0.45, 8.0: 1.05}[factor] < strength < {5.0: 0.35, 6.0: 0.55, 8.0: 1.15}[factor]
    if strength < 1:
        unrolled = gradient(function, sets, UnrolledMeanField(200))
        assert all(relative_error(implicit, unrolled) < 1e-8 for implicit in found)
    one_step = gradient(function, sets, OneStepMeanField(), start=psi)
    assert all(relative_error(one_step, implicit) > 0.1 for implicit in found)


def test_the_gradient_equals_finite_differences_if_plain_iteration_diverges(make):
    function, sets = make(8.0), draw()
    names, start = zip(*function.named_parameters(), strict=True)
    implicit, generator = gradient(function, sets, TIGHT), torch.Generator().manual_seed(1)
    solve = Solve(function, sets, Exact(), TIGHT)
    for _ in range(3):
        moves = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.detach().abs() for p in start]
        with torch.no_grad():
            ahead, behind = (
                solve.at(names, [p + step * move for p, move in zip(start, moves, strict=True)]) @ weights(sets)
                for step in (1e-6, -1e-6)
            )
        along = implicit @ torch.cat([move.flatten() for move in moves])
        assert float(along) == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("sampled", [False, True], ids=["exact", "gaussian"])
def test_gradients_with_all_scales_equal_those_of_many_unrolled_steps(make, scale, sampled):
    function, sets = make(5.0), draw()
    estimator = Gaussian(16, FreshNoise(3)).frozen() if sampled else Exact()
    result = mean_field(function, sets, estimator=estimator, solver=TIGHT, scale=scale)
    unrolled = mean_field(function, sets, estimator=estimator, solver=UnrolledMeanField(100), scale=scale)
    torch.testing.assert_close(result.logits, unrolled.logits, rtol=1e-9, atol=1e-10)
    expected = gradient(function, sets, UnrolledMeanField(100), estimator, scale=scale)
    for adjoint in (None, GMRES()):
        implicit = gradient(function, sets, ImplicitMeanField(tol=1e-12, adjoint=adjoint), estimator, scale=scale)
        assert relative_error(implicit, expected) < 1e-6


@pytest.mark.parametrize("sampled", [False, True], ids=["exact", "gaussian"])
def test_second_derivatives_equal_finite_differences(make, sampled, seeded):
    function, sets = make(4.0), draw([3, 0, 1])
    solve = Solve(function, sets, Gaussian(4, ItemNoise(sets)) if sampled else Exact(), TIGHT)
    names = ("rho.2.weight", "rho.0.bias")
    start = [function.get_parameter(name).detach().clone().requires_grad_() for name in names]

    def value(*parameters: Tensor) -> Tensor:
        return solve.at(names, parameters)

    with seeded(0):
        assert torch.autograd.gradcheck(value, start, fast_mode=True)
        assert torch.autograd.gradgradcheck(value, start, fast_mode=True)


def test_second_derivatives_of_a_module_of_items(seeded):
    with seeded(0):
        inner = nn.Linear(2, 3).double()

    class Curved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, items: Tensor, masks: Tensor) -> Tensor:
            return torch.tanh(self.inner(masks.to(items.dtype) @ items)).sum(1)

    sets = draw([3, 1])
    values = sets.values.clone().requires_grad_()
    curved = FromCallable(Curved())

    def value(items: Tensor) -> Tensor:
        return mean_field(curved, sets.with_values(items), estimator=Exact(), solver=TIGHT).value

    assert torch.autograd.gradcheck(value, values)
    assert torch.autograd.gradgradcheck(value, values, torch.ones(4, dtype=torch.float64, requires_grad=True))


def test_a_second_derivative_of_second_differences_raises(make):
    function, sets = make(3.0), draw([3, 2])
    result = mean_field(function, sets, estimator=SecondDifference(8), solver=ImplicitMeanField())
    weight = function.rho[0].weight
    (slope,) = torch.autograd.grad((result.value * weights(sets)).sum(), weight, create_graph=True)
    with pytest.raises(DerivativeError, match="first derivatives"):
        torch.autograd.grad(slope.square().sum(), weight)


def test_an_implicit_gradient_of_bernoulli_samples_raises(make):
    function, sets = make(2.0), draw()
    with pytest.raises(OptionError, match="Bernoulli"):
        mean_field(function, sets, estimator=Bernoulli(4), solver=ImplicitMeanField())
    estimator = Bernoulli(64, FreshNoise(0)).frozen()
    with torch.no_grad():
        result = mean_field(function, sets, estimator=estimator, solver=ImplicitMeanField(max_steps=300))
        step = torch.sigmoid(estimator.gradient(function.bind(sets), result.value))
    assert (result.status == Status.CONVERGED).all()
    torch.testing.assert_close(step, result.value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scale", SCALES[:3], ids=str)
@pytest.mark.parametrize("sampled", [False, True], ids=["exact", "gaussian"])
def test_results_do_not_depend_on_the_other_sets_of_the_batch(make, scale, sampled):
    function, sets = make(6.0), draw()

    def run(sets: Sets, weights: Tensor) -> tuple[Tensor, Tensor]:
        values = sets.values.clone().requires_grad_()
        batch = sets.with_values(values)
        estimator = Gaussian(16, ItemNoise(sets)) if sampled else Exact()
        result = mean_field(function, batch, estimator=estimator, solver=ImplicitMeanField(), scale=scale)
        return result.value, torch.autograd.grad((result.value * weights).sum(), values)[0]

    value, slope = run(sets, weights(sets))
    for number in range(len(sets)):
        in_set = sets.layout.ids == number
        alone = run(sets[number : number + 1], weights(sets)[in_set])
        torch.testing.assert_close(alone[0], value[in_set], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone[1], slope[in_set], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("start", [0.0, 1.0, 0.9, "tensor", "corners"])
def test_the_solution_does_not_depend_on_the_start(make, start):
    function, sets = make(5.0), draw()
    total = sets.layout.total
    if start == "tensor":
        start = torch.linspace(0.1, 0.9, total, dtype=torch.float64, requires_grad=True)
    elif start == "corners":
        start = (torch.arange(total) % 2).double()
    usual = mean_field(function, sets, estimator=Exact(), solver=TIGHT)
    result = mean_field(function, sets, estimator=Exact(), solver=TIGHT, start=start)
    torch.testing.assert_close(result.logits, usual.logits, rtol=1e-9, atol=1e-9)
    if isinstance(start, Tensor) and start.requires_grad:
        loss = result.value.sum()
        assert torch.autograd.grad(loss, start, allow_unused=True) == (None,)
    solved = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField(), start=usual.value.detach())
    assert not torch.as_tensor(solved.steps).any()


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_coordinates_select_entries_of_the_solution(make, scale):
    function, sets, selected = make(5.0), draw(), torch.tensor([16, 0, 8, 0])
    everything = mean_field(function, sets, estimator=Exact(), solver=TIGHT, scale=scale)
    entries = mean_field(function, sets, estimator=Exact(), solver=TIGHT, scale=scale, coordinates=selected)
    assert torch.equal(entries.logits, everything.logits[selected])
    assert torch.equal(entries.coordinates, selected)
    assert entries.residual.shape == entries.status.shape == torch.as_tensor(entries.steps).shape == (len(sets),)
    slopes = [
        torch.autograd.grad(x.sum(), function.rho[2].weight)[0] for x in (entries.logits, everything.logits[selected])
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("sizes", [[0], [0, 0], [], [1], [1, 0]], ids=str)
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_empty_and_tiny_batches(make, sizes, scale):
    function, sets = make(5.0), draw(sizes)
    result = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField(), scale=scale)
    assert result.value.shape == (sum(sizes),)
    assert result.status.tolist() == [Status.CONVERGED] * len(sizes)
    slopes = torch.autograd.grad(result.logits.sum(), list(function.parameters()), allow_unused=True)
    assert all(slope is None or slope.isfinite().all() for slope in slopes)


def test_a_function_without_parameters():
    sets = draw()
    result = mean_field(Modular(), sets, estimator=Exact(), solver=ImplicitMeanField())
    torch.testing.assert_close(result.logits, sets.values.sum(1), rtol=1e-4, atol=1e-4)
    assert not result.logits.requires_grad
    bernoulli = mean_field(Modular(), sets, estimator=Bernoulli(3), solver=ImplicitMeanField())
    torch.testing.assert_close(bernoulli.logits, result.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [None, Gaussian, Pathwise, SecondDifference])
@pytest.mark.parametrize("name", ["facility", "cut"])
def test_classical_functions_pass_gradients_to_items_and_weights(name, kind):
    sets = draw([5, 0, 1, 3])
    values, gamma = sets.values.clone().requires_grad_(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    estimator = kind(16, ItemNoise(sets)) if kind else Exact()

    def solve(solver) -> tuple[Tensor, ...]:
        function = FacilityLocation(rbf(gamma)) if name == "facility" else GraphCut(rbf(gamma), penalty=gamma)
        result = mean_field(function, sets.with_values(values), estimator=estimator, solver=solver)
        return torch.autograd.grad((result.value * weights(sets)).sum(), [values, gamma])

    implicit, unrolled = solve(ImplicitMeanField(tol=1e-8)), solve(UnrolledMeanField(60))
    for one, other in zip(implicit, unrolled, strict=True):
        assert other.abs().max() > 1e-4
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_tensor_hidden_in_a_callable_raises():
    hidden = torch.ones(2, dtype=torch.float64, requires_grad=True)
    function = FromCallable(lambda items, masks: (masks.double() @ (items * hidden)).square().sum(1))
    with pytest.raises(OptionError, match="captures a tensor"):
        mean_field(function, draw([3]), estimator=SecondDifference(8), solver=ImplicitMeanField())
    # The table of all values has a graph to the hidden tensor.
    gradients = [
        torch.autograd.grad(mean_field(function, draw([3]), estimator=Exact(), solver=solver).value.sum(), hidden)[0]
        for solver in (ImplicitMeanField(tol=1e-12, max_steps=1000), UnrolledMeanField(200))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


def test_noise_is_drawn_once_for_each_solution(make):
    function, sets = make(4.0), draw()
    noise = FreshNoise(0)
    first = mean_field(function, sets, estimator=Gaussian(4, noise), solver=TIGHT).logits
    second = mean_field(function, sets, estimator=Gaussian(4, noise), solver=TIGHT).logits
    same_seed = mean_field(function, sets, estimator=Gaussian(4, FreshNoise(0)), solver=TIGHT).logits
    assert (first - second).abs().max() > 1e-6
    assert torch.equal(first, same_seed)


# Dynamo uses deprecated parts of torch.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_compiled_inference_gives_the_same_results(make):
    function, sets = make(3.0), draw()

    def value(items: Tensor) -> Tensor:
        return mean_field(function, sets.with_values(items), estimator=Exact(), solver=ImplicitMeanField()).value

    result = torch.compile(value, backend="eager")(sets.values)
    torch.testing.assert_close(result, value(sets.values))
    slopes = [torch.autograd.grad(p.sum(), list(function.parameters())) for p in (result, value(sets.values))]
    torch.testing.assert_close(*slopes)


def test_newton_finds_the_same_solution(make):
    solvers = (TIGHT, ImplicitMeanField(solver=Newton(), tol=1e-12))
    usual, newton = (mean_field(make(6.0), draw(), estimator=Exact(), solver=solver).logits for solver in solvers)
    torch.testing.assert_close(newton, usual, rtol=1e-9, atol=1e-9)
