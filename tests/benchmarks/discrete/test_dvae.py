"""The discrete VAE: its divergence is the library's, score functions are unbiased, training learns, runs resume."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main, make_parser
from benchmarks.discrete.dvae import COMPARED, plan
from benchmarks.discrete.dvae_distribution import divergence, quick_divergence, softmax_divergence
from benchmarks.discrete.dvae_methods import MODELS, NOISES, ScoreFunctionSampler, distribution_scale, make_sampler
from benchmarks.discrete.dvae_training import Autoencoder, Trial, batches, bound, examine, fit, penalty, read_parts
from benchmarks.discrete.replicas import Replicas
from setgrad.discrete import KSubset, TopK
from tests.benchmarks.helpers import Seeded, generator


@pytest.fixture
def bars_dir(tmp_path: Path) -> Path:
    """Bars in one of three rows instead of MNIST."""
    (tmp_path / "mnist").mkdir()
    images = np.zeros((120, 28, 28), np.uint8)
    for number, image in enumerate(images):
        image[9 * (number % 3) : 9 * (number % 3) + 9] = 255
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=images, x_test=images[:60])
    return tmp_path


@pytest.mark.parametrize("k", [1, 3, 10, 13])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_quick_divergence_is_that_of_the_library(k: int, spread: float) -> None:
    theta = (spread * torch.randn(5, 20, generator=generator(), dtype=torch.float64)).requires_grad_()
    for one, other in zip(
        _with_gradient(divergence, theta, k), _with_gradient(quick_divergence, theta, k), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    if k > 1 and spread:
        assert float((divergence(theta, k) - softmax_divergence(theta)).detach().abs().min()) > 0.1


def _with_gradient(function: Callable, theta: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    value = function(theta, k)
    return value.detach(), torch.autograd.grad(value.sum(), theta)[0]


@pytest.mark.parametrize("linear", [True, False])
def test_scores_of_groups_with_one_loss_are_unbiased(linear: bool, seeded: Seeded) -> None:
    images = 4000
    theta = torch.tensor([[0.3, -0.5, 0.9], [0.0, 1.0, -0.2]], dtype=torch.float64)
    weights = torch.randn(6, 6, generator=generator(), dtype=torch.float64)

    def losses(z: torch.Tensor) -> torch.Tensor:
        flat = z.flatten(-2)
        return torch.einsum("...i,ij,...j->...", flat, weights, flat) + flat.sum(-1).sin()

    exact = theta.clone().requires_grad_()
    chances = exact.softmax(-1)
    pairs = list(itertools.product(range(3), range(3)))
    points = torch.stack([torch.stack([torch.eye(3).double()[i], torch.eye(3).double()[j]]) for i, j in pairs])
    total = sum(chances[0, i] * chances[1, j] * loss for (i, j), loss in zip(pairs, losses(points), strict=True))
    torch.as_tensor(total).backward()
    many = theta.expand(1, images, 2, 3).clone().requires_grad_()
    with seeded(0):
        ScoreFunctionSampler(1, 3, linear=linear)(many, losses).sum().backward()
    assert many.grad is not None and exact.grad is not None
    error = many.grad[0].std(0) / images**0.5
    assert bool(((many.grad[0].mean(0) - exact.grad).abs() < 4 * error).all())


def test_linear_part_lowers_the_variance(seeded: Seeded) -> None:
    spreads = []
    for linear in (True, False):
        theta = torch.zeros(1, 500, 2, 4, requires_grad=True)
        with seeded(0):
            ScoreFunctionSampler(2, 2, linear=linear)(
                theta, lambda z: (z.flatten(-2) @ torch.arange(8.0)).square()
            ).sum().backward()
        assert theta.grad is not None
        spreads.append(float(theta.grad[0].std(0).mean()))
    assert spreads[0] < 0.5 * spreads[1]


@pytest.mark.parametrize("noise", list(NOISES))
def test_distribution_that_replaces_perturbed_choices(noise: str) -> None:
    draws = NOISES[noise][0](10).sample((500, 50, 20), generator=generator())
    theta = float(draws.std()) * torch.randn(50, 20, generator=generator(1))
    found = TopK(10)(theta + draws).mean(0)
    error = {c: float((KSubset(c * theta, 10).marginals - found).square().mean().sqrt()) for c in _near(noise)}
    assert error[distribution_scale(noise, 10)] < 0.08
    assert error[distribution_scale(noise, 10)] < min(
        value for c, value in error.items() if c != distribution_scale(noise, 10)
    )


def _near(noise: str) -> tuple[float, ...]:
    c = distribution_scale(noise, 10)
    return c / 2, c, 2 * c


def test_replicas_are_independent() -> None:
    both, alone = Replicas((6, 5, 3), (0, 1)), Replicas((6, 5, 3), (1,))
    x = torch.rand(2, 4, 6, generator=generator())
    torch.testing.assert_close(both(x)[1:], alone(x[1:]))
    assert not torch.allclose(both(x[:1].expand(2, -1, -1))[0], both(x[:1].expand(2, -1, -1))[1])


def test_bound_is_above_the_exact_evidence(seeded: Seeded) -> None:
    """Without weights in the encoder the distribution is the prior: no divergence, the mean error of random choices."""
    model = Autoencoder((8,), 2)
    for parameter in model.encoder.parameters():
        torch.nn.init.zeros_(parameter)
    images = torch.randint(0, 256, (40, 784), generator=generator(), dtype=torch.uint8)
    with seeded(0):
        found = bound(model, images, 10, torch.ones(2), drawn=5)
        z = KSubset(torch.zeros(2, 40, 20, 20), 10).sample(5)
        expected = model.losses(z, (images / 255.0).expand(2, -1, -1)).mean((0, 2))
    torch.testing.assert_close(found, expected.detach(), rtol=2e-3, atol=0.1)
    # With large logits the divergence is log C(20, 10) for each group, whatever the error.
    torch.nn.init.normal_(model.encoder.biases[-1], std=100.0, generator=generator())
    with seeded(0):
        assert bool((bound(model, images, 10, torch.ones(2), drawn=5) > found + 20 * 8).all())


def test_published_losses() -> None:
    theta = torch.randn(1, 2, 20, 20, generator=generator())
    trial = {name: Trial(10, "simple", 0.0, "", name, 10, 1, 1) for name in ("elbo", "papers", "papers / S")}
    torch.testing.assert_close(penalty(theta, trial["papers / S"]), penalty(theta, trial["papers"]) / 10)
    torch.testing.assert_close(penalty(theta, trial["elbo"]), divergence(theta, 10).sum(-1), atol=1e-3, rtol=1e-4)
    assert bool((penalty(theta, trial["elbo"]) > 2 * penalty(theta, trial["papers"])).all())


def test_training_distinguishes_three_images(bars_dir: Path, seeded: Seeded) -> None:
    trial = Trial(1, "gumbel-softmax", 0.6, "", "elbo", 1, 2, epochs=20, batch=10, drawn=1, widths=(64,))
    train, validation, test = read_parts(trial, bars_dir, torch.device("cpu"))
    assert len(train) == 100 and len(validation) == 20 and len(list(batches(train, trial))) == 200
    sampler = make_sampler(trial.model, k=1, option=trial.option, noise="", samples=1, replicas=2)
    with seeded(0):
        network = Autoencoder(trial.widths, 2)
        curve, published = fit(network, sampler, train, validation, trial)
        found = examine(network, sampler, validation, test, trial)
    assert len(curve) == len(published) == 20 and all(len(epoch) == 2 for epoch in curve)
    assert sampler.training and max(published[-1]) < min(published[0])
    # Without the code a third of the pixels is white at random: 784 * 0.6 nats would be the best possible.
    assert max(found["tuned"]) < 350, found


def test_plan_has_every_model_once() -> None:
    trials = plan(make_parser().parse_args(["dvae", "--seeds", "2"]))
    assert len(set(trials)) == len(trials)
    for k in (1, 10):
        assert {t.model for t in trials if t.k == k} == {name for name, model in MODELS.items() if k in model.ks}
    assert not any(t.loss == "papers" and t.k == 1 for t in trials)
    assert {t.model for t in trials if (t.k, t.epochs) == (1, 100)} == {*COMPARED, "gumbel-softmax"}
    assert {t.samples for t in trials if t.model == "aimle central"} == {1, 5, 10}
    assert all(t.samples >= MODELS[t.model].fewest and t.replicas == 2 for t in trials)


def test_command_resumes(bars_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "dvae.jsonl", tmp_path / "out.json"
    arguments = ["dvae", "--quick", "--device", "cpu", "--data-dir", str(bars_dir), "--results", str(file)]
    arguments += ["--json", str(out), "--parts", "main"]
    assert main([*arguments, "--models", "aimle central"]) == 0
    assert main([*arguments, "--models", "aimle central,gumbel-softmax,sfess"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 5 trials are in dvae.jsonl; 3 to run" in shown and "| sfess " in shown
    records = json.loads(out.read_text())["records"]
    # Two k for the first and the last method; only the first has a state, one alpha for each seed.
    assert [len(r["alpha"]) for r in sorted(records, key=lambda r: (r["model"], r["k"]))] == [1, 1, 0, 0, 0]
    assert all(0 < value < 600 for r in records for value in r["nelbo"])
    assert main(["dvae", "--quick", "--table", str(file)]) == 0
    assert "## k = 10, trained with elbo" in capsys.readouterr().out
