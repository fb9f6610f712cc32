"""Properties that every estimator must have."""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from setgrad.discrete.estimators import AIMLE, IMLE, LPGD, Blackbox, Envelope, Perturbed, SoftSub
from setgrad.discrete.noise import Gumbel, NoNoise, SumOfGamma
from setgrad.discrete.solvers.top_k import ArgMax, TopK
from setgrad.errors import DerivativeError, OptionError, SetgradError, SolverError
from tests.discrete.estimators import CASES, COUPLED, SAMPLED, SOLVING, Case, N
from tests.discrete.oracles import Matrix, draws, exact_gradient

cases = pytest.mark.parametrize("case", CASES, ids=str)
sampled = pytest.mark.parametrize("case", SAMPLED, ids=str)
solving = pytest.mark.parametrize("case", SOLVING, ids=str)


def loss(z: Tensor, b: Tensor, case: Case) -> Tensor:
    """The loss of each instance, a mean over samples."""
    each = ((z - b) ** 2).sum(-1)
    return each.mean(0) if case.axis and case.sampled else each


def gradient(case: Case, theta: Tensor, b: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    theta = theta.detach().requires_grad_()
    layer = case.build(**options)  # type: ignore[arg-type]
    z = layer(theta)
    (grad,) = torch.autograd.grad(loss(z, b, case).sum(), theta)
    return z.detach(), grad


@cases
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes(case: Case, batch: tuple[int, ...], dtype: torch.dtype) -> None:
    z, grad = gradient(case, draws(*batch, N, dtype=dtype), draws(*batch, N, seed=1, dtype=dtype))
    assert z.shape == ((3, *batch, N) if case.axis and case.sampled else (*batch, N))
    assert z.dtype == grad.dtype == dtype
    assert grad.isfinite().all()
    torch.testing.assert_close(z.sum(-1), torch.full_like(z[..., 0], case.k))
    allowed = (z == 0) | (z == 1) if case.hard else (z >= 0) & (z <= case.largest)
    assert allowed.all()


@cases
def test_gradients_are_not_zero(case: Case) -> None:
    _, grad = gradient(case, draws(20, N), draws(20, N, seed=1))
    assert grad.abs().sum() > 0


@cases
def test_empty_batches(case: Case) -> None:
    z, grad = gradient(case, draws(0, N), draws(0, N, seed=1))
    assert z.shape == ((3, 0, N) if case.axis and case.sampled else (0, N))
    assert grad.shape == (0, N)


@sampled
def test_generators_are_reproducible(case: Case) -> None:
    theta = draws(5, N)
    first, again, other = (case.build(seed=seed)(theta) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with_generator = case.build(seed=1)(theta, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first, with_generator)


@cases
def test_instance_does_not_depend_on_its_batch(case: Case) -> None:
    theta, b = draws(5, N), draws(5, N, seed=1)
    z, grad = gradient(case, theta, b)
    theta[1:], b[1:] = 10 * draws(4, N, seed=2), 7 * draws(4, N, seed=3)
    z_, grad_ = gradient(case, theta, b)
    torch.testing.assert_close(z.select(-2, 0), z_.select(-2, 0))
    if case.name in COUPLED:
        assert not torch.allclose(grad[0], grad_[0])
    else:
        torch.testing.assert_close(grad[0], grad_[0])


@sampled
def test_gradient_scale_does_not_depend_on_the_samples(case: Case) -> None:
    copies = 2000
    theta, b = draws(N).expand(copies, N), draws(N, seed=1).expand(copies, N)
    # The square of a mean of solutions has a bias that falls with the number of samples.
    slope = draws(N, seed=1)
    actual = []
    for samples, seed in ((2, 0), (8, 1)):
        leaf = theta.clone().requires_grad_()
        layer = case.build(samples=samples, seed=seed).eval()
        z = layer(leaf)
        each = ((z - b) ** 2).sum(-1) if case.axis else z @ slope
        actual.append(torch.autograd.grad((each.mean(0) if case.axis else each).sum(), leaf)[0])
    one, many = actual
    error = ((one.var(0) + many.var(0)) / copies).sqrt()
    assert ((one.mean(0) - many.mean(0)).abs() <= 4 * error + 1e-12).all()
    assert error.max() < 0.2 * many.mean(0).abs().max()


@solving
@pytest.mark.parametrize("sense", ["max", "min"])
def test_number_of_solver_calls(case: Case, sense: str) -> None:
    solver = TopK(2, sense=sense)
    theta = draws(5, N).requires_grad_()
    layer = case.build(solver=solver)
    z = layer(theta)
    assert solver.counter.calls == 1
    samples = getattr(layer, "samples", 1)
    assert solver.counter.instances == 5 * samples
    loss(z, draws(5, N, seed=1), case).sum().backward()
    assert solver.counter.calls == 1 + case.backward_calls
    # Both sides of a central difference are one call with twice as many instances.
    sides = 2 if getattr(layer, "central", False) or getattr(layer, "side", None) == Envelope.AVERAGE else 1
    assert solver.counter.instances == 5 * samples * (1 + case.backward_calls * sides)


@solving
def test_sense_only_changes_signs(case: Case) -> None:
    theta, b = draws(5, N), draws(5, N, seed=1)
    z, grad = gradient(case, theta, b, solver=TopK(2))
    z_, grad_ = gradient(case, -theta, b, solver=TopK(2, sense="min"))
    assert torch.equal(z, z_)
    torch.testing.assert_close(grad, -grad_)


@pytest.mark.parametrize("case", [case for case in SOLVING if case.name != "StraightThrough-soft"], ids=str)
def test_instances_of_two_axes(case: Case) -> None:
    theta, b = draws(5, N), draws(5, N, seed=1)
    z, grad = gradient(case, theta, b)
    leaf = theta.reshape(5, 2, 3).clone().requires_grad_()
    wide = case.build(solver=Matrix(k=2))(leaf)
    assert torch.equal(wide.flatten(-2), z)
    loss(wide.flatten(-2), b, case).sum().backward()
    torch.testing.assert_close(leaf.grad.flatten(-2), grad)


@pytest.mark.parametrize("case", [case for case in SOLVING if case.backward_calls], ids=str)
def test_nan_gradient_in_the_backward_pass_is_named(case: Case) -> None:
    theta, nan = draws(3, N).requires_grad_(), draws(3, N)
    nan[1, 0] = torch.nan
    z = case.build(solver=TopK(2, on_failure="mask"))(theta)
    (grad,) = torch.autograd.grad((5 * z * nan).sum(), theta)
    assert not grad[1].any()
    assert grad.isfinite().all()
    assert grad.any()
    with pytest.raises(SolverError, match="in the backward pass"):
        (case.build()(theta) * nan).sum().backward()


@solving
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_masked_instances_have_no_gradient(case: Case, bad: float) -> None:
    theta, b = draws(4, N), draws(4, N, seed=1)
    solver = TopK(2, on_failure="mask")
    good, clean_gradient = gradient(case, theta, b, solver=solver)
    nonfinite = theta.clone()
    nonfinite[1, 2] = bad
    z, grad = gradient(case, nonfinite, b, solver=solver)
    assert not z.select(-2, 1).any()
    assert not grad[1].any()
    others = [0, 2, 3]
    torch.testing.assert_close(z[..., others, :], good[..., others, :])
    if case.name not in COUPLED:
        torch.testing.assert_close(grad[others], clean_gradient[others])
    assert grad.isfinite().all()
    with pytest.raises(SolverError, match="NONFINITE"):
        case.build(solver=TopK(2))(nonfinite)


# A linear loss has a constant gradient at z, so its second derivative is that of a projection only.
@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("case", [case for case in CASES if case.first_order], ids=str)
def test_second_derivatives_raise(case: Case, power: int) -> None:
    theta = draws(4, N).requires_grad_()
    z = case.build()(theta)
    (grad,) = torch.autograd.grad((z**power * draws(N, seed=1)).sum(), theta, create_graph=True)
    with pytest.raises(DerivativeError, match="first derivatives"):
        torch.autograd.grad(grad.square().sum(), theta, retain_graph=True)
    with pytest.raises(DerivativeError, match="first derivatives"):
        grad.square().sum().backward()


@cases
def test_zero_gradients_stay_zero(case: Case) -> None:
    theta = draws(4, N).requires_grad_()
    z = case.build()(theta)
    (0 * z).sum().backward()
    assert theta.grad is not None
    assert not theta.grad.any()


class _NoGradient(torch.autograd.Function):
    """A layer without a gradient."""

    @staticmethod
    def forward(ctx: object, z: Tensor) -> Tensor:
        return z.sum()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> None:
        return None


@solving
def test_next_layer_may_have_no_gradient(case: Case) -> None:
    theta = draws(4, N).requires_grad_()
    _NoGradient.apply(case.build()(theta)).backward()
    assert theta.grad is None or not theta.grad.any()


@cases
def test_zero_theta(case: Case) -> None:
    z, grad = gradient(case, torch.zeros(4, N), draws(4, N, seed=1, dtype=torch.float32))
    torch.testing.assert_close(z.sum(-1), torch.full_like(z[..., 0], case.k))
    assert grad.isfinite().all()


@pytest.mark.parametrize("case", [case for case in CASES if case.cosine is not None], ids=str)
def test_gradient_direction(case: Case) -> None:
    """One item of N, loss |z - b|^2: the gradient must point in roughly the right direction."""
    theta, b = draws(32, N), draws(32, N, seed=1).abs()
    pairs = zip(theta, b, strict=True)
    leaf = theta.clone().requires_grad_()
    z = case.build(samples=1000, k=1)(leaf)
    # For a mean of solutions use the linear form of the loss, which agrees at points up to a constant.
    each = z - 2 * z * b if not case.axis else (z - b) ** 2
    (each.mean(0) if case.axis else each).sum().backward()
    # |z - b|^2 = 1 - 2 <b, z> + |b|^2 at one-hot points.
    truth = torch.stack([exact_gradient(t, torch.eye(N).double(), partial(torch.mv, vec=-2 * c)) for t, c in pairs])
    cosine = torch.cosine_similarity(leaf.grad, truth, dim=-1).mean()
    assert cosine > case.cosine, f"{cosine:.3f}"


@cases
def test_modules_can_be_copied_and_printed(case: Case) -> None:
    layer = case.build()
    theta = draws(3, N)
    assert torch.equal(copy.deepcopy(layer)(theta), layer(theta))
    assert type(layer).__name__ in repr(layer)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: IMLE(TopK(1), noise=Gumbel(), samples=0), "samples must be 1"),
        (lambda: IMLE(TopK(1), noise=None, samples=2), "would be the same"),
        (lambda: IMLE(TopK(1), noise=Gumbel(), lam=0.0), "lam must be"),
        (lambda: Blackbox(TopK(1), lam=float("nan")), "lam must be"),
        (lambda: AIMLE(TopK(1), noise=Gumbel(), target=0.0), "target > 0"),
        (lambda: AIMLE(TopK(1), noise=Gumbel(), alpha=0.0), "above 0 with PerInstanceRule"),
        (lambda: LPGD(TopK(1), tau=float("inf")), "one of them finite"),
        (lambda: LPGD(TopK(1), tau=1.0, relaxation=lambda x: x), "finite rho"),
        (lambda: Perturbed(ArgMax(), noise=SumOfGamma(2), samples=3), "SumOfGamma has no density"),
        (lambda: SoftSub(7)(torch.zeros(N)), "lower k"),
        (lambda: Perturbed(ArgMax(), noise=NoNoise(), samples=3), r"Gumbel\(\), Normal\(\) or Logistic\(\)"),
    ],
)
def test_invalid_options_raise(build: object, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        build()  # type: ignore[operator]
    assert isinstance(caught.value, SetgradError)


def test_state_on_another_device_raises():
    with pytest.raises(OptionError, match=r"layer.to\('meta'\)"):
        AIMLE(TopK(1), noise=Gumbel())(torch.zeros(2, 5, device="meta"))


def test_checkpoint_repeats_noise_of_the_global_generator(seeded) -> None:
    theta, weights = draws(N), draws(N)

    def slope(layer: torch.nn.Module, *, again: bool) -> Tensor:
        x = theta.clone().requires_grad_()

        def loss(x: Tensor) -> Tensor:
            return (layer(x).mean(0) * weights).exp().sum()

        with seeded(5):
            (checkpoint(loss, x, use_reentrant=False) if again else loss(x)).backward()
        assert x.grad is not None
        return x.grad

    layer = SoftSub(2, samples=2)
    assert torch.equal(slope(layer, again=True), slope(layer, again=False))
    # The README warns of this; if it ever works, remove the warning.
    own = [SoftSub(2, samples=2, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert not torch.allclose(slope(own[0], again=True), slope(own[1], again=False), rtol=1e-3)
