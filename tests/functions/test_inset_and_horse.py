"""INSET and HORSE, set functions that read V beside S; `test_contract.py` has the tests of all set functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from setgrad.errors import OptionError
from setgrad.functions import Exact, Gaussian, HorseFunction, InsetFunction, ItemNoise
from setgrad.sets import Sets
from tests.functions.contract import DIM, draw_sets

CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}


@dataclass(frozen=True)
class Definition:
    """A function, and its definition for one set: from items `(n, d)` and the indices of the chosen ones to a value."""

    name: str
    make: Callable[..., Any]
    truth: Callable[[Any, Tensor, list[int]], Tensor]

    def __str__(self) -> str:
        return self.name


def inset_value(function: InsetFunction, items: Tensor, chosen: list[int]) -> Tensor:
    features = function.phi(Sets.from_lengths(items, [len(items)]))
    return function.rho(torch.cat([features[chosen].sum(0), features.sum(0)]))[0]


def inset_complement_value(function: InsetFunction, items: Tensor, chosen: list[int]) -> Tensor:
    assert function.rest is not None
    features = function.phi(Sets.from_lengths(items, [len(items)]))
    rest = [i for i in range(len(items)) if i not in chosen]
    return (function.rho(features[chosen].sum(0)) + function.rest(features[rest].sum(0)))[0]


def horse_value(function: HorseFunction, items: Tensor, chosen: list[int]) -> Tensor:
    features = function.phi(Sets.from_lengths(items, [len(items)]))
    if len(items):
        features = function.read(features[None], None)[0]
    features = function.norm(features)
    keys = function.keys(features).chunk(function.heads, 1)
    values = torch.cat([function.null[None], function.values(features)]).chunk(function.heads, 1)

    def pool(query: Tensor, chosen: list[int]) -> Tensor:
        averages, masses = [], []
        for q, k, v in zip(query.chunk(function.heads), keys, values, strict=True):
            scores = 5 * torch.tanh(k[chosen] @ q / len(q) ** 0.5 / 5)
            # The null item comes first, with a score of 0.
            scores = torch.cat([scores.new_zeros(1), scores])
            averages.append(torch.softmax(scores, 0) @ v[[0, *(i + 1 for i in chosen)]])
            masses.append(torch.logsumexp(scores, 0))
        return torch.cat([*averages, torch.stack(masses)])

    whole = pool(function.query, list(range(len(items))))
    return function.rho(torch.cat([pool(function.query + function.turn(whole), chosen), whole]))[0]


def small_horse(**options: Any) -> HorseFunction:
    return HorseFunction(DIM, dim=8, hidden=(8, 8), slots=3, **options)


DEFINITIONS = [
    Definition("inset", lambda **o: InsetFunction(DIM, "mlp", dim=8, hidden=(8, 8), **o), inset_value),
    Definition(
        "inset, complement",
        lambda **o: InsetFunction(DIM, dim=8, hidden=(8, 6), complement=True, **o),
        inset_complement_value,
    ),
    Definition("horse", small_horse, horse_value),
]


@pytest.fixture(params=DEFINITIONS, ids=str)
def definition(request: pytest.FixtureRequest) -> Definition:
    parameter: Definition = request.param
    return parameter


def build(definition: Definition, seeded: Callable[..., Any], **options: Any) -> Any:
    with seeded(0):
        function = definition.make(**options).double()
        # So that the null item is not 0, and scores are large enough to be bent.
        for parameter in function.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return function


def test_value_equals_the_definition(definition, seeded):
    function = build(definition, seeded)
    for number, size in enumerate([0, 1, 3, 4]):
        sets = draw_sets([size], seed=number)
        masks = torch.tensor(list(itertools.product([False, True], repeat=size)), dtype=torch.bool)
        masks = masks.reshape(2**size, size)
        expected = torch.stack([definition.truth(function, sets[0], row.nonzero()[:, 0].tolist()) for row in masks])
        torch.testing.assert_close(function.value(sets, masks)[:, 0], expected, **CLOSE)


def test_the_value_depends_on_items_outside_the_subset(definition, seeded):
    function, sets = build(definition, seeded), draw_sets([4, 3])
    masks = torch.tensor([[True, True, False, False, True, False, False]])
    moved = sets.values.clone()
    moved[3] += 0.5
    before, after = function.value(sets, masks), function.value(sets.with_values(moved), masks)
    assert (after - before)[0, 0].abs() > 1e-4
    assert torch.equal(after[0, 1], before[0, 1])
    # It depends on the number of items too.
    alone = function.value(sets[:1], masks[:, :4])
    fewer = function.value(Sets.from_lengths(sets.values[:3], [3]), masks[:, :3])
    assert (alone - fewer).abs() > 1e-4


@pytest.mark.parametrize("chunk_size", [1, 7, 40])
def test_results_do_not_depend_on_the_chunk_size(seeded, chunk_size):
    sets = draw_sets([40, 13, 0, 1], seed=2)
    masks = torch.rand(6, 54, generator=torch.Generator().manual_seed(3)) < 0.4
    whole, chunked = (build(DEFINITIONS[2], seeded, chunk_size=size) for size in (None, chunk_size))
    torch.testing.assert_close(chunked.value(sets, masks), whole.value(sets, masks), **CLOSE)
    torch.testing.assert_close(chunked.gains(sets, masks), whole.gains(sets, masks), **CLOSE)
    # With the items in another order, the chunks hold other items.
    order = torch.cat([torch.randperm(40, generator=torch.Generator().manual_seed(4)), torch.arange(40, 54)])
    shuffled = sets.with_values(sets.values[order])
    torch.testing.assert_close(chunked.gains(shuffled, masks[:, order]), whole.gains(sets, masks)[:, order], **CLOSE)


def test_empty_subsets_and_empty_sets_have_values(definition, seeded):
    function = build(definition, seeded)
    none = draw_sets([0])
    assert function.value(none, torch.zeros(2, 0, dtype=torch.bool)).isfinite().all()
    sets = draw_sets([5, 0, 2])
    value = function.value(sets, torch.zeros(1, 7, dtype=torch.bool))
    assert value.isfinite().all()
    torch.testing.assert_close(value[0, 1], function.value(none, torch.zeros(1, 0, dtype=torch.bool))[0, 0], **CLOSE)
    # The value of the empty subset depends on V.
    assert (value[0, 0] - value[0, 2]).abs() > 1e-4


def test_horse_counts_negative_masks_as_zero(seeded):
    function, sets = build(DEFINITIONS[2], seeded), draw_sets([4])
    masks = torch.tensor([[-0.7, 1.2, 0.4, -3.0]], dtype=torch.float64)
    torch.testing.assert_close(function.value(sets, masks), function.value(sets, masks.clamp(min=0)), **CLOSE)


@pytest.mark.parametrize("max_flips", [2**17, 5])
def test_derivatives_by_every_parameter_equal_finite_differences(definition, seeded, max_flips):
    function, sets = build(definition, seeded, max_flips=max_flips), draw_sets([3, 0, 1], seed=3)
    names = [name for name, _ in function.named_parameters()]
    generator = torch.Generator().manual_seed(5)
    shares = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    for masks in (shares < 0.5, shares):

        def both(*weights: Tensor, masks: Tensor = masks) -> tuple[Tensor, Tensor]:
            def measure() -> tuple[Tensor, Tensor]:
                bound = function.bind(sets)
                return bound.value(masks), bound.gains(masks)

            return _with_weights(function, dict(zip(names, weights, strict=True)), measure)

        weights = [parameter.detach().clone().requires_grad_() for parameter in function.parameters()]
        with seeded(6):
            assert torch.autograd.gradcheck(both, weights, fast_mode=True, atol=1e-6)


def _with_weights(function: nn.Module, weights: dict[str, Tensor], measure: Callable[[], Any]) -> Any:
    """Call with other weights, which are gone when the backward pass computes chunks again."""

    class Measured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = function

        def forward(self) -> Any:
            return measure()

    return torch.func.functional_call(Measured(), {f"inner.{name}": w for name, w in weights.items()}, ())


def test_a_bound_function_holds_tensors_only(definition, seeded):
    function, sets = build(definition, seeded), draw_sets([4, 2])
    bound = function.bind(sets)
    leaves = tree_leaves({name: x for name, x in vars(bound).items() if name not in ("sets", "max_flips")})
    assert leaves and all(isinstance(leaf, Tensor) for leaf in leaves)
    masks = torch.tensor([[True, False, True, False, True, False]])
    before, value = bound.gains(masks), bound.value(masks)
    # The value depends on each tensor, and on nothing else: the module can be deleted.
    gradients = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    del function
    assert torch.equal(bound.gains(masks), before)


@pytest.mark.parametrize("max_flips", [2**17, 3])
def test_hessian_products_of_gaussian_masks_equal_differences(definition, seeded, max_flips):
    function, sets = build(definition, seeded, max_flips=max_flips), draw_sets([3, 2])
    estimator, bound = Gaussian(4, ItemNoise(sets, seed=0)), function.bind(sets)
    psi = torch.full((5,), 0.4, dtype=torch.float64)
    vector = torch.linspace(-1, 1, 5, dtype=torch.float64)
    step = 1e-5
    ahead, behind = (estimator.gradient(bound, psi + sign * step * vector) for sign in (1, -1))
    product = estimator.hessian_vector(bound, psi, vector)
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-6)
    # For certain items, the mask is the subset itself.
    certain = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(estimator.gradient(bound, certain), Exact().gradient(bound, certain), **CLOSE)


def test_gains_need_no_tensor_of_quadratic_size(definition, seeded):
    function, count = build(definition, seeded, max_flips=2**14), 2000
    sets = draw_sets([count])
    masks = torch.rand(2, count, generator=torch.Generator().manual_seed(7)) < 0.3
    with _LargestTensor() as largest, torch.no_grad():
        function.gains(sets, masks)
    assert 0 < largest.size < count**2 / 10


class _LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is created."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


def test_single_precision_is_enough_for_the_gain_of_a_heavy_item(seeded):
    function = build(DEFINITIONS[2], seeded)
    # The bent scores reach their bounds, and the item that leaves has 148 times the weight of the null item.
    function.query.data.mul_(100)
    sets = draw_sets([6])
    masks = torch.eye(6, dtype=torch.bool)
    exact = function.gains(sets, masks).detach()
    assert function.bind(sets).weights.max() > 100
    small = function.float().gains(sets.to(torch.float32), masks).detach()
    torch.testing.assert_close(small.double(), exact, rtol=0, atol=1e-4 * float(exact.abs().max()))


def test_invalid_options_raise(seeded):
    with seeded(0):
        with pytest.raises(OptionError, match="multiple of heads"):
            HorseFunction(DIM, dim=10, heads=4)
        with pytest.raises(OptionError, match="at least one layer"):
            InsetFunction(DIM, hidden=())
