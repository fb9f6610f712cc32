"""Every solver, estimator and law on a GPU: what the CPU gives, and no waiting where none was agreed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from setgrad.discrete import (
    AIMLE,
    IMLE,
    SFESS,
    Antithetic,
    Custom,
    FenchelYoung,
    Gumbel,
    HostPool,
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
    hamming,
    loglog_rank_loss,
    recall_loss,
    regret,
)
from setgrad.errors import OptionError
from tests.discrete.estimators import CASES, Case, N
from tests.discrete.laws import LAWS, Law
from tests.discrete.oracles import Fixed, draws
from tests.discrete.problems import PROBLEMS, Problem
from tests.waits import count_syncs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
NOISES: list[Noise] = [Gumbel(), Normal(), SumOfGamma(2), Antithetic(Gumbel()), Tempered(Normal(), 2.0)]


@dataclass(frozen=True, eq=False)
class FromCPU(Noise):
    """Draws on the CPU, from a seed, and moves: torch's generators differ between devices."""

    noise: Noise

    def draw(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        seeded = torch.Generator().manual_seed(0)
        return self.noise.draw(shape, dtype=dtype, device=torch.device("cpu"), generator=seeded).to(device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_solvers_agree(problem: Problem, dtype: torch.dtype) -> None:
    for theta in (problem.draw(20, seed=1, dtype=dtype), problem.draw_ties(20, seed=2).to(dtype)):
        solver = problem.solver
        here, there = solver.run(theta), solver.run(theta.cuda())
        assert there.value.is_cuda
        assert there.status.is_cuda
        assert there.value.dtype == dtype
        assert torch.equal(there.value.cpu(), here.value)
        assert torch.equal(there.status.cpu(), here.status)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_masks_agree(problem: Problem) -> None:
    theta = problem.draw(3, seed=6)
    theta[1].view(-1)[0] = torch.nan
    solver = problem.build(on_failure="mask")
    here, there = solver.run(theta), solver.run(theta.cuda())
    assert torch.equal(there.value.cpu(), here.value)
    assert torch.equal(there.status.cpu(), here.status)


def test_parameters_on_either_device() -> None:
    theta, weights = draws(4, 5), torch.tensor([3, 1, 4, 2, 2])
    truth = Knapsack(weights, 6)(theta)
    for parameter, input_ in itertools.product((weights, weights.cuda()), (theta, theta.cuda())):
        assert torch.equal(Knapsack(parameter, torch.tensor(6).to(parameter.device))(input_).cpu(), truth)
        real = Knapsack(0.1 * parameter.double(), 0.6)(input_)
        assert torch.equal(real.cpu(), Knapsack(0.1 * weights.double(), 0.6)(theta))


def test_functions_that_answer_on_the_cpu() -> None:
    theta = draws(4, 5)
    solver = Custom(lambda t: TopK(2)(t.cpu()))
    assert torch.equal(solver(theta.cuda()).cpu(), TopK(2)(theta))
    pooled = Custom(lambda c: c == c.max(), pool=HostPool(2))
    assert torch.equal(pooled(theta.cuda()).cpu(), TopK(1)(theta))


def answer(layer: nn.Module, theta: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    leaf = theta.clone().requires_grad_()
    z = layer(leaf)
    (grad,) = torch.autograd.grad(((z - b) ** 2).sum(), leaf)
    return z.detach().cpu(), grad.cpu()


@pytest.fixture
def same_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise and uniform draws from the CPU, whatever the device."""
    for kind in (Gumbel, Normal, SumOfGamma, Antithetic, Tempered):
        monkeypatch.setattr(kind, "sample", _sample)
    rand = torch.rand

    def on_cpu(shape: object, *, device: object = None, generator: object = None, dtype: object = None) -> Tensor:
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


@pytest.mark.usefixtures("same_chance")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_estimators_agree(case: Case) -> None:
    theta, b = draws(5, N), draws(5, N, seed=1)
    layers = {device: case.build() for device in ("cpu", "cuda")}
    for layer in layers.values():
        layer.generator = None
    found = {device: answer(layer.to(device), theta.to(device), b.to(device)) for device, layer in layers.items()}
    for here, there in zip(found["cpu"], found["cuda"], strict=True):
        torch.testing.assert_close(there, here, **CLOSE)
    for here, there in zip(layers["cpu"].buffers(), layers["cuda"].buffers(), strict=True):
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here)


@pytest.mark.usefixtures("same_chance")
def test_losses_with_solvers_agree() -> None:
    theta, b, plane = draws(5, N), TopK(2)(draws(5, N, seed=1)), PlaneProjection(torch.ones(N))
    makes: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda x, t: FenchelYoung(TopK(2), noise=Gumbel(), samples=4)(x, t).sum(),
        lambda x, t: SFESS(2, samples=4)(x, lambda z: ((z - t) ** 2).sum(-1)).sum(),
        lambda x, t: hamming(Identity(TopK(2), margin=InformedMargin(0.2))(x, target=t), t).sum(),
        lambda x, t: regret(Identity(TopK(2), projection=plane)(x), x.detach() + t, solver=TopK(2)).sum(),
        lambda x, t: recall_loss(Identity(Ranking())(x), t, k=2).sum(),
        lambda x, t: loglog_rank_loss(Identity(Ranking())(x), t).sum(),
    ]
    for make in makes:
        found = []
        for device in ("cpu", "cuda"):
            leaf = theta.to(device).requires_grad_()
            value = make(leaf, b.to(device))
            found.append((value.detach().cpu(), torch.autograd.grad(value, leaf)[0].cpu()))
        torch.testing.assert_close(found[1], found[0], **CLOSE)


@pytest.mark.usefixtures("same_chance")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_laws_agree(law: Law) -> None:
    logits, others = law.draw(3), law.draw(3, seed=1)
    found: dict[str, list[Tensor]] = {}
    for device in ("cpu", "cuda"):
        leaf = logits.to(device).requires_grad_()
        q, p = law.build(leaf), law.build(others.to(device))
        z = q.sample(7)
        values = [q.log_prob(z), q.marginals, q.entropy(), q.kl(p)]
        (grad,) = torch.autograd.grad(sum(value.square().sum() for value in values), leaf)
        found[device] = [part.detach() for part in (z, q.mode, *values, grad)]
    for here, there in zip(found["cpu"], found["cuda"], strict=True):
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here, **CLOSE)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_samples_have_the_law_with_a_generator_of_the_device(law: Law) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    q = law.build(law.draw().cuda())
    draws_ = 4000
    z = q.sample(draws_, generator=generator).cpu()
    error = (z.var(0) / draws_).sqrt()
    assert ((z.mean(0) - q.marginals.cpu()).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_noise_has_its_law_with_a_generator_of_the_device(noise: Noise) -> None:
    there = noise.sample((40_000, 2), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    here = noise.sample((40_000, 2), generator=torch.Generator().manual_seed(0))
    assert there.is_cuda
    assert abs(there.mean().item() - here.mean().item()) < 0.05
    assert there.std().item() == pytest.approx(here.std().item(), rel=0.03)
    with pytest.raises(OptionError, match="generator lives on cpu"):
        noise.sample((2,), device="cuda", generator=torch.Generator())


def test_margins_are_drawn_on_the_device() -> None:
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
@pytest.mark.parametrize("case", [case for case in CASES if not case.name.startswith("SIMPLE")], ids=str)
def test_a_masked_training_step_never_waits(case: Case) -> None:
    """But for relaxations, which look once at theta to refuse what has no answer."""
    theta = draws(5, N).cuda().requires_grad_()
    options = {"solver": TopK(2, on_failure="mask")} if case.solves else {}
    layer = case.build(**options).cuda()
    layer.generator = torch.Generator("cuda").manual_seed(0)

    def step() -> None:
        torch.autograd.grad(layer(theta).sum(), theta)

    step()
    assert count_syncs(step) == (0 if case.solves else 1)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_failure_costs_one_wait_for_each_call_of_the_solver() -> None:
    theta = draws(5, N).cuda().requires_grad_()
    layer = IMLE(TopK(2), noise=Fixed(draws(3, 5, N, seed=1).cuda()), samples=3, central=True)
    layer(theta).sum().backward()
    assert count_syncs(lambda: layer(theta).sum().backward()) == 2


@pytest.mark.parametrize("k", [1, 100])
def test_many_items(k: int) -> None:
    logits = 3 * torch.randn(2, 10_000, generator=torch.Generator().manual_seed(0))
    here, there = KSubset(logits.double(), k), KSubset(logits.double().cuda(), k)
    torch.testing.assert_close(there.marginals.cpu(), here.marginals, rtol=1e-8, atol=1e-12)
    assert (there.sample(2, generator=torch.Generator("cuda").manual_seed(0)).sum(-1) == k).all()
