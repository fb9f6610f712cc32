"""Every solver, estimator and distribution on a GPU: the results of the CPU, without waiting for the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setgrad.discrete import (
    AIMLE,
    IMLE,
    SFESS,
    Antithetic,
    CallableSolver,
    FenchelYoung,
    Gumbel,
    Identity,
    InformedMargin,
    Knapsack,
    KSubset,
    Noise,
    NoiseMargin,
    Normal,
    PlaneProjection,
    Ranking,
    SumOfGamma,
    Tempered,
    TopK,
    WorkerPool,
    hamming_loss,
    loglog_rank_loss,
    recall_loss,
    regret,
)
from setgrad.errors import OptionError
from tests.discrete.distributions import DISTRIBUTIONS, DistributionCase
from tests.discrete.estimators import CASES, MARGINALS, Case, N
from tests.discrete.oracles import Fixed, draws
from tests.discrete.problems import PROBLEMS, Problem
from tests.waits import count_syncs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}
NOISES: list[Noise] = [Gumbel(), Normal(), SumOfGamma(2), Antithetic(Gumbel()), Tempered(Normal(), 2.0)]


@dataclass(frozen=True, eq=False)
class FromCPU(Noise):
    """Seeded draws on the CPU, moved to the device: torch's generators differ between devices."""

    noise: Noise

    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.noise.draw(empty.cpu(), torch.Generator().manual_seed(0)).to(empty.device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_solvers_agree(problem: Problem, dtype: torch.dtype) -> None:
    for theta in (problem.draw(20, seed=1, dtype=dtype), problem.draw_ties(20, seed=2).to(dtype)):
        solver = problem.solver
        cpu, gpu = solver.run(theta), solver.run(theta.cuda())
        assert gpu.value.is_cuda
        assert gpu.status.is_cuda
        assert gpu.value.dtype == dtype
        assert torch.equal(gpu.value.cpu(), cpu.value)
        assert torch.equal(gpu.status.cpu(), cpu.status)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_masks_agree(problem: Problem) -> None:
    theta = problem.draw(3, seed=6)
    theta[1].view(-1)[0] = torch.nan
    solver = problem.build(on_failure="mask")
    cpu, gpu = solver.run(theta), solver.run(theta.cuda())
    assert torch.equal(gpu.value.cpu(), cpu.value)
    assert torch.equal(gpu.status.cpu(), cpu.status)


def test_parameters_may_be_on_either_device() -> None:
    theta, weights = draws(4, 5), torch.tensor([3, 1, 4, 2, 2])
    truth = Knapsack(weights, 6)(theta)
    for parameter, input_ in itertools.product((weights, weights.cuda()), (theta, theta.cuda())):
        assert torch.equal(Knapsack(parameter, torch.tensor(6).to(parameter.device))(input_).cpu(), truth)
        real = Knapsack(0.1 * parameter.double(), 0.6)(input_)
        assert torch.equal(real.cpu(), Knapsack(0.1 * weights.double(), 0.6)(theta))


def test_callable_may_return_cpu_tensors() -> None:
    theta = draws(4, 5)
    solver = CallableSolver(lambda t: TopK(2)(t.cpu()))
    assert torch.equal(solver(theta.cuda()).cpu(), TopK(2)(theta))
    pooled = CallableSolver(lambda c: c == c.max(), pool=WorkerPool(2))
    assert torch.equal(pooled(theta.cuda()).cpu(), TopK(1)(theta))


def answer(layer: nn.Module, theta: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    leaf = theta.clone().requires_grad_()
    z = layer(leaf)
    (grad,) = torch.autograd.grad(((z - b) ** 2).sum(), leaf)
    return z.detach().cpu(), grad.cpu()


@pytest.fixture
def random_numbers_from_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw all random numbers on the CPU, whatever the device."""
    for kind in (Gumbel, Normal, SumOfGamma, Antithetic, Tempered):
        monkeypatch.setattr(kind, "sample", _sample)
    rand = torch.rand

    def on_cpu(shape: Any, *, device: Any = None, generator: object = None, dtype: Any = None) -> Tensor:
        return rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(1)).to(device)

    monkeypatch.setattr(torch, "rand", on_cpu)


def _sample(
    self: Noise,
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    return Noise.sample(FromCPU(self), shape, dtype=dtype, device=device)


@pytest.mark.usefixtures("random_numbers_from_cpu")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_estimators_agree(case: Case) -> None:
    theta, b = draws(5, N), draws(5, N, seed=1)
    layers = {device: case.build() for device in ("cpu", "cuda")}
    for layer in layers.values():
        layer.generator = None
    results = {device: answer(layer.to(device), theta.to(device), b.to(device)) for device, layer in layers.items()}
    for cpu, gpu in zip(results["cpu"], results["cuda"], strict=True):
        torch.testing.assert_close(gpu, cpu, **CLOSE)
    for cpu, gpu in zip(layers["cpu"].buffers(), layers["cuda"].buffers(), strict=True):
        assert gpu.is_cuda
        torch.testing.assert_close(gpu.cpu(), cpu)


@pytest.mark.usefixtures("random_numbers_from_cpu")
def test_losses_with_solvers_agree() -> None:
    theta, b, plane = draws(5, N), TopK(2)(draws(5, N, seed=1)), PlaneProjection(torch.ones(N))
    makes: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda x, t: FenchelYoung(TopK(2), noise=Gumbel(), samples=4)(x, t).sum(),
        lambda x, t: SFESS(2, samples=4)(x, lambda z: ((z - t) ** 2).sum(-1)).sum(),
        lambda x, t: hamming_loss(Identity(TopK(2), margin=InformedMargin(0.2))(x, target=t), t).sum(),
        lambda x, t: regret(Identity(TopK(2), projection=plane)(x), x.detach() + t, solver=TopK(2)).sum(),
        lambda x, t: recall_loss(Identity(Ranking())(x), t, k=2).sum(),
        lambda x, t: loglog_rank_loss(Identity(Ranking())(x), t).sum(),
    ]
    for make in makes:
        results = []
        for device in ("cpu", "cuda"):
            leaf = theta.to(device).requires_grad_()
            value = make(leaf, b.to(device))
            results.append((value.detach().cpu(), torch.autograd.grad(value, leaf)[0].cpu()))
        torch.testing.assert_close(results[1], results[0], **CLOSE)


@pytest.mark.usefixtures("random_numbers_from_cpu")
@pytest.mark.parametrize("case", DISTRIBUTIONS, ids=str)
def test_distributions_agree(case: DistributionCase) -> None:
    logits, others = case.draw(3), case.draw(3, seed=1)
    results: dict[str, list[Tensor]] = {}
    for device in ("cpu", "cuda"):
        leaf = logits.to(device).requires_grad_()
        q, p = case.build(leaf), case.build(others.to(device))
        z = q.sample(7)
        values = [q.log_prob(z), q.marginals, q.entropy(), q.kl(p)]
        (grad,) = torch.autograd.grad(torch.stack([value.square().sum() for value in values]).sum(), leaf)
        results[device] = [part.detach() for part in (z, q.mode, *values, grad)]
    for cpu, gpu in zip(results["cpu"], results["cuda"], strict=True):
        assert gpu.is_cuda
        torch.testing.assert_close(gpu.cpu(), cpu, **CLOSE)


@pytest.mark.parametrize("case", DISTRIBUTIONS, ids=str)
def test_samples_follow_the_distribution_with_a_gpu_generator(case: DistributionCase) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    q = case.build(case.draw().cuda())
    draws_ = 4000
    z = q.sample(draws_, generator=generator).cpu()
    error = (z.var(0) / draws_).sqrt()
    assert ((z.mean(0) - q.marginals.cpu()).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_noise_follows_its_distribution_with_a_gpu_generator(noise: Noise) -> None:
    gpu = noise.sample((40_000, 2), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    cpu = noise.sample((40_000, 2), generator=torch.Generator().manual_seed(0))
    assert gpu.is_cuda
    assert abs(gpu.mean().item() - cpu.mean().item()) < 0.05
    assert gpu.std().item() == pytest.approx(cpu.std().item(), rel=0.03)
    with pytest.raises(OptionError, match="the generator is on cpu"):
        noise.sample((2,), device="cuda", generator=torch.Generator())


def test_margins_are_drawn_on_the_gpu() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    layer = Identity(TopK(2), margin=NoiseMargin(0.2), generator=generator)
    assert (layer(draws(5, N).cuda()).sum(-1) == 2).all()


def test_half_precision_under_autocast(seeded: Callable[..., AbstractContextManager[None]]) -> None:
    with seeded(0):
        linear = nn.Linear(N, N).cuda()
    layer = AIMLE(TopK(2), noise=Gumbel(), samples=2, generator=torch.Generator("cuda").manual_seed(0)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        z = layer(linear(draws(5, N).float().cuda()))
        loss = z[..., 0].mean()
    assert z.dtype == torch.bfloat16
    loss.backward()
    assert linear.weight.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in MARGINALS], ids=str)
def test_masked_training_step_does_not_wait_for_the_gpu(case: Case) -> None:
    """Except relaxations, which check theta once for invalid input."""
    theta = draws(5, N).cuda().requires_grad_()
    layer: Any = case.build(solver=TopK(2, on_failure="mask") if case.solves else None).cuda()
    layer.generator = torch.Generator("cuda").manual_seed(0)

    def step() -> None:
        torch.autograd.grad(layer(theta).sum(), theta)

    step()
    assert count_syncs(step) == (0 if case.solves else 1)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_raise_policy_waits_once_for_each_solver_call() -> None:
    theta = draws(5, N).cuda().requires_grad_()
    layer = IMLE(TopK(2), noise=Fixed(draws(3, 5, N, seed=1).cuda()), samples=3, central=True)
    layer(theta).sum().backward()
    assert count_syncs(lambda: layer(theta).sum().backward()) == 2


@pytest.mark.parametrize("k", [1, 100])
def test_many_items(k: int) -> None:
    logits = 3 * torch.randn(2, 10_000, generator=torch.Generator().manual_seed(0))
    cpu, gpu = KSubset(logits.double(), k), KSubset(logits.double().cuda(), k)
    torch.testing.assert_close(gpu.marginals.cpu(), cpu.marginals, rtol=1e-8, atol=1e-12)
    assert (gpu.sample(2, generator=torch.Generator("cuda").manual_seed(0)).sum(-1) == k).all()
