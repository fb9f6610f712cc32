"""Noise against its distribution, in closed form and from SciPy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from setgrad.discrete.noise import (
    Antithetic,
    Gumbel,
    Logistic,
    Noise,
    NoNoise,
    Normal,
    PairedNoise,
    SumOfGamma,
    Tempered,
)
from setgrad.discrete.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    Schedule,
    ScheduledTemperature,
)
from setgrad.errors import OptionError

NOISES = [
    Gumbel(),
    Normal(),
    Logistic(),
    NoNoise(),
    SumOfGamma(10),
    SumOfGamma(1, 3),
    SumOfGamma(10, swapped=True),
    Antithetic(Gumbel()),
    Antithetic(Normal()),
    Tempered(Gumbel(), 0.5),
    Tempered(Antithetic(Normal()), ScheduledTemperature(2.0)),
]
every_noise = pytest.mark.parametrize("noise", NOISES, ids=str)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@every_noise
def test_every_noise_keeps_the_contract(noise: Noise) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        drawn = noise.sample((4, 2, 3), dtype=dtype, generator=seed())
        assert drawn.shape == (4, 2, 3) and drawn.dtype == dtype and drawn.isfinite().all()
    assert torch.equal(noise.sample((4, 3), generator=seed()), noise.sample((4, 3), generator=seed()))
    assert noise.sample((0, 3)).shape == (0, 3)
    with pytest.raises(OptionError, match="floating-point dtype"):
        noise.sample((2,), dtype=torch.long)
    with pytest.raises(OptionError, match="generator is on cpu"):
        noise.sample((2,), device="meta", generator=seed())


@every_noise
def test_default_is_the_global_generator(noise: Noise, seeded) -> None:
    drawn = []
    for _ in range(2):
        with seeded(1):
            drawn.append(noise.sample((4, 3)))
    assert torch.equal(*drawn)


# The Kolmogorov distance of 20,000 draws exceeds 0.0138 with probability 0.001.
DISTRIBUTIONS = [
    (Gumbel(), stats.gumbel_r()),
    (Normal(), stats.norm()),
    (Logistic(), stats.logistic()),
    (Antithetic(Logistic()), stats.logistic()),
    (Antithetic(Normal()), stats.norm()),
    (Antithetic(Gumbel()), stats.gumbel_r()),
    (Tempered(Gumbel(), 3.0), stats.gumbel_r(scale=3)),
    (SumOfGamma(3, 1), stats.gamma(1 / 3, scale=1)),  # (1/3) Gamma(1/3, scale 3)
    (SumOfGamma(3, 1, swapped=True), stats.gamma(1 / 3, scale=1 / 9)),
]


@pytest.mark.parametrize(("noise", "distribution"), DISTRIBUTIONS, ids=[str(noise) for noise, _ in DISTRIBUTIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_follows_its_distribution(noise: Noise, distribution: stats.rv_continuous, dtype: torch.dtype) -> None:
    drawn = noise.sample((20_000,), dtype=dtype, generator=seed()).double().numpy()
    # The halves of antithetic draws depend on each other; each half is independent.
    for part in (drawn[:10_000], drawn[10_000:]):
        assert stats.kstest(part, distribution.cdf).statistic < 0.0195


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("k", "terms"), [(1, 1), (5, 10), (10, 10), (10, 100)])
def test_moments_of_the_sum_of_gamma(k: int, terms: int, swapped: bool) -> None:
    drawn = SumOfGamma(k, terms, swapped).sample((50_000,), dtype=torch.float64, generator=seed())
    scales = [i / k if swapped else k / i for i in range(1, terms + 1)]
    mean = (sum(scales) / k - math.log(terms)) / k
    variance = sum(scale**2 for scale in scales) / k / k**2
    assert drawn.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / len(drawn)))
    assert drawn.var().item() == pytest.approx(variance, rel=0.1)


def test_standard_deviations_of_published_sum_of_gamma_noise() -> None:
    """k = 10, temperature 10: 3.93 by the formula, 0.62 with rate and scale swapped."""
    for swapped, deviation in ((False, 3.93), (True, 0.62)):
        noise = Tempered(SumOfGamma(10, swapped=swapped), 10.0)
        assert noise.sample((200_000,), generator=seed()).std().item() == pytest.approx(deviation, rel=0.02)


def test_k_draws_of_the_sum_of_gamma_sum_to_a_gumbel_draw() -> None:
    k = 5
    sums = SumOfGamma(k, 200).sample((10_000, k), dtype=torch.float64, generator=seed()).sum(-1)
    assert stats.kstest(sums.numpy(), stats.gumbel_r().cdf).statistic < 0.0195
    wrong = SumOfGamma(k, 200, swapped=True).sample((10_000, k), dtype=torch.float64, generator=seed()).sum(-1)
    assert stats.kstest(wrong.numpy(), stats.gumbel_r().cdf).statistic > 0.5


def test_gumbel_noise_samples_the_softmax() -> None:
    theta = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    picks = (theta + Gumbel().sample((40_000, 3), dtype=torch.float64, generator=seed())).argmax(-1)
    share, probs = torch.bincount(picks) / 40_000, theta.softmax(-1)
    assert ((share - probs).abs() <= 4 * (probs * (1 - probs) / 40_000).sqrt()).all()


@pytest.mark.parametrize(
    ("noise", "distribution"),
    [(Gumbel(), stats.gumbel_r()), (Normal(), stats.norm()), (Logistic(), stats.logistic())],
    ids=["gumbel", "normal", "logistic"],
)
@pytest.mark.parametrize("samples", [6, 7])
def test_antithetic_draws(noise: PairedNoise, distribution: stats.rv_continuous, samples: int) -> None:
    """Pairs are the quantiles of u and 1 - u; the last of an odd number has no partner."""
    drawn = Antithetic(noise).sample((samples, 1000), dtype=torch.float64, generator=seed())
    half = (samples + 1) // 2
    low, high = distribution.cdf(drawn[: samples - half].numpy()), distribution.cdf(drawn[half:].numpy())
    assert abs(low + high - 1).max() < 1e-12
    assert drawn.unique(dim=0).shape == drawn.shape


def test_antithetic_draws_lower_the_variance() -> None:
    def spread(noise: Noise) -> float:
        drawn = noise.sample((2, 20_000), dtype=torch.float64, generator=seed())
        return torch.sigmoid(drawn).mean(0).var().item()

    assert spread(Antithetic(Normal())) < 1e-10
    assert spread(Antithetic(Gumbel())) < 0.1 * spread(Gumbel())


def test_invalid_input_raises() -> None:
    with pytest.raises(OptionError, match=r"cannot draw antithetic pairs.*Logistic\(\)"):
        Antithetic(SumOfGamma(3))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"Tempered\(Antithetic"):
        Antithetic(Tempered(Gumbel(), 2.0))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="axis of samples"):
        Antithetic(Gumbel()).sample(())
    for k, terms in ((0, 10), (3, 0)):
        with pytest.raises(OptionError, match="1 or more"):
            SumOfGamma(k, terms)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(OptionError, match="temperature"):
            Tempered(Gumbel(), bad)
        with pytest.raises(OptionError, match="temperature at step 0"):
            ScheduledTemperature(bad)


SCHEDULES: list[tuple[Schedule, float, float]] = [
    (ConstantSchedule(2.0), 2.0, 2.0),
    (LinearSchedule(2.0, 0.5, 10), 2.0, 0.5),
    (CosineSchedule(2.0, 0.5, 10), 2.0, 0.5),
    (ExponentialSchedule(2.0, 0.8, 0.5), 2.0, 0.5),
]


@pytest.mark.parametrize(("schedule", "start", "end"), SCHEDULES, ids=str)
def test_schedules(schedule: Schedule, start: float, end: float) -> None:
    values = [schedule.at(step) for step in range(12)]
    assert values[0] == start and schedule.at(10**9) == pytest.approx(end)
    assert values == sorted(values, reverse=True)


def test_invalid_schedules_raise() -> None:
    for build in (LinearSchedule, CosineSchedule):
        with pytest.raises(OptionError, match="steps"):
            build(1.0, 0.0, 0)
    for factor in (0.0, 1.1):
        with pytest.raises(OptionError, match="factor"):
            ExponentialSchedule(1.0, factor)
    with pytest.raises(OptionError, match="swap them"):
        ExponentialSchedule(1.0, 0.5, 2.0)


def test_temperature_resumes_from_state_dict() -> None:
    first = ScheduledTemperature(LinearSchedule(1.0, 0.0, 10))
    noise = Tempered(Normal(), first)
    draws = []
    for _ in range(4):
        draws.append(noise.sample((5,), generator=seed()))
        first.step()
    torch.testing.assert_close(draws[2], 0.8 * draws[0])
    second = ScheduledTemperature(LinearSchedule(1.0, 0.0, 10))
    second.load_state_dict(first.state_dict())
    assert second.value == first.value == pytest.approx(0.6)
    assert all(isinstance(value, torch.Tensor) for value in first.state_dict().values())


def test_negative_temperature_of_a_schedule_raises() -> None:
    temperature = ScheduledTemperature(LinearSchedule(1.0, -1.0, 4))
    for _ in range(3):
        temperature.step()
    with pytest.raises(OptionError, match=r"at step 3 is -0\.5"):
        _ = temperature.value
