"""The table of equations with known solutions that all solvers and adjoints are tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from setgrad.implicit import Solution, argmin, fixed_point, root
from tests.implicit.helpers import draw


@dataclass(frozen=True)
class Case:
    """An equation for a batch of samples, its arguments, and a second way to compute its solution."""

    name: str
    # fixed_point, root or argmin; it decides which solvers apply.
    entry_point: Callable[..., Solution]
    fn: Callable[..., Tensor]
    start: Tensor
    args: tuple[Tensor, ...]
    # From the arguments to the solution, differentiable: a closed form or a long unrolled iteration.
    truth: Callable[..., Tensor]
    # Each coordinate depends on its own unknown only.
    separable: bool = False

    def __str__(self) -> str:
        return self.name

    def solve(self, *args: Tensor, **options: object) -> Solution:
        return self.entry_point(self.fn, self.start, *args, **{"tol": 1e-12, "max_steps": 400, **options})


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def _times(matrix: Tensor, y: Tensor) -> Tensor:
    return (matrix @ y[..., None])[..., 0]


def _unroll(step: Callable[..., Tensor], start: Tensor, count: int) -> Callable[..., Tensor]:
    def run(*args: Tensor) -> Tensor:
        y = start
        for _ in range(count):
            y = step(y, *args)
        return y

    return run


def _network(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(_times(weight, y) + bias)


def _cosine(y: Tensor, a: Tensor) -> Tensor:
    return torch.cos(a * y)


def _affine(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _times(weight, y) + bias


def _cubic(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return y**3 + a.exp() * y - b


def _cubic_newton(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return y - _cubic(y, a, b) / (3 * y**2 + a.exp())


def _coupled(y: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    return 3 * y + _times(weight, torch.sin(y)) - b


def _coupled_step(y: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    return (b - _times(weight, torch.sin(y))) / 3


def _ridge(y: Tensor, design: Tensor, target: Tensor, strength: Tensor) -> Tensor:
    misfit = _times(design, y) - target
    return (misfit**2).sum(-1) + strength.exp() * (y**2).sum(-1)


def _ridge_solution(design: Tensor, target: Tensor, strength: Tensor) -> Tensor:
    matrix = design.mT @ design + strength.exp() * torch.eye(design.shape[-1], dtype=design.dtype)
    return torch.linalg.solve(matrix, _times(design.mT, target))


def _convex(y: Tensor, b: Tensor) -> Tensor:
    return torch.logsumexp(y, -1) + 0.5 * (y**2).sum(-1) - (b * y).sum(-1)


def _convex_step(y: Tensor, b: Tensor) -> Tensor:
    return b - torch.softmax(y, -1)


CASES = [
    Case(
        "network",
        fixed_point,
        _network,
        _zeros(3, 4),
        (draw(3, 4, 4, seed=0, scale=0.15), draw(3, 4, seed=1)),
        _unroll(_network, _zeros(3, 4), 120),
    ),
    Case("cos", fixed_point, _cosine, _zeros(3, 1), (draw(1, seed=2, scale=0.3),), _unroll(_cosine, _zeros(3, 1), 120)),
    Case(
        "affine, two batch axes, shared weight",
        fixed_point,
        _affine,
        _zeros(2, 2, 3),
        (draw(3, 3, seed=3, scale=0.2), draw(2, 2, 3, seed=4)),
        lambda weight, bias: _times(torch.linalg.inv(torch.eye(3, dtype=torch.float64) - weight), bias),
    ),
    Case(
        "cubic",
        root,
        _cubic,
        _zeros(2, 3) + 0.5,
        (draw(2, 3, seed=5), draw(2, 3, seed=6)),
        _unroll(_cubic_newton, _zeros(2, 3) + 0.5, 40),
        separable=True,
    ),
    Case(
        "coupled",
        root,
        _coupled,
        _zeros(3, 4),
        (draw(3, 4, 4, seed=7, scale=0.4), draw(3, 4, seed=8)),
        _unroll(_coupled_step, _zeros(3, 4), 150),
    ),
    Case(
        "ridge",
        argmin,
        _ridge,
        _zeros(2, 3),
        (draw(2, 5, 3, seed=9), draw(2, 5, seed=10), draw(1, seed=11)[0]),
        _ridge_solution,
    ),
    Case("convex", argmin, _convex, _zeros(2, 3), (draw(2, 3, seed=12),), _unroll(_convex_step, _zeros(2, 3), 200)),
]
