"""Estimators and distributions reject invalid input with an error that names the cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from setgrad.discrete.distributions import KSubset, PlackettLuce
from setgrad.discrete.estimators import (
    IMLE,
    SFESS,
    SIMPLE,
    FenchelYoung,
    GumbelSoftmax,
    Identity,
    Perturbed,
    ReinMax,
    RelaxedTopK,
    ScoreFunction,
    SoftSub,
    StraightThrough,
)
from setgrad.discrete.noise import Gumbel
from setgrad.discrete.solvers import GraphMatching, IntegerProgram, PartitionMatroid, Threshold, TopK
from setgrad.errors import DataError, OptionError, ShapeError
from tests.discrete.estimators import CASES, MARGINALS, Case, N
from tests.discrete.oracles import draws

OUT = -torch.inf
# Estimators without a solver check theta themselves.
looking = pytest.mark.parametrize("case", [case for case in CASES if not case.solves], ids=str)


@looking
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_nan_and_plus_infinity_raise(case: Case, bad: float, dtype: torch.dtype) -> None:
    theta = draws(3, N, dtype=dtype)
    theta[1, 2] = bad
    with pytest.raises(DataError, match="NaN or plus infinity"):
        case.build()(theta)


@looking
@pytest.mark.parametrize("low", [OUT, -1e30, torch.finfo(torch.float32).min])
def test_too_few_allowed_items_raise(case: Case, low: float) -> None:
    """With exactly k allowed items all are chosen; with one fewer there is an error."""
    theta = draws(4, N, dtype=torch.float32)
    theta[1, case.k :] = low
    leaf = theta.clone().requires_grad_()
    z = case.build()(leaf)
    torch.testing.assert_close(z.sum(-1), torch.full_like(z[..., 0], case.k))
    assert not z.select(-2, 1)[..., case.k :].any()
    (grad,) = torch.autograd.grad((z * torch.arange(N)).sum(), leaf)
    assert grad.isfinite().all()
    theta[1, case.k - 1] = low
    words = f"cannot choose {case.k} .*an instance has {case.k - 1} "
    with pytest.raises(OptionError, match="do not connect" if "SpanningTree" in case.name else words):
        case.build()(theta)


@pytest.mark.usefixtures("compiler")
@looking
def test_errors_under_transforms(case: Case) -> None:
    def total(layer: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda theta: (layer(theta) * torch.arange(N)).sum()

    theta = draws(3, N)
    if case.name not in MARGINALS:
        leaf = theta.clone().requires_grad_()
        total(case.build())(leaf).backward()
        torch.testing.assert_close(torch.func.grad(total(case.build()))(theta), leaf.grad)
    theta[1, 2] = torch.nan
    with pytest.raises(DataError, match="NaN or plus infinity"):
        torch.func.grad(total(case.build()))(theta)
    with pytest.raises(DataError, match="NaN or plus infinity"):
        torch.compile(case.build(), backend="eager")(theta)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_theta_must_be_a_tensor_of_floats(case: Case) -> None:
    for dtype in (torch.long, torch.bool, torch.complex64):
        with pytest.raises(ShapeError, match=r"floats, not torch.*float\(\)"):
            case.build()(torch.ones(3, N, dtype=dtype))
    with pytest.raises(ShapeError, match="as a tensor of floats, not list"):
        case.build()([1.0] * N)


def test_parameters_of_one_entry_do_not_broadcast() -> None:
    with pytest.raises(ShapeError, match="does not broadcast"):
        PartitionMatroid([0], 1)(torch.ones(3))
    with pytest.raises(ShapeError, match="does not broadcast"):
        IntegerProgram([[1.0, 0.0], [0.0, 1.0]], upper=[2.0], max_value=3.0)(torch.ones(2))
    with pytest.raises(OptionError, match="edges_a must contain whole numbers"):
        GraphMatching(2, 2, edges_a=[(0.7, 1.2)], edges_b=[(0, 1)])


def test_integer_input_of_a_loss_raises() -> None:
    with pytest.raises(ShapeError, match="not list"):
        FenchelYoung(TopK(2), noise=None)([1.0, 2.0], torch.ones(2))
    theta = torch.ones(3, N, dtype=torch.long)
    for layer in (FenchelYoung(TopK(2), noise=None), FenchelYoung(TopK(2), noise=Gumbel())):
        with pytest.raises(ShapeError, match=r"floats, not torch.*float\(\)"):
            layer(theta, theta)


@pytest.mark.parametrize(
    "make",
    [
        Identity,
        StraightThrough,
        lambda s: Perturbed(s, noise=Gumbel(), samples=2),
        lambda s: FenchelYoung(s, noise=Gumbel()),
    ],
    ids=["Identity", "StraightThrough", "Perturbed", "FenchelYoung"],
)
def test_function_instead_of_a_solver_raises(make: Callable[[object], nn.Module]) -> None:
    with pytest.raises(OptionError, match=r"must be a CombinatorialSolver.*CallableSolver\(function\)"):
        make(torch.sign)


@pytest.mark.parametrize(
    "make",
    [
        lambda: KSubset(torch.zeros(4), 2.0),  # type: ignore[arg-type]
        lambda: PlackettLuce(torch.zeros(4), 2.0),  # type: ignore[arg-type]
        lambda: KSubset(torch.zeros(4), 2).sample(2.0),  # type: ignore[arg-type]
        lambda: SIMPLE(2.0),  # type: ignore[arg-type]
        lambda: SIMPLE(2, samples=2.0),  # type: ignore[arg-type]
        lambda: SFESS(2.0, samples=2),  # type: ignore[arg-type]
        lambda: SFESS(2, samples=2.0),  # type: ignore[arg-type]
        lambda: SoftSub(2.0),  # type: ignore[arg-type]
        lambda: RelaxedTopK(2.0),  # type: ignore[arg-type]
        lambda: GumbelSoftmax(samples=2.0),  # type: ignore[arg-type]
        lambda: ReinMax(samples=2.0),  # type: ignore[arg-type]
        lambda: IMLE(TopK(2), noise=Gumbel(), samples=2.0),  # type: ignore[arg-type]
        lambda: ScoreFunction(lambda theta: KSubset(theta, 2), samples=2.0),  # type: ignore[arg-type]
    ],
)
def test_counts_must_be_integers(make: Callable[[], object]) -> None:
    with pytest.raises(OptionError, match=r"(k|length|samples) must be a whole number, not 2.0"):
        make()


def test_nan_threshold_raises() -> None:
    for threshold in (float("nan"), torch.tensor([[0.0], [float("nan")]])):
        with pytest.raises(OptionError, match="threshold contains NaN"):
            Threshold(threshold)


def test_sfess_under_transforms_raises() -> None:
    theta = draws(5)
    draw = torch.Generator().manual_seed(0)
    plain = SFESS(2, samples=3, linear=False, generator=draw)
    slope = torch.func.grad(lambda x: plain(x, lambda z: z[..., 0]))(theta)
    assert slope.shape == theta.shape
    with pytest.raises(OptionError, match=r"torch.func cannot follow; .* or SFESS\(linear=False\)"):
        torch.func.grad(lambda x: SFESS(2, samples=3, generator=draw)(x, lambda z: z[..., 0]))(theta)
