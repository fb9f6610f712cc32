"""Every distribution against sums over all its points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from setgrad.discrete.distributions import Categorical, Distribution, KSubset, PlackettLuce, RandomSpanningTree
from setgrad.errors import DataError, DerivativeError, OptionError, ShapeError
from tests.discrete.distributions import DISTRIBUTIONS, DistributionCase

every_law = pytest.mark.parametrize("case", DISTRIBUTIONS, ids=str)
every_kind = pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case}-{kind}")
        for case in DISTRIBUTIONS
        for kind in ("normal", "ties", "wide", *(["excluded"] if case.excluded is not None else []))
    ],
)
# Distributions of a single point have zero derivatives, and autograd has no path.
UNCERTAIN = [case for case in DISTRIBUTIONS if len(case.points) > 1]


def logits_of(case: DistributionCase, kind: str, *batch: int, seed: int = 0) -> Tensor:
    """Logits of a kind: without ties, all equal, with an excluded entry, or so far apart that exp overflows."""
    logits = case.draw(*batch, seed=seed, scale={"ties": 0.0, "wide": 400.0}.get(kind, 2.0))
    return case.exclude(logits) if kind == "excluded" else logits


def assert_close(actual: Tensor, oracle: Tensor) -> None:
    torch.testing.assert_close(actual, oracle, rtol=1e-10, atol=1e-10)


@every_kind
def test_log_prob_and_sum(case: DistributionCase, kind: str) -> None:
    logits = logits_of(case, kind, 2, 3)
    actual = case.build(logits).log_prob(case.points[:, None, None])
    assert_close(actual, case.log_probs(logits))
    assert_close(actual.exp().sum(0), torch.ones(2, 3, dtype=torch.float64))


@every_kind
def test_marginals(case: DistributionCase, kind: str) -> None:
    logits = logits_of(case, kind, 2, 3)
    assert_close(case.build(logits).marginals, case.weigh(case.log_probs(logits).exp()))


@every_kind
def test_entropy(case: DistributionCase, kind: str) -> None:
    logits = logits_of(case, kind, 2, 3)
    logs = case.log_probs(logits)
    assert_close(case.build(logits).entropy(), -torch.where(logs > -torch.inf, logs.exp() * logs, 0).sum(0))


@every_kind
def test_kl(case: DistributionCase, kind: str) -> None:
    logits, other = logits_of(case, kind, 2, 3), logits_of(case, "normal", 3, seed=1)
    actual, other_log_probs = case.log_probs(logits), case.log_probs(other)[:, None]
    oracle = torch.where(actual > -torch.inf, actual.exp() * (actual - other_log_probs), 0).sum(0)
    assert_close(case.build(logits).kl(case.build(other)), oracle)
    assert_close(case.build(logits).kl(case.build(logits)), torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("case", [case for case in UNCERTAIN if case.excluded is not None], ids=str)
def test_kl_is_infinite_if_the_other_excludes_an_entry(case: DistributionCase) -> None:
    open_, closed = logits_of(case, "normal", 2), logits_of(case, "excluded", 2)
    assert case.build(open_).kl(case.build(closed)).tolist() == [torch.inf] * 2
    assert case.build(closed).kl(case.build(open_)).isfinite().all()


@every_kind
def test_mode(case: DistributionCase, kind: str) -> None:
    logits = logits_of(case, kind, 2, 3)
    distribution = case.build(logits)
    best = case.log_probs(logits).amax(0)
    assert distribution.mode.shape == logits.shape
    assert_close(distribution.log_prob(distribution.mode), best)


@every_kind
def test_sampling_frequencies(case: DistributionCase, kind: str) -> None:
    logits, samples = logits_of(case, kind, 2), 20_000
    drawn = case.build(logits).sample(samples, generator=torch.Generator().manual_seed(3))
    assert drawn.shape == (samples, *logits.shape) and drawn.dtype == logits.dtype and not drawn.requires_grad
    hits = (drawn.flatten(2)[:, None] == case.points.flatten(1)[:, None]).all(-1)
    assert bool((hits.sum(1) == 1).all()), "a sample that is not a point"
    probs = case.log_probs(logits).exp()
    assert not hits[:, probs == 0].any()
    # The error of a rare point is not normal: rare points are counted together.
    rare = probs * samples < 10
    frequencies = torch.cat([hits.double().mean(0), (hits & rare).any(1).double().mean(0)[None]])
    probs = torch.cat([probs, torch.where(rare, probs, 0).sum(0)[None]])
    error = (probs * (1 - probs) / samples).sqrt()
    common = probs * samples >= 10
    assert bool(((frequencies - probs).abs() <= 4 * error + 1e-12)[common].all())


@every_law
def test_sampling_is_reproducible(case: DistributionCase) -> None:
    distribution = case.build(case.draw(2))
    first, second = (distribution.sample(5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert distribution.sample(0).shape == (0, 2, *case.shape)


QUANTITIES: dict[str, Callable[[DistributionCase, Distribution], Tensor]] = {
    "log_prob": lambda case, of: torch.where((logs := of.log_prob(case.points)) > -torch.inf, logs, 0),
    "marginals": lambda case, of: of.marginals,
    "entropy": lambda case, of: of.entropy(),
    "kl": lambda case, of: of.kl(case.build(case.draw(seed=5))),
    "kl of another": lambda case, of: case.build(case.draw(seed=5)).kl(of),
}


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("kind", ["normal", "ties", "wide"])
@pytest.mark.parametrize("case", UNCERTAIN, ids=str)
def test_derivatives(case: DistributionCase, kind: str, quantity: str, seeded: Callable) -> None:
    """First and second derivatives against finite differences, also at ties and far apart."""
    check_derivatives(
        lambda x: QUANTITIES[quantity](case, case.build(x)), logits_of(case, kind), kind == "wide", seeded
    )


@pytest.mark.parametrize("quantity", ["log_prob", "marginals", "entropy", "kl"])
@pytest.mark.parametrize("case", [case for case in UNCERTAIN if case.excluded is not None], ids=str)
def test_derivatives_with_an_excluded_entry(case: DistributionCase, quantity: str, seeded: Callable) -> None:
    check_derivatives(lambda x: QUANTITIES[quantity](case, case.build(case.exclude(x))), case.draw(), False, seeded)


def check_derivatives(function: Callable[[Tensor], Tensor], logits: Tensor, wide: bool, seeded: Callable) -> None:
    # Differences of values of several hundred have a larger rounding error.
    tolerance: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4} if wide else {"rtol": 1e-5, "atol": 1e-7}
    with seeded(0):
        assert gradcheck(function, logits.requires_grad_(), fast_mode=True, **tolerance)
        assert gradgradcheck(function, logits, fast_mode=True, **tolerance)


@pytest.mark.parametrize("case", UNCERTAIN, ids=str)
def test_third_derivative_of_the_entropy(case: DistributionCase, seeded: Callable) -> None:
    """Entropy is a first derivative already, so this is the fourth of the log-partition."""

    def slope(x: Tensor) -> Tensor:
        return torch.autograd.grad(case.build(x).entropy(), x, create_graph=True)[0]

    with seeded(0):
        assert gradgradcheck(slope, case.draw().requires_grad_(), rtol=1e-4, atol=1e-6, fast_mode=True)


@every_law
def test_instance_does_not_depend_on_its_batch(case: DistributionCase) -> None:
    logits = case.draw(3, 2, seed=2)
    logits[1, 1] *= 100
    whole, alone = case.build(logits), case.build(logits[0, 1])
    assert_close(whole.marginals[0, 1], alone.marginals)
    assert_close(whole.entropy()[0, 1], alone.entropy())
    assert_close(whole.log_prob(case.points[0])[0, 1], alone.log_prob(case.points[0]))


@every_law
def test_values_do_not_depend_on_the_grad_mode(case: DistributionCase) -> None:
    logits = case.draw(2).requires_grad_()
    expected = case.build(logits).marginals.detach()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            distribution = case.build(logits * 1)
            distribution.sample(generator=torch.Generator().manual_seed(0))
            assert torch.equal(distribution.marginals, expected)
            assert not distribution.marginals.requires_grad
            assert distribution.entropy().isfinite().all()


@every_law
def test_gradients_work_after_a_call_under_no_grad(case: DistributionCase) -> None:
    """Cached results of a call under no_grad must not break the graph of a later call."""
    logits = case.draw().requires_grad_()
    distribution = case.build(logits)
    with torch.no_grad():
        _ = (
            distribution.sample(generator=torch.Generator().manual_seed(0)),
            distribution.entropy(),
            distribution.marginals,
        )
    for _ in range(2):
        value = distribution.log_prob(case.points[0])
        if value.requires_grad:
            value.backward()
            assert logits.grad is not None and logits.grad.isfinite().all()


@every_law
def test_dtypes(case: DistributionCase) -> None:
    exact = case.build(case.draw(2)).marginals
    single = case.build(case.draw(2).float())
    assert single.marginals.dtype == single.entropy().dtype == single.mode.dtype == torch.float32
    torch.testing.assert_close(single.marginals.double(), exact, rtol=1e-5, atol=1e-6)
    assert case.build(case.draw(2).half()).sample(generator=torch.Generator().manual_seed(0)).dtype == torch.float32


@every_law
def test_invalid_points_have_probability_zero(case: DistributionCase) -> None:
    distribution = case.build(case.draw().requires_grad_())
    for wrong in (case.points[0] + 1, case.points[0] * 0 + 0.5, case.points[0] - 1, case.points[0] * torch.nan):
        value = distribution.log_prob(wrong)
        assert value.item() == -torch.inf
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value, distribution.logits)
            assert not slope.any()


@every_law
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_invalid_logits_raise(case: DistributionCase, bad: float) -> None:
    logits = case.draw(2)
    logits[(1, *(0,) * case.dims)] = bad
    with pytest.raises(DataError, match="NaN or plus infinity"):
        case.build(logits)
    with pytest.raises(ShapeError, match="floats"):
        case.build(torch.zeros(case.shape, dtype=torch.long))
    with pytest.raises(ShapeError, match="not empty"):
        case.build(torch.zeros(2, *(0,) * case.dims))
    with pytest.raises(ShapeError, match="points have"):
        case.build(case.draw(2)).log_prob(torch.zeros(*(n + 1 for n in case.shape)))
    with pytest.raises(OptionError, match="samples"):
        case.build(case.draw(2)).sample(-1)


def test_impossible_choices_raise() -> None:
    closed = torch.tensor([[0.0, 0.0, 0.0], [0.0, -torch.inf, -torch.inf]])
    with pytest.raises(OptionError, match="cannot choose 2 of 3 items: an instance has 1"):
        KSubset(closed, 2)
    with pytest.raises(OptionError, match="0 or more"):
        KSubset(closed, -1)
    with pytest.raises(OptionError, match="cannot choose 4 of 3 items"):
        KSubset(torch.zeros(3), 4)
    with pytest.raises(OptionError, match="cannot fill 4 places"):
        PlackettLuce(torch.zeros(3), 4)
    with pytest.raises(OptionError, match="exclude fewer"):
        Categorical(torch.full((2,), -torch.inf))
    with pytest.raises(OptionError, match="cannot fill 3 places: an instance has 1"):
        PlackettLuce(closed)
    with pytest.raises(OptionError, match="do not connect"):
        RandomSpanningTree(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]))
    with pytest.raises(ShapeError, match="nodes by nodes"):
        RandomSpanningTree(torch.zeros(2, 3))


def test_kl_between_different_kinds_of_points_raises() -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    pairs: list[tuple[Any, Any]] = [
        (KSubset(four, 1), KSubset(four, 2)),
        (KSubset(four, 1), KSubset(three, 1)),
        (Categorical(four), Categorical(three)),
        (PlackettLuce(four, 2), PlackettLuce(four, 1)),
        (RandomSpanningTree(torch.zeros(3, 3)), RandomSpanningTree(torch.zeros(4, 4))),
    ]
    for one, other in pairs:
        with pytest.raises((OptionError, ShapeError), match="no KL divergence"):
            one.kl(other)


@every_law
def test_common_shift_of_the_logits_keeps_precision(case: DistributionCase) -> None:
    # Multiples of 1/8, which are exact in single precision after the shift.
    logits = (8 * case.draw(3)).round().float() / 8
    original, shifted = case.build(logits), case.build(logits + 1e5)
    points = case.points[:, None].float()
    torch.testing.assert_close(shifted.log_prob(points), original.log_prob(points))
    torch.testing.assert_close(shifted.marginals, original.marginals)
    torch.testing.assert_close(shifted.entropy(), original.entropy())
    torch.testing.assert_close(shifted.kl(original), torch.zeros(3), rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in UNCERTAIN if "places" not in case.name], ids=str)
def test_probabilities_are_from_0_to_1_in_single_precision(case: DistributionCase) -> None:
    marginals = case.build(case.draw(500, scale=5.0).float()).marginals
    assert float(marginals.min()) >= 0 and float(marginals.max()) <= 1


def test_excluded_items_do_not_matter_without_choices() -> None:
    """With k = 0, excluded items make no difference."""
    logits = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    other = logits.clone()
    other[:, 0] = -torch.inf
    assert KSubset(logits, 0).kl(KSubset(other, 0)).abs().max() < 1e-6


def test_samples_of_extreme_logits_are_valid_points() -> None:
    """A node whose edges have another magnitude is still connected by a random one of them."""
    logits = torch.zeros(6, 6)
    logits[5] = logits[:, 5] = -1e20
    trees = RandomSpanningTree(logits).sample(200, generator=torch.Generator().manual_seed(0))
    assert (trees.sum((-2, -1)) == 10).all()
    assert (trees[:, 5].sum(0)[:5] > 0).all()
    items = Categorical(torch.full((3,), -1e20)).sample(300, generator=torch.Generator().manual_seed(0))
    assert (items.mean(0) > 0.2).all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("ask", [lambda q: q.marginals, lambda q: q.entropy(), lambda q: q.kl(q)])
def test_forward_mode_through_trees_raises(ask: Callable[[RandomSpanningTree], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, move = (torch.randn(3, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    with forward_ad.dual_level():
        tree = RandomSpanningTree(forward_ad.make_dual(logits, move))
        with pytest.raises(DerivativeError, match="use reverse mode"):
            ask(tree)
        tangent = forward_ad.unpack_dual(tree.log_partition).tangent
    ahead, behind = (RandomSpanningTree(logits + step * move).log_partition for step in (1e-6, -1e-6))
    torch.testing.assert_close(tangent, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8)


def test_distributions_of_a_single_point_have_zero_derivatives() -> None:
    for make, shape in ((RandomSpanningTree, (1, 1)), (lambda x: PlackettLuce(x, 0), (4,))):
        logits = torch.ones(shape, requires_grad=True)
        for value in (make(logits).marginals.sum(), make(logits).entropy().sum()):
            (slope,) = torch.autograd.grad(value, logits)
            assert not slope.any()
