"""Theorem 1 of Sahoo et al., 2023, arXiv:2205.15213, on random polytopes and in exact arithmetic.

Small steps along the Identity update keep the solution until they reach one with a lower linearised loss; and if there
is none, they never change it. All numbers are small integers or multiples of 1/32, so that no float is rounded.
"""

import dataclasses

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from setgrad.discrete.estimators import Identity
from tests.discrete.oracles import Points

# Points have entries in {-1, 0, 1}^3 and slopes too, so <y' - y, slope> is an integer up to 6. The places where the
# solution switches along the line are fractions with such denominators, at least 1/30 apart: this step misses none.
STEP = 1 / 32
# Switches lie at <y' - y, omega> / |<y' - y, slope>| <= 2 * 3 * 3.
MOST_STEPS = 18 * 32 + 1

vectors = st.tuples(*[st.integers(-1, 1)] * 3)


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@settings(max_examples=80)
@given(
    points=st.lists(vectors, min_size=2, max_size=8, unique=True),
    omega=st.tuples(*[st.integers(-3, 3)] * 3),
    slope=vectors,
    curvature=st.integers(0, 3),
    sense=st.sampled_from(["min", "max"]),
)
def test_identity_steps_reach_a_lower_loss(
    points: list[tuple[int, ...]], omega: tuple[int, ...], slope: tuple[int, ...], curvature: int, sense: str
) -> None:
    solver = Points(points=tensor(points), sense=sense)
    w, slope_ = tensor(omega), tensor(slope)
    start = solver(w)
    # The solver of the theorem keeps its solution in a tie.
    number = int((solver.points == start).all(-1).nonzero()[0])
    layer = Identity(dataclasses.replace(solver, favourite=number))

    def loss(y: Tensor) -> Tensor:
        away = y - start
        return slope_ @ away + curvature * (away**4).sum()

    lower = [p for p in solver.points if slope_ @ (p - start) < 0]
    for _ in range(MOST_STEPS if lower else 40):
        w = w.detach().requires_grad_()
        y = layer(w)
        if not torch.equal(y, start):
            break
        loss(y).backward()
        assert w.grad is not None
        w = w - STEP * w.grad
    if lower:
        assert any(torch.equal(y, p) for p in lower)
    else:
        assert torch.equal(y, start)


@settings(max_examples=50)
@given(
    points=st.lists(vectors, min_size=2, max_size=8, unique=True),
    omega=st.tuples(*[st.integers(-3, 3)] * 3),
    slope=vectors,
    step=st.sampled_from([0.25, 1.0, 7.0]),
)
def test_solution_stays_if_no_loss_is_lower(
    points: list[tuple[int, ...]], omega: tuple[int, ...], slope: tuple[int, ...], step: float
) -> None:
    solver = Points(points=tensor(points), sense="min")
    w, slope_ = tensor(omega), tensor(slope)
    start = solver(w)
    # Keep only points that are not better than the start.
    not_better = torch.stack([p for p in solver.points if slope_ @ (p - start) >= 0])
    number = int((not_better == start).all(-1).nonzero()[0])
    layer = Identity(Points(points=not_better, favourite=number, sense="min"))
    for _ in range(10):
        w = w.detach().requires_grad_()
        y = layer(w)
        assert torch.equal(y, start)
        (y @ slope_).backward()
        w = w - step * w.grad
