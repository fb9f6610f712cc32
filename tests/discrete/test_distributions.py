"""Every distribution of the table against the sum over all its points."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from setgrad.discrete.distributions import Categorical, Distribution, KSubset, PlackettLuce, RandomSpanningTree
from setgrad.errors import DataError, DerivativeError, OptionError, ShapeError
from tests.discrete.laws import LAWS, Law

every_law = pytest.mark.parametrize("law", LAWS, ids=str)
every_kind = pytest.mark.parametrize(
    ("law", "kind"),
    [
        pytest.param(law, kind, id=f"{law}-{kind}")
        for law in LAWS
        for kind in ("normal", "ties", "wide", *(["excluded"] if law.excluded is not None else []))
    ],
)
# Laws of a single point have derivatives of 0 that autograd does not even see.
UNCERTAIN = [law for law in LAWS if len(law.points) > 1]


def logits_of(law: Law, kind: str, *batch: int, seed: int = 0) -> Tensor:
    """Logits of a kind: without ties, all equal, with an excluded entry, or so far apart that exp overflows."""
    logits = law.draw(*batch, seed=seed, scale={"ties": 0.0, "wide": 400.0}.get(kind, 2.0))
    return law.exclude(logits) if kind == "excluded" else logits


def assert_close(mine: Tensor, oracle: Tensor) -> None:
    torch.testing.assert_close(mine, oracle, rtol=1e-10, atol=1e-10)


@every_kind
def test_log_prob_and_sum(law: Law, kind: str) -> None:
    logits = logits_of(law, kind, 2, 3)
    mine = law.build(logits).log_prob(law.points[:, None, None])
    assert_close(mine, law.log_probs(logits))
    assert_close(mine.exp().sum(0), torch.ones(2, 3, dtype=torch.float64))


@every_kind
def test_marginals(law: Law, kind: str) -> None:
    logits = logits_of(law, kind, 2, 3)
    assert_close(law.build(logits).marginals, law.weigh(law.log_probs(logits).exp()))


@every_kind
def test_entropy(law: Law, kind: str) -> None:
    logits = logits_of(law, kind, 2, 3)
    logs = law.log_probs(logits)
    assert_close(law.build(logits).entropy(), -torch.where(logs > -torch.inf, logs.exp() * logs, 0).sum(0))


@every_kind
def test_kl(law: Law, kind: str) -> None:
    logits, other = logits_of(law, kind, 2, 3), logits_of(law, "normal", 3, seed=1)
    mine, theirs = law.log_probs(logits), law.log_probs(other)[:, None]
    oracle = torch.where(mine > -torch.inf, mine.exp() * (mine - theirs), 0).sum(0)
    assert_close(law.build(logits).kl(law.build(other)), oracle)
    assert_close(law.build(logits).kl(law.build(logits)), torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("law", [law for law in UNCERTAIN if law.excluded is not None], ids=str)
def test_kl_is_infinite_where_the_other_excludes(law: Law) -> None:
    open_, closed = logits_of(law, "normal", 2), logits_of(law, "excluded", 2)
    assert law.build(open_).kl(law.build(closed)).tolist() == [torch.inf] * 2
    assert law.build(closed).kl(law.build(open_)).isfinite().all()


@every_kind
def test_mode(law: Law, kind: str) -> None:
    logits = logits_of(law, kind, 2, 3)
    law_of = law.build(logits)
    best = law.log_probs(logits).amax(0)
    assert law_of.mode.shape == logits.shape
    assert_close(law_of.log_prob(law_of.mode), best)


@every_kind
def test_sampling_frequencies(law: Law, kind: str) -> None:
    logits, samples = logits_of(law, kind, 2), 20_000
    drawn = law.build(logits).sample(samples, generator=torch.Generator().manual_seed(3))
    assert drawn.shape == (samples, *logits.shape) and drawn.dtype == logits.dtype and not drawn.requires_grad
    hits = (drawn.flatten(2)[:, None] == law.points.flatten(1)[:, None]).all(-1)
    assert bool((hits.sum(1) == 1).all()), "a sample that is not a point"
    probs = law.log_probs(logits).exp()
    assert not hits[:, probs == 0].any()
    # The error of a rare point is not normal: all rare ones are counted as one.
    rare = probs * samples < 10
    found = torch.cat([hits.double().mean(0), (hits & rare).any(1).double().mean(0)[None]])
    probs = torch.cat([probs, torch.where(rare, probs, 0).sum(0)[None]])
    error = (probs * (1 - probs) / samples).sqrt()
    common = probs * samples >= 10
    assert bool(((found - probs).abs() <= 4 * error + 1e-12)[common].all())


@every_law
def test_sampling_is_reproducible(law: Law) -> None:
    law_of = law.build(law.draw(2))
    first, second = (law_of.sample(5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert law_of.sample(0).shape == (0, 2, *law.shape)


QUANTITIES: dict[str, Callable[[Law, Distribution], Tensor]] = {
    "log_prob": lambda law, of: torch.where((logs := of.log_prob(law.points)) > -torch.inf, logs, 0),
    "marginals": lambda law, of: of.marginals,
    "entropy": lambda law, of: of.entropy(),
    "kl": lambda law, of: of.kl(law.build(law.draw(seed=5))),
    "kl of another": lambda law, of: law.build(law.draw(seed=5)).kl(of),
}


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("kind", ["normal", "ties", "wide"])
@pytest.mark.parametrize("law", UNCERTAIN, ids=str)
def test_derivatives(law: Law, kind: str, quantity: str, seeded: Callable) -> None:
    """First and second derivatives against finite differences, at ties and far apart too."""
    check_derivatives(lambda x: QUANTITIES[quantity](law, law.build(x)), logits_of(law, kind), kind == "wide", seeded)


@pytest.mark.parametrize("quantity", ["log_prob", "marginals", "entropy", "kl"])
@pytest.mark.parametrize("law", [law for law in UNCERTAIN if law.excluded is not None], ids=str)
def test_derivatives_beside_an_excluded_entry(law: Law, quantity: str, seeded: Callable) -> None:
    check_derivatives(lambda x: QUANTITIES[quantity](law, law.build(law.exclude(x))), law.draw(), False, seeded)


def check_derivatives(function: Callable[[Tensor], Tensor], logits: Tensor, wide: bool, seeded: Callable) -> None:
    # Differences of values of several hundred have an error of their own.
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if wide else {"rtol": 1e-5, "atol": 1e-7}
    with seeded(0):
        assert gradcheck(function, logits.requires_grad_(), fast_mode=True, **tolerance)
        assert gradgradcheck(function, logits, fast_mode=True, **tolerance)


@pytest.mark.parametrize("law", UNCERTAIN, ids=str)
def test_third_derivative_of_the_entropy(law: Law, seeded: Callable) -> None:
    """Entropy is a first derivative already, so this is the fourth of the log-partition."""

    def slope(x: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(law.build(x).entropy(), x, create_graph=True)
        return found

    with seeded(0):
        assert gradgradcheck(slope, law.draw().requires_grad_(), rtol=1e-4, atol=1e-6, fast_mode=True)


@every_law
def test_an_instance_is_the_same_alone_and_in_a_batch(law: Law) -> None:
    logits = law.draw(3, 2, seed=2)
    logits[1, 1] *= 100
    whole, alone = law.build(logits), law.build(logits[0, 1])
    assert_close(whole.marginals[0, 1], alone.marginals)
    assert_close(whole.entropy()[0, 1], alone.entropy())
    assert_close(whole.log_prob(law.points[0])[0, 1], alone.log_prob(law.points[0]))


@every_law
def test_values_do_not_depend_on_the_grad_mode(law: Law) -> None:
    logits = law.draw(2).requires_grad_()
    expected = law.build(logits).marginals.detach()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            law_of = law.build(logits * 1)
            law_of.sample(generator=torch.Generator().manual_seed(0))
            assert torch.equal(law_of.marginals, expected)
            assert not law_of.marginals.requires_grad
            assert law_of.entropy().isfinite().all()


@every_law
def test_gradients_survive_a_look_without_gradients(law: Law) -> None:
    """What is kept of a call under no_grad must not cut the graph of a later one."""
    logits = law.draw().requires_grad_()
    law_of = law.build(logits)
    with torch.no_grad():
        _ = law_of.sample(generator=torch.Generator().manual_seed(0)), law_of.entropy(), law_of.marginals
    for _ in range(2):
        value = law_of.log_prob(law.points[0])
        if value.requires_grad:
            value.backward()
            assert logits.grad is not None and logits.grad.isfinite().all()


@every_law
def test_dtypes(law: Law) -> None:
    exact = law.build(law.draw(2)).marginals
    single = law.build(law.draw(2).float())
    assert single.marginals.dtype == single.entropy().dtype == single.mode.dtype == torch.float32
    torch.testing.assert_close(single.marginals.double(), exact, rtol=1e-5, atol=1e-6)
    assert law.build(law.draw(2).half()).sample(generator=torch.Generator().manual_seed(0)).dtype == torch.float32


@every_law
def test_what_is_no_point_has_no_probability(law: Law) -> None:
    law_of = law.build(law.draw().requires_grad_())
    for wrong in (law.points[0] + 1, law.points[0] * 0 + 0.5, law.points[0] - 1, law.points[0] * torch.nan):
        value = law_of.log_prob(wrong)
        assert value.item() == -torch.inf
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value, law_of.logits)
            assert not slope.any()


@every_law
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_logits_are_refused(law: Law, bad: float) -> None:
    logits = law.draw(2)
    logits[(1, *(0,) * law.dims)] = bad
    with pytest.raises(DataError, match="NaN or plus infinity"):
        law.build(logits)
    with pytest.raises(ShapeError, match="floats"):
        law.build(torch.zeros(law.shape, dtype=torch.long))
    with pytest.raises(ShapeError, match="not empty"):
        law.build(torch.zeros(2, *(0,) * law.dims))
    with pytest.raises(ShapeError, match="points have"):
        law.build(law.draw(2)).log_prob(torch.zeros(*(n + 1 for n in law.shape)))
    with pytest.raises(OptionError, match="samples"):
        law.build(law.draw(2)).sample(-1)


def test_impossible_choices_are_refused() -> None:
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


def test_laws_of_different_points_have_no_divergence() -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    for mine, other in (
        (KSubset(four, 1), KSubset(four, 2)),
        (KSubset(four, 1), KSubset(three, 1)),
        (Categorical(four), Categorical(three)),
        (PlackettLuce(four, 2), PlackettLuce(four, 1)),
        (RandomSpanningTree(torch.zeros(3, 3)), RandomSpanningTree(torch.zeros(4, 4))),
    ):
        with pytest.raises((OptionError, ShapeError), match="no divergence"):
            mine.kl(other)


@every_law
def test_a_common_shift_of_the_logits_costs_no_digits(law: Law) -> None:
    # Multiples of 1/8, which stay what they are beside the shift in single precision.
    logits = (8 * law.draw(3)).round().float() / 8
    near, far = law.build(logits), law.build(logits + 1e5)
    points = law.points[:, None].float()
    torch.testing.assert_close(far.log_prob(points), near.log_prob(points))
    torch.testing.assert_close(far.marginals, near.marginals)
    torch.testing.assert_close(far.entropy(), near.entropy())
    torch.testing.assert_close(far.kl(near), torch.zeros(3), rtol=0, atol=1e-5)


@pytest.mark.parametrize("law", [law for law in UNCERTAIN if "places" not in law.name], ids=str)
def test_probabilities_are_from_0_to_1_in_single_precision(law: Law) -> None:
    marginals = law.build(law.draw(500, scale=5.0).float()).marginals
    assert float(marginals.min()) >= 0 and float(marginals.max()) <= 1


def test_nothing_of_an_excluded_item_is_chosen_by_nobody() -> None:
    """Where no item is chosen, none that is excluded can be."""
    logits = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    other = logits.clone()
    other[:, 0] = -torch.inf
    assert KSubset(logits, 0).kl(KSubset(other, 0)).abs().max() < 1e-6


def test_samples_of_far_logits_are_points_of_the_law() -> None:
    """A node that hangs on edges of another magnitude still hangs on one of them, chosen by chance."""
    logits = torch.zeros(6, 6)
    logits[5] = logits[:, 5] = -1e20
    trees = RandomSpanningTree(logits).sample(200, generator=torch.Generator().manual_seed(0))
    assert (trees.sum((-2, -1)) == 10).all()
    assert (trees[:, 5].sum(0)[:5] > 0).all()
    items = Categorical(torch.full((3,), -1e20)).sample(300, generator=torch.Generator().manual_seed(0))
    assert (items.mean(0) > 0.2).all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("ask", [lambda q: q.marginals, lambda q: q.entropy(), lambda q: q.kl(q)])
def test_tangents_through_trees_are_refused_and_not_lost(ask: Callable[[RandomSpanningTree], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, move = (torch.randn(3, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    with forward_ad.dual_level():
        tree = RandomSpanningTree(forward_ad.make_dual(logits, move))
        with pytest.raises(DerivativeError, match="use reverse mode"):
            ask(tree)
        tangent = forward_ad.unpack_dual(tree.log_partition).tangent
    ahead, behind = (RandomSpanningTree(logits + step * move).log_partition for step in (1e-6, -1e-6))
    torch.testing.assert_close(tangent, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8)


def test_laws_of_a_single_point_have_derivatives_of_0() -> None:
    for make, shape in ((RandomSpanningTree, (1, 1)), (lambda x: PlackettLuce(x, 0), (4,))):
        logits = torch.ones(shape, requires_grad=True)
        for value in (make(logits).marginals.sum(), make(logits).entropy().sum()):
            (slope,) = torch.autograd.grad(value, logits)
            assert not slope.any()
