"""Noise that turns a solver into a sampler: z = argmax <theta + noise, z>."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete.schedules import ScheduledTemperature
from setgrad.errors import OptionError


class Noise(ABC):
    """A distribution from which every entry of theta gets an independent draw."""

    def sample(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return a tensor of noise.

        Args:
            shape: Shape of the result. With several samples, their axis comes first.
            dtype: A floating-point type; torch's default if None. Half precision is drawn in float32 and rounded.
            device: Device of the result; the generator's device if None, or the CPU without a generator.
            generator: Source of random numbers; torch's global one if None.

        Raises:
            OptionError: If the dtype is not a floating-point type, or the generator is on another kind of device.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise OptionError(
                f"noise needs a floating-point dtype, not {dtype}; pass dtype=theta.dtype of a float theta"
            )
        if device is None:
            device = generator.device if generator is not None else "cpu"
        device = torch.device(device)
        if generator is not None and generator.device.type != device.type:
            raise OptionError(
                f"the generator is on {generator.device}, but the noise must be on {device}; "
                f"use torch.Generator(device={device.type!r})"
            )
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        return self.draw(torch.empty(tuple(shape), dtype=wide, device=device), generator).to(dtype)

    @abstractmethod
    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return noise with the shape, dtype (float32 or float64) and device of `empty`, which may be overwritten."""


class PairedNoise(Noise):
    """Noise that can draw antithetic pairs: one draw is low where the other is high, and both have the distribution."""

    @abstractmethod
    def draw_pair(self, empty: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return a draw and its antithetic partner: the quantiles of u and 1 - u, both like `empty`."""

    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the first draw of a pair."""
        return self.draw_pair(empty, generator)[0]


@final
@dataclass(frozen=True)
class Gumbel(PairedNoise):
    """The standard Gumbel distribution: mean 0.5772, variance pi^2 / 6.

    The largest entry of theta + noise is an exact sample of softmax(theta). The k largest entries, in order, are an
    exact sample of the first k places of `PlackettLuce`. As a set they do NOT follow the distribution `KSubset`.

    Examples:
        >>> Gumbel().sample((2, 3), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """

    def draw_pair(self, empty: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return -log(e) for exponential draws e, and the same for their partners -log(1 - exp(-e))."""
        tiny = torch.finfo(empty.dtype).tiny
        # An exponential draw may round to 0, whose logarithm is infinite.
        draws = empty.exponential_(generator=generator).clamp(min=tiny)
        # Two forms of log(1 - exp(-e)), each accurate where the other one cancels.
        partner = -torch.where(draws < math.log(2), torch.log(-torch.expm1(-draws)), torch.log1p(-torch.exp(-draws)))
        return -draws.log(), -partner.clamp(min=tiny).log()


@final
@dataclass(frozen=True)
class Logistic(PairedNoise):
    """The standard logistic distribution: theta + noise is above 0 with probability sigmoid(theta).

    It is the distribution of the difference of two Gumbel draws.

    Examples:
        >>> Logistic().sample((2, 3), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """

    def draw_pair(self, empty: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return a draw and its negative."""
        draws = empty.uniform_(generator=generator).logit(torch.finfo(empty.dtype).eps)
        return draws, -draws


@final
@dataclass(frozen=True)
class SumOfGamma(Noise):
    """Noise for choices of k items: (G_1 + ... + G_s - log s) / k, with Gamma-distributed G_i.

    G_i has shape 1/k and SCALE k/i, that is, rate i/k. The sum of k independent draws then converges to a Gumbel draw
    as s grows, so the perturbed score of a set of k items is approximately Gumbel. A temperature is a factor:
    `Tempered(SumOfGamma(10), 10.0)`. The standard deviation is sqrt((1 + 1/4 + ... + 1/s^2) / k): 0.39 for k = 10 and
    s = 10. Niepert et al., 2021, arXiv:2106.01798.

    Some published code passes k/i as the rate. That noise is much weaker (standard deviation 0.062 for k = 10 and
    s = 10), and its sums are not Gumbel. `swapped=True` reproduces it.

    Args:
        k: The number of items that the solver chooses.
        iterations: The number s of terms in the sum.
        swapped: Use k/i as the rate.

    Raises:
        OptionError: If k or iterations is below 1.

    Examples:
        >>> draws = SumOfGamma(10).sample((20000,), generator=torch.Generator().manual_seed(0))
        >>> round(draws.std().item(), 1)
        0.4
    """

    k: int
    iterations: int = 10
    swapped: bool = False

    def __post_init__(self) -> None:
        if self.k < 1 or self.iterations < 1:
            raise OptionError(f"k and iterations must be 1 or more, got {self.k} and {self.iterations}")

    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the sum, computed term by term so that memory does not grow with their number."""
        concentration = empty.fill_(1 / self.k)
        total = torch.zeros_like(concentration)
        for i in range(1, self.iterations + 1):
            scale = i / self.k if self.swapped else self.k / i
            total += scale * torch._standard_gamma(concentration, generator=generator)
        return (total - math.log(self.iterations)) / self.k


@final
@dataclass(frozen=True)
class Normal(PairedNoise):
    """The standard normal distribution.

    Examples:
        >>> Normal().sample((2,), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).dtype
        torch.float64
    """

    def draw_pair(self, empty: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return a draw and its negative."""
        draws = empty.normal_(generator=generator)
        return draws, -draws


@final
@dataclass(frozen=True)
class NoNoise(PairedNoise):
    """Zeros: an estimator with an axis of samples but without randomness. Nothing is drawn from the generator.

    Examples:
        >>> NoNoise().sample((2,))
        tensor([0., 0.])
    """

    def draw_pair(self, empty: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return zeros twice."""
        return empty.zero_(), empty


@final
@dataclass(frozen=True)
class Antithetic(Noise):
    """Draws in antithetic pairs along the first axis, which lowers the variance of many means.

    Samples i and i + ceil(S / 2) are a pair; with an odd number of samples, the last one of the first half has no
    partner. Each draw follows the distribution of the noise (the partner of a Gumbel draw is Gumbel, not its negative).

    Args:
        noise: Gumbel, Logistic, Normal or NoNoise. SumOfGamma has no quantile function in closed form.

    Raises:
        OptionError: If the noise cannot draw pairs.

    Examples:
        >>> pairs = Antithetic(Normal()).sample((4, 3), generator=torch.Generator().manual_seed(0))
        >>> torch.equal(pairs[:2], -pairs[2:])
        True
    """

    noise: PairedNoise

    def __post_init__(self) -> None:
        if not isinstance(self.noise, PairedNoise):
            raise OptionError(
                f"{type(self.noise).__name__} cannot draw antithetic pairs; use Gumbel(), Logistic(), Normal() or "
                "NoNoise(), and put a temperature around it: Tempered(Antithetic(Gumbel()), 0.5)"
            )

    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the first draws of all pairs, followed by their partners."""
        if not empty.ndim:
            raise OptionError("antithetic noise needs an axis of samples: use the shape (samples, *theta.shape)")
        half = (len(empty) + 1) // 2
        first, second = self.noise.draw_pair(empty[:half], generator)
        return torch.cat([first, second[: len(empty) - half]])


@final
@dataclass(frozen=True, eq=False)
class Tempered(Noise):
    """Noise times a temperature, which may follow a schedule.

    Args:
        noise: Any noise.
        temperature: A number, 0 or more, or a `ScheduledTemperature` that the training loop advances. The estimator
            with this noise saves a scheduled temperature in its `state_dict`.

    Raises:
        OptionError: If the temperature is negative or not finite.

    Examples:
        >>> hot = Tempered(Normal(), 10.0).sample((1000,), generator=torch.Generator().manual_seed(0))
        >>> round(hot.std().item())
        10
    """

    noise: Noise
    temperature: float | ScheduledTemperature

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, ScheduledTemperature) and not 0 <= self.temperature < math.inf:
            raise OptionError(f"a temperature must be finite and 0 or more, got {self.temperature}")

    @property
    def scale(self) -> float:
        """The current temperature."""
        return self.temperature.value if isinstance(self.temperature, ScheduledTemperature) else self.temperature

    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a scaled draw."""
        return self.scale * self.noise.draw(empty, generator)


def scheduled_temperatures(noise: Noise | None) -> list[ScheduledTemperature]:
    """Return the scheduled temperatures within noise, the outermost first.

    Examples:
        >>> scheduled_temperatures(Tempered(Normal(), ScheduledTemperature(2.0)))[0].value
        2.0
    """
    if not isinstance(noise, Tempered):
        return []
    own = [noise.temperature] if isinstance(noise.temperature, ScheduledTemperature) else []
    return own + scheduled_temperatures(noise.noise)
