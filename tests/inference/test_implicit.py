"""`ImplicitMeanField` against enumeration, long unrolling and finite differences, and how it behaves at the edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from setgrad.errors import ConvergenceError, DerivativeError, OptionError
from setgrad.functions import (
    Bernoulli,
    DeepSetFunction,
    Exact,
    ExtensionEstimator,
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
from setgrad.implicit import CG, GMRES, Newton, Picard, Status
from setgrad.inference import (
    BatchFrobeniusScale,
    BatchNuclearScale,
    ConstantScale,
    ImplicitMeanField,
    L2Scale,
    OneStepMeanField,
    UnrolledMeanField,
    mean_field,
)
from setgrad.sets import Sets
from tests.inference.oracle import amplify, by_the_theorem, cosine, draw, gradient, radius, relative, weights

TIGHT = ImplicitMeanField(tol=1e-12)
SCALES = [None, ConstantScale(0.3), L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()]


@pytest.fixture
def make(seeded):
    """A model whose items interact the more, the larger `factor`."""

    def build(factor: float) -> DeepSetFunction:
        with seeded(0):
            function = DeepSetFunction(2, "mlp", dim=6, hidden=(16, 16)).double()
        amplify(function.rho, factor)
        return function

    return build


# Spectral radii of the map: 0.30 and 0.48, and 1.08, where plain iteration runs away from the solution.
@pytest.mark.parametrize("adjoint", [None, CG(), GMRES()], ids=["default", "CG", "GMRES"])
@pytest.mark.parametrize("factor", [5.0, 6.0, 8.0])
def test_the_gradient_of_a_whole_model_is_the_exact_one(make, factor, adjoint):
    function, sets = make(factor), draw()
    found = mean_field(function, sets, estimator=Exact(), solver=TIGHT)
    psi = found.value.detach()
    again = torch.sigmoid(Exact().gradient(function.bind(sets), psi))
    torch.testing.assert_close(again, psi, rtol=0, atol=1e-11)
    implicit = gradient(function, sets, ImplicitMeanField(tol=1e-12, adjoint=adjoint))
    assert relative(implicit, by_the_theorem(function, sets, psi)) < 1e-8
    strength = radius(function, sets, psi)
    assert {5.0: 0.25, 6.0: 0.45, 8.0: 1.05}[factor] < strength < {5.0: 0.35, 6.0: 0.55, 8.0: 1.15}[factor]
    if strength < 1:
        assert relative(implicit, gradient(function, sets, UnrolledMeanField(200))) < 1e-8
    one_step = gradient(function, sets, OneStepMeanField(), start=psi)
    assert relative(one_step, implicit) > 0.1


def test_finite_differences_agree_where_plain_iteration_diverges(make):
    function, sets = make(8.0), draw()
    implicit = gradient(function, sets, TIGHT)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        moves = [
            torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.detach().abs() for p in function.parameters()
        ]
        ends = []
        for sign in (1e-6, -1e-6):
            with torch.no_grad():
                for p, move in zip(function.parameters(), moves, strict=True):
                    p.add_(sign * move)
                found = mean_field(function, sets, estimator=Exact(), solver=TIGHT)
                ends.append((found.value * weights(sets)).sum())
                for p, move in zip(function.parameters(), moves, strict=True):
                    p.sub_(sign * move)
        along = implicit @ torch.cat([move.flatten() for move in moves])
        assert float(along) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("sampled", [False, True], ids=["exact", "gaussian"])
def test_all_scales_against_many_unrolled_steps(make, scale, sampled):
    function, sets = make(5.0), draw()
    estimator = Gaussian(16, FreshNoise(3)).frozen() if sampled else Exact()
    found = mean_field(function, sets, estimator=estimator, solver=TIGHT, scale=scale)
    unrolled = mean_field(function, sets, estimator=estimator, solver=UnrolledMeanField(100), scale=scale)
    torch.testing.assert_close(found.logits, unrolled.logits, rtol=1e-9, atol=1e-10)
    for adjoint in (None, GMRES()):
        implicit = gradient(function, sets, ImplicitMeanField(tol=1e-12, adjoint=adjoint), estimator, scale=scale)
        assert relative(implicit, gradient(function, sets, UnrolledMeanField(100), estimator, scale=scale)) < 1e-6


class Solve(nn.Module):
    """Mean field as a module, so that its parameters can be replaced by those of a gradient check."""

    def __init__(self, function: DeepSetFunction, sets: Sets, estimator: ExtensionEstimator) -> None:
        super().__init__()
        self.function, self.sets, self.estimator = function, sets, estimator

    def forward(self) -> Tensor:
        return mean_field(self.function, self.sets, estimator=self.estimator, solver=TIGHT).value


@pytest.mark.parametrize("sampled", [False, True], ids=["exact", "gaussian"])
def test_second_derivatives(make, sampled, seeded):
    function, sets = make(4.0), draw([3, 0, 1])
    solve = Solve(function, sets, Gaussian(4, ItemNoise(sets)) if sampled else Exact())
    names = ("function.rho.2.weight", "function.rho.0.bias")
    start = [dict(solve.named_parameters())[name].detach().clone().requires_grad_() for name in names]

    def value(*given: Tensor) -> Tensor:
        return torch.func.functional_call(solve, dict(zip(names, given, strict=True)), ())

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

    def value(given: Tensor) -> Tensor:
        return mean_field(curved, sets.with_values(given), estimator=Exact(), solver=TIGHT).value

    assert torch.autograd.gradcheck(value, values)
    assert torch.autograd.gradgradcheck(value, values, torch.ones(4, dtype=torch.float64, requires_grad=True))


def test_second_differences_stop_at_the_first_derivative(make):
    function, sets = make(3.0), draw([3, 2])
    found = mean_field(function, sets, estimator=SecondDifference(8), solver=ImplicitMeanField())
    weight = function.rho[0].weight
    (slope,) = torch.autograd.grad((found.value * weights(sets)).sum(), weight, create_graph=True)
    with pytest.raises(DerivativeError, match="first derivatives"):
        torch.autograd.grad(slope.square().sum(), weight)


def test_bernoulli_samples_have_no_implicit_gradient(make):
    function, sets = make(2.0), draw()
    with pytest.raises(OptionError, match="Bernoulli"):
        mean_field(function, sets, estimator=Bernoulli(4), solver=ImplicitMeanField())
    estimator = Bernoulli(64, FreshNoise(0)).frozen()
    with torch.no_grad():
        found = mean_field(function, sets, estimator=estimator, solver=ImplicitMeanField(max_steps=300))
        again = torch.sigmoid(estimator.gradient(function.bind(sets), found.value))
    assert (found.status == Status.CONVERGED).all()
    torch.testing.assert_close(again, found.value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scale", [None, ConstantScale(0.3), L2Scale()], ids=str)
@pytest.mark.parametrize("sampled", [False, True], ids=["exact", "gaussian"])
def test_a_set_does_not_see_its_batch_mates(make, scale, sampled):
    function, sets = make(6.0), draw()

    def run(sets: Sets, rest: Tensor) -> tuple[Tensor, Tensor]:
        values = sets.values.clone().requires_grad_()
        batch = sets.with_values(values)
        estimator = Gaussian(16, ItemNoise(sets)) if sampled else Exact()
        found = mean_field(function, batch, estimator=estimator, solver=ImplicitMeanField(), scale=scale)
        return found.value, torch.autograd.grad((found.value * rest).sum(), values)[0]

    value, slope = run(sets, weights(sets))
    for number in range(len(sets)):
        mine = sets.layout.ids == number
        alone = run(sets[number : number + 1], weights(sets)[mine])
        torch.testing.assert_close(alone[0], value[mine], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone[1], slope[mine], rtol=1e-9, atol=1e-11)


def test_joint_scales_do_see_batch_mates(make):
    function, sets = make(3.0), draw([4, 3])
    for scale in (BatchFrobeniusScale(), BatchNuclearScale()):
        both = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField(), scale=scale).logits[:4]
        alone = mean_field(function, sets[:1], estimator=Exact(), solver=ImplicitMeanField(), scale=scale).logits
        assert (both - alone).abs().max() > 1e-3


def crowded(strength: float = 8.0) -> FromCallable:
    """Every item has a worth and all get in each other's way: plain iteration jumps between all and nothing."""

    def value(items: Tensor, masks: Tensor) -> Tensor:
        x = masks.to(items.dtype)
        size = x.sum(1)
        return x @ (items[:, 0] + 0.5 * strength) - strength / 2 * size * (size - 1) * items[:, 1].mean()

    return FromCallable(value)


def crowds(*strengths: float, n: int = 6, dtype=torch.float64) -> Sets:
    worth = torch.linspace(-1, 1, n, dtype=dtype)
    return Sets.from_list([torch.stack([worth, torch.full_like(worth, s)], 1) for s in strengths])


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0, 4.0])
def test_a_map_that_jumps_to_and_fro_is_solved(strength):
    sets = crowds(strength)
    with pytest.raises(ConvergenceError, match=r"MAX_STEPS|DIVERGED|STALLED"):
        mean_field(crowded(), sets, estimator=Exact(), solver=ImplicitMeanField(solver=Picard()))
    plain = mean_field(crowded(), sets, estimator=Exact(), solver=OneStepMeanField(50))
    assert plain.residual > 0.5
    found = mean_field(crowded(), sets, estimator=Exact(), solver=ImplicitMeanField(tol=1e-6))
    assert found.status.tolist() == [Status.CONVERGED]
    bound = crowded().bind(sets)
    torch.testing.assert_close(torch.sigmoid(Exact().gradient(bound, found.value)), found.value, rtol=0, atol=1e-4)
    if strength < 1:
        # Here no single winner emerges, and the solution repels the plain iteration; elsewhere its start does.
        assert radius(crowded(), sets, found.value) > 1
    with pytest.raises(ConvergenceError, match=r"1 of 1 samples failed \(1 MAX_STEPS"):
        mean_field(crowded(), sets, estimator=Exact(), solver=ImplicitMeanField(tol=1e-10, max_steps=3))
    with pytest.warns(RuntimeWarning, match="max_steps"):
        short = mean_field(
            crowded(), sets, estimator=Exact(), solver=ImplicitMeanField(tol=1e-10, max_steps=3, on_failure="warn")
        )
    assert short.status.tolist() == [Status.MAX_STEPS] and short.steps.tolist() == [3]
    assert float(short.residual) > 1e-3


def test_a_batch_mate_that_fails_changes_nothing():
    solver = ImplicitMeanField(solver=Picard(), tol=1e-10, on_failure="mask")

    def run(sets: Sets) -> tuple[list[int], Tensor, Tensor]:
        values = sets.values.clone().requires_grad_()
        found = mean_field(crowded(), sets.with_values(values), estimator=Exact(), solver=solver)
        (slope,) = torch.autograd.grad(found.value.square().sum(), values)
        return found.status.tolist(), found.value, slope

    status, value, slope = run(crowds(0.05, 1.0, 0.03))
    assert status[0] == status[2] == Status.CONVERGED and status[1] != Status.CONVERGED
    assert slope[6:12].abs().max() == 0 and slope[:6].abs().min() > 0
    for number, strength in ((0, 0.05), (2, 0.03)):
        mine = slice(6 * number, 6 * number + 6)
        _, alone, own = run(crowds(strength))
        torch.testing.assert_close(value[mine], alone, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(slope[mine], own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make_estimator", [Exact, lambda: Gaussian(8), lambda: Pathwise(8)], ids=["E", "G", "P"])
def test_sure_items_have_finite_gradients(make_estimator, dtype, seeded):
    with seeded(0):
        function = DeepSetFunction(2, "mlp", dim=6, hidden=(16,), skip=True).to(dtype)
    with torch.no_grad():
        function.skip.weight.mul_(1000.0)
    sets = draw([6, 0, 1, 4]).to(dtype)
    found = mean_field(function, sets, estimator=make_estimator(), solver=ImplicitMeanField())
    assert found.logits.abs().max() > 80
    assert (found.status == Status.CONVERGED).all()
    target = (torch.arange(sets.layout.total) % 2).to(dtype)
    loss = nn.functional.binary_cross_entropy_with_logits(found.logits, target, reduction="sum")
    slopes = torch.autograd.grad(loss, list(function.parameters()), retain_graph=True)
    assert all(slope.isfinite().all() for slope in slopes)
    assert sum(float(slope.abs().sum()) for slope in slopes) > 1
    through = torch.autograd.grad(found.value.sum(), list(function.parameters()))
    assert all(slope.isfinite().all() for slope in through)
    # Sure items do not move each other: the gradient is that of one step.
    start = found.value.detach()
    if isinstance(make_estimator(), Exact):
        logits = mean_field(function, sets, estimator=Exact(), start=start).logits
        again = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        one = torch.autograd.grad(again, list(function.parameters()))
        assert cosine(*(torch.cat([s.flatten() for s in x]) for x in (slopes, one))) > 0.99


@pytest.mark.parametrize("start", [0.0, 1.0, 0.9, "tensor", "corners"])
def test_start(make, start):
    function, sets = make(5.0), draw()
    total = sets.layout.total
    if start == "tensor":
        start = torch.linspace(0.1, 0.9, total, dtype=torch.float64, requires_grad=True)
    elif start == "corners":
        start = (torch.arange(total) % 2).double()
    usual = mean_field(function, sets, estimator=Exact(), solver=TIGHT)
    found = mean_field(function, sets, estimator=Exact(), solver=TIGHT, start=start)
    torch.testing.assert_close(found.logits, usual.logits, rtol=1e-9, atol=1e-9)
    if isinstance(start, Tensor) and start.requires_grad:
        # The solution does not depend on where the search began.
        loss = found.value.sum()
        assert torch.autograd.grad(loss, start, allow_unused=True) == (None,)
    solved = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField(), start=usual.value.detach())
    assert (solved.steps == 0).all()


@pytest.mark.parametrize("scale", [None, L2Scale(), BatchNuclearScale()], ids=str)
def test_coordinates(make, scale):
    function, sets, wanted = make(5.0), draw(), torch.tensor([16, 0, 8, 0])
    everything = mean_field(function, sets, estimator=Exact(), solver=TIGHT, scale=scale)
    some = mean_field(function, sets, estimator=Exact(), solver=TIGHT, scale=scale, coordinates=wanted)
    assert torch.equal(some.logits, everything.logits[wanted])
    assert torch.equal(some.coordinates, wanted)
    assert some.residual.shape == some.status.shape == some.steps.shape == (len(sets),)
    slopes = [torch.autograd.grad(x.sum(), function.rho[2].weight)[0] for x in (some.logits, everything.logits[wanted])]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("sizes", [[0], [0, 0], [], [1], [1, 0]], ids=str)
@pytest.mark.parametrize("scale", [None, L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()], ids=str)
def test_batches_with_little_in_them(make, sizes, scale):
    function, sets = make(5.0), draw(sizes)
    found = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField(), scale=scale)
    assert found.value.shape == (sum(sizes),)
    assert found.status.tolist() == [Status.CONVERGED] * len(sizes)
    slopes = torch.autograd.grad(found.logits.sum(), list(function.parameters()), allow_unused=True)
    assert all(slope is None or slope.isfinite().all() for slope in slopes)


def test_a_function_without_tensors():
    sets = draw()
    found = mean_field(Modular(), sets, estimator=Exact(), solver=ImplicitMeanField())
    torch.testing.assert_close(found.logits, sets.values.sum(1), rtol=1e-4, atol=1e-4)
    assert not found.logits.requires_grad
    bernoulli = mean_field(Modular(), sets, estimator=Bernoulli(3), solver=ImplicitMeanField())
    torch.testing.assert_close(bernoulli.logits, found.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [None, Gaussian, Pathwise, SecondDifference])
@pytest.mark.parametrize("name", ["facility", "cut"])
def test_classical_functions_pass_gradients_to_items_and_weights(name, kind):
    sets = draw([5, 0, 1, 3])
    values, gamma = sets.values.clone().requires_grad_(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    estimator = kind(16, ItemNoise(sets)) if kind else Exact()

    def solve(solver) -> tuple[Tensor, Tensor]:
        function = FacilityLocation(rbf(gamma)) if name == "facility" else GraphCut(rbf(gamma), penalty=gamma)
        found = mean_field(function, sets.with_values(values), estimator=estimator, solver=solver)
        return torch.autograd.grad((found.value * weights(sets)).sum(), [values, gamma])

    implicit, unrolled = solve(ImplicitMeanField(tol=1e-8)), solve(UnrolledMeanField(60))
    for one, other in zip(implicit, unrolled, strict=True):
        assert other.abs().max() > 1e-4
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_what_a_callable_hides_is_refused():
    hidden = torch.ones(2, dtype=torch.float64, requires_grad=True)
    function = FromCallable(lambda items, masks: (masks.double() @ (items * hidden)).square().sum(1))
    with pytest.raises(OptionError, match="captures a tensor"):
        mean_field(function, draw([3]), estimator=SecondDifference(8), solver=ImplicitMeanField())
    # The table of all values knows what it was made of.
    gradients = [
        torch.autograd.grad(mean_field(function, draw([3]), estimator=Exact(), solver=solver).value.sum(), hidden)[0]
        for solver in (ImplicitMeanField(tol=1e-12, max_steps=1000), UnrolledMeanField(200))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


def test_noise_is_drawn_once(make):
    function, sets = make(4.0), draw()
    noise = FreshNoise(0)
    first = mean_field(function, sets, estimator=Gaussian(4, noise), solver=TIGHT).logits
    again = mean_field(function, sets, estimator=Gaussian(4, noise), solver=TIGHT).logits
    other = mean_field(function, sets, estimator=Gaussian(4, FreshNoise(0)), solver=TIGHT).logits
    assert (first - again).abs().max() > 1e-6
    assert torch.equal(first, other)


# Dynamo's own use of deprecated parts of torch.
@pytest.mark.filterwarnings("ignore")
def test_compiled_inference_gives_the_same(make):
    function, sets = make(3.0), draw()

    def value(items: Tensor) -> Tensor:
        return mean_field(function, sets.with_values(items), estimator=Exact(), solver=ImplicitMeanField()).value

    torch._dynamo.reset()
    found = torch.compile(value, backend="eager")(sets.values)
    torch.testing.assert_close(found, value(sets.values))
    slopes = [torch.autograd.grad(p.sum(), list(function.parameters())) for p in (found, value(sets.values))]
    torch.testing.assert_close(*slopes)
    torch._dynamo.reset()


def test_other_solvers(make):
    function, sets = make(6.0), draw()
    usual = mean_field(function, sets, estimator=Exact(), solver=TIGHT).logits
    newton = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField(solver=Newton(), tol=1e-12)).logits
    torch.testing.assert_close(newton, usual, rtol=1e-9, atol=1e-9)


def test_a_set_whose_adjoint_system_is_not_solved_does_not_count_as_settled(seeded):
    with seeded(0):
        sets = Sets.from_list([torch.randn(4, 2, dtype=torch.float64) for _ in range(3)])
        function = DeepSetFunction(2, phi="mlp", dim=8, hidden=(8,)).double()
    weak = ImplicitMeanField(tol=1e-8, adjoint=GMRES(tol=1e-12, restart=1, max_steps=1), on_failure="mask")
    found = mean_field(function, sets, estimator=Exact(), solver=weak)
    assert found.converged.all()
    found.value.sum().backward()
    assert not found.converged.any()
