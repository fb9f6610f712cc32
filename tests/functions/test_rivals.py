"""INSET and HORSE: set functions that look at V beside S. What every set function owes is in `test_contract.py`."""

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

CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@dataclass(frozen=True)
class Rival:
    """A function and its definition for one set: items `(n, d)` and the numbers of those chosen give one value."""

    name: str
    make: Callable[..., Any]
    truth: Callable[[Any, Tensor, list[int]], Tensor]

    def __str__(self) -> str:
        return self.name


def joined(function: InsetFunction, items: Tensor, chosen: list[int]) -> Tensor:
    features = function.phi(Sets.from_lengths(items, [len(items)]))
    return function.rho(torch.cat([features[chosen].sum(0), features.sum(0)]))[0]


def left_behind(function: InsetFunction, items: Tensor, chosen: list[int]) -> Tensor:
    assert function.rest is not None
    features = function.phi(Sets.from_lengths(items, [len(items)]))
    rest = [i for i in range(len(items)) if i not in chosen]
    return (function.rho(features[chosen].sum(0)) + function.rest(features[rest].sum(0)))[0]


def attended(function: HorseFunction, items: Tensor, chosen: list[int]) -> Tensor:
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


RIVALS = [
    Rival("inset", lambda **o: InsetFunction(DIM, "mlp", dim=8, hidden=(8, 8), **o), joined),
    Rival("inset, complement", lambda **o: InsetFunction(DIM, dim=8, hidden=(8, 6), complement=True, **o), left_behind),
    Rival("horse", small_horse, attended),
]


@pytest.fixture(params=RIVALS, ids=str)
def rival(request: pytest.FixtureRequest) -> Rival:
    chosen: Rival = request.param
    return chosen


def build(rival: Rival, seeded: Callable[..., Any], **options: Any) -> Any:
    with seeded(0):
        function = rival.make(**options).double()
        # Away from the zero that the null item starts from, and with scores large enough to be bent.
        for parameter in function.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return function


def test_value_is_the_definition(rival, seeded):
    function = build(rival, seeded)
    for number, size in enumerate([0, 1, 3, 4]):
        sets = draw_sets([size], seed=number)
        masks = torch.tensor(list(itertools.product([False, True], repeat=size)), dtype=torch.bool)
        masks = masks.reshape(2**size, size)
        expected = torch.stack([rival.truth(function, sets[0], row.nonzero()[:, 0].tolist()) for row in masks])
        torch.testing.assert_close(function.value(sets, masks)[:, 0], expected, **CLOSE)


def test_an_item_outside_the_subset_matters(rival, seeded):
    function, sets = build(rival, seeded), draw_sets([4, 3])
    masks = torch.tensor([[True, True, False, False, True, False, False]])
    moved = sets.values.clone()
    moved[3] += 0.5
    before, after = function.value(sets, masks), function.value(sets.with_values(moved), masks)
    assert (after - before)[0, 0].abs() > 1e-4
    assert torch.equal(after[0, 1], before[0, 1])
    # So does the mere presence of one more.
    alone = function.value(sets[:1], masks[:, :4])
    fewer = function.value(Sets.from_lengths(sets.values[:3], [3]), masks[:, :3])
    assert (alone - fewer).abs() > 1e-4


@pytest.mark.parametrize("chunk_size", [1, 7, 40])
def test_every_partition_gives_the_same(seeded, chunk_size):
    sets = draw_sets([40, 13, 0, 1], seed=2)
    masks = torch.rand(6, 54, generator=torch.Generator().manual_seed(3)) < 0.4
    whole, parted = (build(RIVALS[2], seeded, chunk_size=size) for size in (None, chunk_size))
    torch.testing.assert_close(parted.value(sets, masks), whole.value(sets, masks), **CLOSE)
    torch.testing.assert_close(parted.gains(sets, masks), whole.gains(sets, masks), **CLOSE)
    # The pieces hold other items in another order, and no sum over V is taken in the old one.
    order = torch.cat([torch.randperm(40, generator=torch.Generator().manual_seed(4)), torch.arange(40, 54)])
    shuffled = sets.with_values(sets.values[order])
    torch.testing.assert_close(parted.gains(shuffled, masks[:, order]), whole.gains(sets, masks)[:, order], **CLOSE)


def test_nothing_chosen_and_nothing_on_offer_have_values(rival, seeded):
    function = build(rival, seeded)
    none = draw_sets([0])
    assert function.value(none, torch.zeros(2, 0, dtype=torch.bool)).isfinite().all()
    sets = draw_sets([5, 0, 2])
    value = function.value(sets, torch.zeros(1, 7, dtype=torch.bool))
    assert value.isfinite().all()
    torch.testing.assert_close(value[0, 1], function.value(none, torch.zeros(1, 0, dtype=torch.bool))[0, 0], **CLOSE)
    # What the empty subset is worth depends on what was on offer.
    assert (value[0, 0] - value[0, 2]).abs() > 1e-4


def test_negative_shares_of_attention_are_none(seeded):
    function, sets = build(RIVALS[2], seeded), draw_sets([4])
    masks = torch.tensor([[-0.7, 1.2, 0.4, -3.0]], dtype=torch.float64)
    torch.testing.assert_close(function.value(sets, masks), function.value(sets, masks.clamp(min=0)), **CLOSE)


@pytest.mark.parametrize("max_flips", [2**17, 5])
def test_derivatives_by_every_weight(rival, seeded, max_flips):
    function, sets = build(rival, seeded, max_flips=max_flips), draw_sets([3, 0, 1], seed=3)
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
    """Call with other weights. They are gone before the backward pass computes pieces again, as a bound F allows."""

    class Measured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = function

        def forward(self) -> Any:
            return measure()

    return torch.func.functional_call(Measured(), {f"inner.{name}": w for name, w in weights.items()}, ())


def test_what_is_bound_is_tensors(rival, seeded):
    function, sets = build(rival, seeded), draw_sets([4, 2])
    bound = function.bind(sets)
    held = {name: kept for name, kept in vars(bound).items() if name not in ("sets", "max_flips")}
    leaves = tree_leaves(held)
    assert leaves and all(isinstance(leaf, Tensor) for leaf in leaves)
    masks = torch.tensor([[True, False, True, False, True, False]])
    before, kept = bound.gains(masks), bound.value(masks)
    # Everything that F depends on is held: each tensor moves the value, and the module can go.
    pulls = torch.autograd.grad(kept.sum(), leaves, retain_graph=True)
    assert all(pull.abs().sum() > 0 for pull in pulls)
    del function
    assert torch.equal(bound.gains(masks), before)


@pytest.mark.parametrize("max_flips", [2**17, 3])
def test_gaussian_masks_are_differentiated_twice(rival, seeded, max_flips):
    function, sets = build(rival, seeded, max_flips=max_flips), draw_sets([3, 2])
    estimator, bound = Gaussian(4, ItemNoise(sets, seed=0)), function.bind(sets)
    psi = torch.full((5,), 0.4, dtype=torch.float64)
    vector = torch.linspace(-1, 1, 5, dtype=torch.float64)
    step = 1e-5
    ahead, behind = (estimator.gradient(bound, psi + sign * step * vector) for sign in (1, -1))
    product = estimator.hessian_vector(bound, psi, vector)
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-6)
    # At certainty the mask is the subset itself.
    sure = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(estimator.gradient(bound, sure), Exact().gradient(bound, sure), **CLOSE)


def test_gains_never_hold_a_square_of_the_set(rival, seeded):
    function, count = build(rival, seeded, max_flips=2**14), 2000
    sets = draw_sets([count])
    masks = torch.rand(2, count, generator=torch.Generator().manual_seed(7)) < 0.3
    with _Largest() as seen, torch.no_grad():
        function.gains(sets, masks)
    assert 0 < seen.numbers < count**2 / 10


class _Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that was made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


def test_single_precision_keeps_the_gain_of_a_heavy_item(seeded):
    function = build(RIVALS[2], seeded)
    # The bent scores reach their bounds, and the item that leaves outweighs the null item 148 times.
    function.query.data.mul_(100)
    sets = draw_sets([6])
    masks = torch.eye(6, dtype=torch.bool)
    exact = function.gains(sets, masks).detach()
    assert function.bind(sets).weights.max() > 100
    small = function.float().gains(sets.to(torch.float32), masks).detach()
    torch.testing.assert_close(small.double(), exact, rtol=0, atol=1e-4 * float(exact.abs().max()))


def test_options_that_cannot_be(seeded):
    with seeded(0):
        with pytest.raises(OptionError, match="multiple of heads"):
            HorseFunction(DIM, dim=10, heads=4)
        with pytest.raises(OptionError, match="at least one layer"):
            InsetFunction(DIM, hidden=())
