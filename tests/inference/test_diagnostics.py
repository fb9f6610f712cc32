"""Diagnostics against enumeration, dense eigenvalues and the iteration itself."""

from __future__ import annotations

import math

import pytest
import torch

from setgrad.errors import OptionError, ShapeError
from setgrad.functions import Bernoulli, Exact, Gaussian, ItemNoise, Modular, Pathwise
from setgrad.inference import (
    ConstantScale,
    ImplicitMeanField,
    OneStepMeanField,
    contraction,
    iterations_needed,
    mean_field,
)
from tests.inference.oracle import SCALES, draw, jacobian, spectral_radius
from tests.inference.recognition_oracle import tables

SIZES = [6, 0, 1, 3]


def test_the_largest_value_is_taken_over_all_subsets(make):
    function, sets = make(3.0), draw(SIZES)
    result = contraction(function, sets, estimator=Exact())
    values = [table for _, table in tables(function, sets)]
    assert result.exact.all()
    assert result.largest.tolist() == pytest.approx([float(t.abs().max()) for t in values], rel=1e-12)
    proven = [math.sqrt(n * (n - 1)) * float(t.max() - t.min()) / 2 for n, t in zip(SIZES, values, strict=True)]
    assert result.proven.tolist() == pytest.approx(proven, rel=1e-12)
    assert result.assumption.tolist() == [n * float(t.abs().max()) < 1 for n, t in zip(SIZES, values, strict=True)]
    # The extension is never larger than at the corners.
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        psi = torch.rand(sum(SIZES), generator=generator, dtype=torch.float64)
        assert (Exact().value(function.bind(sets), psi).abs() <= result.largest + 1e-12).all()


@pytest.mark.parametrize("amplify", [1.0, 4.0, 8.0])
def test_the_factor_equals_the_largest_eigenvalue(make, amplify):
    function, sets = make(amplify), draw([8, 0, 1, 3])
    result = contraction(function, sets, estimator=Exact())
    psi = mean_field(function, sets, estimator=Exact(), solver=ImplicitMeanField()).value.detach()
    rows = jacobian(function, sets, psi)
    for number in range(len(sets)):
        in_set = sets.layout.ids == number
        eigenvalues = torch.linalg.eigvals(rows[in_set][:, in_set]).abs()
        expected = float(eigenvalues.max()) if len(eigenvalues) else 0.0
        assert float(result.factor[number]) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert result.converged.all()
    # A factor that is proven for every point holds at this one.
    assert (result.factor <= result.proven + 1e-9).all()


def test_plain_iteration_converges_if_the_factor_is_below_one(make):
    sets = draw([8])
    for amplify, converges in ((6.0, True), (8.0, False)):
        function = make(amplify)
        factor = float(contraction(function, sets, estimator=Exact()).factor)
        plain = mean_field(function, sets, estimator=Exact(), solver=OneStepMeanField(300))
        assert (factor < 1) == converges == (float(plain.residual) < 1e-6)


def test_the_assumption_implies_a_contraction(make):
    # If F is scaled down below 1/|V|, every step contracts, and the computed number of steps is enough.
    sets = draw([6])
    function = make(2.0)
    large = contraction(function, sets, estimator=Exact())
    assert not large.assumption.any()
    scale = ConstantScale(float(2 * large.largest) * 1.01)
    result = contraction(function, sets, estimator=Exact(), scale=scale)
    assert result.assumption.all() and (result.proven < 1).all()
    assert float(result.largest) == pytest.approx(1 / (6 * 1.01), rel=1e-9)
    exact = mean_field(function, sets, estimator=Exact(), scale=scale, solver=ImplicitMeanField(tol=1e-13)).value
    for tolerance in (1e-2, 1e-5, 1e-8):
        steps = iterations_needed(float(result.proven), tolerance, math.sqrt(6))
        for start in (0.0, 1.0):
            reached = mean_field(
                function, sets, estimator=Exact(), scale=scale, solver=OneStepMeanField(steps), start=start
            )
            assert float((reached.value - exact).detach().norm()) <= tolerance


def test_scales_that_depend_on_the_gradient(make):
    function, sets = make(3.0), draw(SIZES)
    for scale in SCALES[2:]:
        result = contraction(function, sets, estimator=Exact(), scale=scale)
        # Such a map is not the gradient of a function, so the assumption does not apply.
        assert result.largest.isnan().all() and result.proven.isnan().all() and not result.assumption.any()
        assert result.factor.shape == (len(sets),) and result.factor.isfinite().all()
    joint = contraction(function, sets, estimator=Exact(), scale=SCALES[3]).factor
    assert torch.equal(joint, joint[:1].expand(len(SIZES)))


def test_large_sets_are_evaluated_at_random_subsets():
    sets = draw([30, 4, 25])
    result = contraction(Modular(lambda x: x[:, 0]), sets, estimator=Gaussian(4))
    assert result.exact.tolist() == [False, True, False]
    assert result.proven.isnan().tolist() == [True, False, True]
    score = sets.with_values(sets.values[:, 0])
    for number in range(3):
        scores = score[number]
        truth = max(float(scores.clamp(min=0).sum()), float(-scores.clamp(max=0).sum()))
        largest = float(result.largest[number])
        assert largest == pytest.approx(truth) if number == 1 else 0 < largest <= truth
    # For a modular function, one step gives the solution, and nothing depends on psi.
    assert result.factor.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    # A lower bound never confirms the assumption, and does not depend on the batch.
    assert not result.assumption[[0, 2]].any()
    alone = contraction(Modular(lambda x: x[:, 0]), sets[2:], estimator=Gaussian(4))
    assert float(alone.largest) == pytest.approx(float(result.largest[2]), rel=1e-12)


def test_the_factor_is_measured_at_psi(make):
    function, sets = make(8.0), draw([5])
    psi = torch.full((5,), 0.5, dtype=torch.float64)
    result = contraction(function, sets, estimator=Exact(), psi=psi)
    assert float(result.factor) == pytest.approx(spectral_radius(function, sets, psi), rel=1e-6)
    assert not result.converged.any()
    assert "psi is not a solution" in str(result)


def test_bound_functions_and_invalid_arguments(make):
    function, sets = make(2.0), draw(SIZES)
    unbound = contraction(function, sets, estimator=Exact())
    bound = contraction(function.bind(sets), sets, estimator=Exact())
    assert torch.equal(unbound.factor, bound.factor) and torch.equal(unbound.largest, bound.largest)
    assert not unbound.largest.requires_grad and not unbound.factor.requires_grad
    with pytest.raises(ShapeError, match="other sizes"):
        contraction(function.bind(sets), draw([2]), estimator=Exact())
    with pytest.raises(OptionError, match="Bernoulli"):
        contraction(function, sets, estimator=Bernoulli(4))
    with pytest.raises(OptionError, match="unknown scale"):
        contraction(function, sets, estimator=Exact(), scale="l3")


def test_sampled_estimators_measure_about_the_same_factor(make):
    function, sets = make(5.0), draw([8])
    exact = float(contraction(function, sets, estimator=Exact()).factor)
    for kind in (Gaussian, Pathwise):
        sampled = float(contraction(function, sets, estimator=kind(512, ItemNoise(sets))).factor)
        assert sampled == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1]], ids=str)
def test_empty_and_tiny_batches(make, sizes):
    result = contraction(make(2.0), draw(sizes), estimator=Exact())
    assert result.factor.tolist() == pytest.approx([0.0] * len(sizes))
    assert result.steps(1e-3).shape == (len(sizes),)
    assert str(result).startswith("plain iteration converges near psi for")


def test_steps_and_text(make):
    function = make(8.0)
    result = contraction(function, draw([8, 0, 1, 5, 3]), estimator=Exact())
    steps = result.steps(1e-4).tolist()
    assert steps[0] == math.inf
    assert steps[4] == iterations_needed(float(result.factor[4]), 1e-4, math.sqrt(3))
    lines = str(result).splitlines()
    assert lines[0].startswith("plain iteration converges near psi for 4 of 5 sets")
    assert len(lines) == 7 and "inf" in lines[2]
    many = contraction(Modular(), draw([1] * 13), estimator=Exact())
    assert str(many).splitlines()[-1] == "... and 3 more"


@pytest.mark.parametrize("q", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("first", [0.0, 0.5, 3.0])
def test_iterations_needed_is_the_smallest_sufficient_number(q, first):
    steps = iterations_needed(q, 1e-4, first)
    assert q**steps * first <= 1e-4 * (1 - q) * (1 + 1e-9)
    assert steps == 0 or q ** (steps - 1) * first > 1e-4 * (1 - q)


def test_iterations_needed_equals_the_published_formula():
    n, q, eps = 100, 0.8, 1e-6
    assert iterations_needed(q, eps, math.sqrt(n)) == math.ceil(math.log(eps * (1 - q) / math.sqrt(n)) / math.log(q))
    for wrong in (1.0, 1.5, -0.1, math.nan):
        with pytest.raises(OptionError, match="no bound"):
            iterations_needed(wrong, 1e-3, 1.0)
    for tolerance, first in ((0.0, 1.0), (1e-3, -1.0), (math.nan, 1.0)):
        with pytest.raises(OptionError, match="tolerance"):
            iterations_needed(0.5, tolerance, first)
