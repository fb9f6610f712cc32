"""The table of set functions. Every case runs through every test of `test_contract.py`; to add a function, add a line.

Items are drawn from the unit square, so that coverage can read them as probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from setgrad.functions import (
    Average,
    BoundSetFunction,
    Coverage,
    DeepSetFunction,
    FacilityLocation,
    FromCallable,
    GraphCut,
    HorseFunction,
    InsetFunction,
    ItemScores,
    LogDeterminant,
    Modular,
    PairScores,
    SetFunction,
    rbf,
)
from setgrad.functions.pair_scores import BoundSum
from setgrad.sets import Sets

DIM = 2
Items = list[list[float]]
Truth = Callable[[Items, Sequence[int]], float]


@dataclass(frozen=True)
class Case:
    """A set function and what is known about it."""

    name: str
    # Tests call it under a seed and convert modules to float64.
    make: Callable[[], SetFunction]
    # The definition in plain Python, for the items of one set and the indices of the chosen ones; None for learned F.
    truth: Truth | None = None
    relaxed: bool = True
    submodular: bool = False
    monotone: bool = False

    def __str__(self) -> str:
        return self.name


def draw_sets(sizes: Sequence[int], seed: int = 0) -> Sets:
    """Return sets of these sizes with items in the unit square, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.rand(sum(sizes), DIM, generator=generator, dtype=torch.float64), sizes)


def dot(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.mT


def asymmetric(x: Tensor, y: Tensor) -> Tensor:
    """A similarity that is not symmetric."""
    return x[..., :1] * (1 + y[..., 1:]).mT


def _rbf(a: list[float], b: list[float], gamma: float = 1.0) -> float:
    return math.exp(-gamma * sum((p - q) ** 2 for p, q in zip(a, b, strict=True)))


def _dot(a: list[float], b: list[float]) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))


def _asymmetric(a: list[float], b: list[float]) -> float:
    return a[0] * (1 + b[1])


def _coverage(items: Items, chosen: Sequence[int]) -> float:
    return sum(1 - math.prod(1 - items[i][u] for i in chosen) for u in range(DIM))


def _weighted_coverage(items: Items, chosen: Sequence[int]) -> float:
    return sum(w * (1 - math.prod(1 - items[i][u] ** 2 for i in chosen)) for u, w in enumerate([3.0, 0.5]))


def _facility(s: Callable[[list[float], list[float]], float]) -> Truth:
    return lambda items, chosen: sum(max((s(items[i], j) for i in chosen), default=0.0) for j in items)


def _cut(s: Callable[[list[float], list[float]], float], penalty: float) -> Truth:
    def truth(items: Items, chosen: Sequence[int]) -> float:
        reached = sum(s(i, items[j]) for i in items for j in chosen)
        return reached - penalty * sum(s(items[i], items[j]) for i in chosen for j in chosen)

    return truth


def _volume(s: Callable[[list[float], list[float]], float], ridge: float) -> Truth:
    def truth(items: Items, chosen: Sequence[int]) -> float:
        pairs = np.array([[s(items[i], items[j]) for j in chosen] for i in chosen]).reshape(len(chosen), len(chosen))
        return math.log(np.linalg.det(np.eye(len(chosen)) + pairs / ridge))

    return truth


def _related(function: DeepSetFunction | ItemScores) -> SetFunction:
    """Return the function with a random relation, because a new relation is 0."""
    assert function.relation is not None
    nn.init.normal_(function.relation.means.weight)
    return function


class Sum(nn.Module, SetFunction):
    """The sum of a learned function and a term for pairs, as a selector has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = DeepSetFunction(DIM, "mlp", dim=8, hidden=(8,)), _varied(PairScores(DIM))

    def bind(self, sets: Sets) -> BoundSetFunction:
        return BoundSum([self.first.bind(sets), self.second.bind(sets)])


# In units of 1/32, and the constant.
_PAIR_WEIGHTS = (3.0, -1.25, 0.75)


def _varied(function: PairScores) -> PairScores:
    """Return the function with different weights and a constant, because those of a new one are equal and 0."""
    function.weights.data = torch.tensor(_PAIR_WEIGHTS[:2]) / 32
    function.constant.data.fill_(_PAIR_WEIGHTS[2])
    return function


def _pairs(items: Items, chosen: Sequence[int]) -> float:
    total = 0.0
    for position, i in enumerate(chosen):
        for j in chosen[:position]:
            lengths = math.hypot(*items[i]) * math.hypot(*items[j])
            total += sum(_PAIR_WEIGHTS[u] * items[i][u] * items[j][u] / lengths for u in range(DIM)) + _PAIR_WEIGHTS[2]
    return total


CASES = [
    Case("modular", Modular, lambda x, s: sum(sum(x[i]) for i in s), submodular=True, monotone=True),
    Case(
        "modular, custom score",
        lambda: Modular(lambda x: x[:, :1].exp() - 2 * x[:, 1:]),
        lambda x, s: sum(math.exp(x[i][0]) - 2 * x[i][1] for i in s),
        submodular=True,
    ),
    Case("coverage", Coverage, _coverage, submodular=True, monotone=True),
    Case(
        "coverage, weighted",
        lambda: Coverage(torch.tensor([3.0, 0.5]), cover=torch.square),
        _weighted_coverage,
        submodular=True,
        monotone=True,
    ),
    Case("facility location", FacilityLocation, _facility(_rbf), submodular=True, monotone=True),
    Case("facility location, dot", lambda: FacilityLocation(dot), _facility(_dot), submodular=True, monotone=True),
    Case(
        "facility location, asymmetric", lambda: FacilityLocation(asymmetric), _facility(_asymmetric), submodular=True
    ),
    Case("graph cut", GraphCut, _cut(_rbf, 0.5), submodular=True, monotone=True),
    Case("graph cut, asymmetric", lambda: GraphCut(asymmetric, penalty=0.8), _cut(_asymmetric, 0.8), submodular=True),
    Case("log-determinant", LogDeterminant, _volume(_rbf, 1.0), submodular=True, monotone=True),
    Case(
        "log-determinant, sharp",
        lambda: LogDeterminant(rbf(gamma=4.0), ridge=0.1),
        _volume(lambda a, b: _rbf(a, b, 4.0), 0.1),
        submodular=True,
        monotone=True,
    ),
    Case("deep set, mlp", lambda: DeepSetFunction(DIM, "mlp", dim=8, hidden=(8, 8))),
    Case("deep set, paper", lambda: DeepSetFunction(DIM, "paper", dim=8, hidden=(8,))),
    Case("deep set, context", lambda: DeepSetFunction(DIM, dim=8, hidden=(8, 8))),
    Case("deep set, in chunks", lambda: DeepSetFunction(DIM, "mlp", dim=8, hidden=(8, 8), max_flips=7)),
    Case("deep set, custom phi and skip", lambda: DeepSetFunction(DIM, nn.Linear(DIM, 5), hidden=(8,), skip=True)),
    Case("deep set, related", lambda: _related(DeepSetFunction(DIM, dim=8, hidden=(8, 8), relation=3))),
    Case(
        "deep set, related without skip", lambda: _related(DeepSetFunction(DIM, "mlp", dim=8, hidden=(8,), relation=2))
    ),
    Case("inset", lambda: InsetFunction(DIM, dim=8, hidden=(8, 8))),
    Case("inset, complement", lambda: InsetFunction(DIM, "mlp", dim=8, hidden=(8, 8), complement=True)),
    Case("inset, one layer in chunks", lambda: InsetFunction(DIM, dim=8, hidden=(8,), max_flips=7)),
    Case("inset, custom phi", lambda: InsetFunction(DIM, nn.Linear(DIM, 5), hidden=(8,), complement=True, max_flips=3)),
    Case("horse", lambda: HorseFunction(DIM, dim=8, hidden=(8, 8), slots=3)),
    Case(
        "horse, mlp in chunks",
        lambda: HorseFunction(DIM, "mlp", dim=8, hidden=(8,), slots=2, chunk_size=2, max_flips=7),
    ),
    Case("horse, custom phi", lambda: HorseFunction(DIM, nn.Linear(DIM, 6), hidden=(8, 8), heads=2, chunk_size=1)),
    Case("item scores", lambda: ItemScores(DIM, dim=8)),
    Case("item scores, related", lambda: _related(ItemScores(DIM, dim=8, relation=3))),
    Case("pair scores", lambda: _varied(PairScores(DIM)), _pairs),
    Case("sum", Sum),
    Case(
        "average, classical",
        lambda: Average([Coverage(), GraphCut(), Coverage()]),
        lambda x, s: (2 * _coverage(x, s) + _cut(_rbf, 0.5)(x, s)) / 3,
        submodular=True,
        monotone=True,
    ),
    Case(
        "average, learned",
        lambda: Average([DeepSetFunction(DIM, dim=8, hidden=(8,)), InsetFunction(DIM, dim=8, hidden=(8, 8))]),
    ),
    Case(
        "callable",
        lambda: FromCallable(lambda items, masks: (masks.to(items.dtype) @ items).square().sum(1)),
        lambda x, s: sum(sum(x[i][u] for i in s) ** 2 for u in range(DIM)),
        relaxed=False,
    ),
]
