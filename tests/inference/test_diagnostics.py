"""The diagnostics against enumeration, dense eigenvalues and the iteration itself."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from setgrad.errors import OptionError, ShapeError
from setgrad.functions import Bernoulli, DeepSetFunction, Exact, Gaussian, ItemNoise, Modular, Pathwise
from setgrad.inference import (
    BatchFrobeniusScale,
    BatchNuclearScale,
    ConstantScale,
    ImplicitMeanField,
    L2Scale,
    OneStepMeanField,
    contraction,
    iterations_needed,
    mean_field,
)
from setgrad.sets import Sets

SIZES = [6, 0, 1, 3]


def draw(sizes=SIZES, seed=0) -> Sets:
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64), sizes)


@pytest.fixture
def make(seeded):
    def build(amplify: float) -> DeepSetFunction:
        with seeded(0):
            function = DeepSetFunction(2, "mlp", dim=6, hidden=(16, 16)).double()
        with torch.no_grad():
            for layer in function.rho:
                if isinstance(layer, nn.Linear):
                    layer.weight.mul_(amplify)
        return function

    return build


def subsets_of(function, items: Tensor) -> Tensor:
    rows = list(itertools.product([False, True], repeat=len(items)))
    masks = torch.tensor(rows, dtype=torch.bool).reshape(len(rows), len(items))
    return function.value(Sets.from_lengths(items, [len(items)]), masks)[:, 0].detach()


def test_the_largest_value_is_that_of_all_subsets(make):
    function, sets = make(3.0), draw()
    found = contraction(function, sets, estimator=Exact())
    tables = [subsets_of(function, items) for items in sets.to_list()]
    assert found.exact.all()
    assert found.largest.tolist() == pytest.approx([float(t.abs().max()) for t in tables], rel=1e-12)
    proven = [math.sqrt(n * (n - 1)) * float(t.max() - t.min()) / 2 for n, t in zip(SIZES, tables, strict=True)]
    assert found.proven.tolist() == pytest.approx(proven, rel=1e-12)
    assert found.assumption.tolist() == [n * float(t.abs().max()) < 1 for n, t in zip(SIZES, tables, strict=True)]
    # No point inside does better than the corners.
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        psi = torch.rand(sum(SIZES), generator=generator, dtype=torch.float64)
        assert (Exact().value(function.bind(sets), psi).abs() <= found.largest + 1e-12).all()


@pytest.mark.parametrize("amplify", [1.0, 4.0, 8.0])
def test_the_factor_is_the_largest_eigenvalue(make, amplify):
    function, sets = make(amplify), draw([8, 0, 1, 3])
    found = contraction(function, sets, estimator=Exact())
    psi = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField()).value.detach()
    bound = function.bind(sets)
    rows = torch.autograd.functional.jacobian(lambda p: torch.sigmoid(Exact().gradient(bound, p)), psi)
    for number in range(len(sets)):
        mine = sets.layout.ids == number
        own = torch.linalg.eigvals(rows[mine][:, mine]).abs()
        assert float(found.factor[number]) == pytest.approx(float(own.max()) if len(own) else 0.0, rel=1e-6, abs=1e-9)
    assert found.converged.all()
    # What is proven for every point holds at this one.
    assert (found.factor <= found.proven + 1e-9).all()


def test_the_factor_tells_whether_plain_iteration_converges(make):
    sets = draw([8])
    for amplify, converges in ((6.0, True), (8.0, False)):
        function = make(amplify)
        factor = float(contraction(function, sets, estimator=Exact()).factor)
        plain = mean_field(function, sets, estimator=Exact(), solver=OneStepMeanField(300))
        assert (factor < 1) == converges == (float(plain.residual) < 1e-6)


def test_the_assumption_implies_a_contraction(make):
    # Scaled down until F is below 1/|V|, every step contracts, and the number of steps is enough.
    sets = draw([6])
    function = make(2.0)
    large = contraction(function, sets, estimator=Exact())
    assert not large.assumption.any()
    scale = ConstantScale(float(2 * large.largest) * 1.01)
    found = contraction(function, sets, estimator=Exact(), scale=scale)
    assert found.assumption.all() and (found.proven < 1).all()
    assert float(found.largest) == pytest.approx(1 / (6 * 1.01), rel=1e-9)
    exact = mean_field(function, sets, estimator=Exact(), scale=scale, solver=ImplicitMeanField(tol=1e-13)).value
    for tolerance in (1e-2, 1e-5, 1e-8):
        steps = iterations_needed(float(found.proven), tolerance, math.sqrt(6))
        for start in (0.0, 1.0):
            reached = mean_field(
                function, sets, estimator=Exact(), scale=scale, solver=OneStepMeanField(steps), start=start
            )
            assert float((reached.value - exact).detach().norm()) <= tolerance


def test_a_joint_or_bent_scale(make):
    function, sets = make(3.0), draw()
    for scale in (L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()):
        found = contraction(function, sets, estimator=Exact(), scale=scale)
        # Such a map is the gradient of no function, so the assumption says nothing about it.
        assert found.largest.isnan().all() and found.proven.isnan().all() and not found.assumption.any()
        assert found.factor.shape == (len(sets),) and found.factor.isfinite().all()
    joint = contraction(function, sets, estimator=Exact(), scale=BatchFrobeniusScale()).factor
    assert torch.equal(joint, joint[:1].expand(len(SIZES)))


def test_large_sets_are_sampled_and_say_so():
    sets = draw([30, 4, 25])
    found = contraction(Modular(lambda x: x[:, 0]), sets, estimator=Gaussian(4))
    assert found.exact.tolist() == [False, True, False]
    assert found.proven.isnan().tolist() == [True, False, True]
    score = sets.with_values(sets.values[:, 0])
    for number in range(3):
        own = score[number]
        truth = max(float(own.clamp(min=0).sum()), float(-own.clamp(max=0).sum()))
        largest = float(found.largest[number])
        assert largest == pytest.approx(truth) if number == 1 else 0 < largest <= truth
    # Modular: one step is the solution, and nothing depends on psi.
    assert found.factor.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    # A sampled bound never confirms the assumption, and does not depend on the batch.
    assert not found.assumption[[0, 2]].any()
    alone = contraction(Modular(lambda x: x[:, 0]), sets[2:], estimator=Gaussian(4))
    assert float(alone.largest) == pytest.approx(float(found.largest[2]), rel=1e-12)


def test_psi_is_taken_as_given(make):
    function, sets = make(8.0), draw([5])
    psi = torch.full((5,), 0.5, dtype=torch.float64)
    found = contraction(function, sets, estimator=Exact(), psi=psi)
    rows = torch.autograd.functional.jacobian(lambda p: torch.sigmoid(Exact().gradient(function.bind(sets), p)), psi)
    assert float(found.factor) == pytest.approx(float(torch.linalg.eigvals(rows).abs().max()), rel=1e-6)
    assert not found.converged.any()
    assert "psi is not a solution" in str(found)


def test_bound_functions_and_what_is_refused(make):
    function, sets = make(2.0), draw()
    one = contraction(function, sets, estimator=Exact())
    two = contraction(function.bind(sets), sets, estimator=Exact())
    assert torch.equal(one.factor, two.factor) and torch.equal(one.largest, two.largest)
    assert not one.largest.requires_grad and not one.factor.requires_grad
    with pytest.raises(ShapeError, match="other sizes"):
        contraction(function.bind(sets), draw([2]), estimator=Exact())
    with pytest.raises(OptionError, match="Bernoulli"):
        contraction(function, sets, estimator=Bernoulli(4))
    with pytest.raises(OptionError, match="unknown scale"):
        contraction(function, sets, estimator=Exact(), scale="l3")


def test_sampled_estimators_measure_nearly_the_same(make):
    function, sets = make(5.0), draw([8])
    exact = float(contraction(function, sets, estimator=Exact()).factor)
    for kind in (Gaussian, Pathwise):
        sampled = float(contraction(function, sets, estimator=kind(512, ItemNoise(sets))).factor)
        assert sampled == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1]], ids=str)
def test_batches_with_little_in_them(make, sizes):
    found = contraction(make(2.0), draw(sizes), estimator=Exact())
    assert found.factor.tolist() == pytest.approx([0.0] * len(sizes))
    assert found.steps(1e-3).shape == (len(sizes),)
    assert str(found).startswith("plain iteration converges near psi for")


def test_steps_and_words(make):
    function = make(8.0)
    found = contraction(function, draw([8, 0, 1, 5, 3]), estimator=Exact())
    steps = found.steps(1e-4).tolist()
    assert steps[0] == math.inf
    assert steps[4] == iterations_needed(float(found.factor[4]), 1e-4, math.sqrt(3))
    lines = str(found).splitlines()
    assert lines[0].startswith("plain iteration converges near psi for 4 of 5 sets")
    assert len(lines) == 7 and "inf" in lines[2]
    many = contraction(Modular(), draw([1] * 13), estimator=Exact())
    assert str(many).splitlines()[-1] == "... and 3 more"


@pytest.mark.parametrize("q", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("first", [0.0, 0.5, 3.0])
def test_iterations_needed_is_the_first_that_will_do(q, first):
    steps = iterations_needed(q, 1e-4, first)
    assert q**steps * first <= 1e-4 * (1 - q) * (1 + 1e-9)
    assert steps == 0 or q ** (steps - 1) * first > 1e-4 * (1 - q)


def test_iterations_needed_as_in_the_paper():
    n, q, eps = 100, 0.8, 1e-6
    assert iterations_needed(q, eps, math.sqrt(n)) == math.ceil(math.log(eps * (1 - q) / math.sqrt(n)) / math.log(q))
    for wrong in (1.0, 1.5, -0.1, math.nan):
        with pytest.raises(OptionError, match="no bound"):
            iterations_needed(wrong, 1e-3, 1.0)
    for tolerance, first in ((0.0, 1.0), (1e-3, -1.0), (math.nan, 1.0)):
        with pytest.raises(OptionError, match="tolerance"):
            iterations_needed(0.5, tolerance, first)
