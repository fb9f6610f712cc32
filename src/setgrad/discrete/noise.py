"""Noise that turns a solver into a sampler: z = argmax <theta + noise, z>."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete.schedules import Temperature
from setgrad.errors import OptionError


class Noise(ABC):
    """Independent draws of one law, one for each entry of theta."""

    def sample(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw a tensor of noise.

        Args:
            shape: Shape of the result. With several samples, their axis comes first.
            dtype: A type of floats; torch's default if None. Half precision is drawn in single and rounded.
            device: Where to draw; the generator's device if None, else the CPU.
            generator: Source of chance; torch's global one if None.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise OptionError(f"noise needs a type of floats, not {dtype}; pass dtype=theta.dtype of a float theta")
        if device is None:
            device = generator.device if generator is not None else "cpu"
        place = torch.device(device)
        if generator is not None and generator.device.type != place.type:
            raise OptionError(
                f"the generator lives on {generator.device} and the noise is wanted on {place}; "
                f"use torch.Generator(device={place.type!r})"
            )
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        return self.draw(torch.Size(shape), dtype=wide, device=place, generator=generator).to(dtype)

    @abstractmethod
    def draw(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        """Draw in float32 or float64; `sample` has checked everything."""


class MirroredNoise(Noise):
    """Noise whose draws come in pairs on request: each has the law, and one is low where the other is high."""

    @abstractmethod
    def pair(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Draw and draw the mirror image, at the probabilities u and 1 - u of the law."""

    def draw(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        """One of a pair."""
        return self.pair(shape, dtype=dtype, device=device, generator=generator)[0]


@final
@dataclass(frozen=True)
class Gumbel(MirroredNoise):
    """The standard Gumbel law: mean 0.5772, variance pi^2 / 6.

    The largest entry of theta + noise is an exact sample of the categorical law softmax(theta); the k largest, in
    order, are an exact prefix of the Plackett-Luce law. As a set they do NOT follow the k-subset law of `KSubset`.

    Example:
        >>> Gumbel().sample((2, 3), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """

    def pair(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Minus the logarithm of exponential draws e; the mirror image of e is -log(1 - exp(-e))."""
        draws = torch.empty(shape, dtype=dtype, device=device).exponential_(generator=generator)
        # An exponential draw may round to 0, of which the logarithm would be infinite.
        draws = draws.clamp(min=torch.finfo(dtype).tiny)
        # Two forms of log(1 - exp(-e)), each exact where the other cancels.
        mirrored = -torch.where(draws < math.log(2), torch.log(-torch.expm1(-draws)), torch.log1p(-torch.exp(-draws)))
        return -draws.log(), -mirrored.clamp(min=torch.finfo(dtype).tiny).log()


@final
@dataclass(frozen=True)
class Logistic(MirroredNoise):
    """The law of the difference of two Gumbel draws: theta + noise is above 0 with probability sigmoid(theta).

    Example:
        >>> Logistic().sample((2, 3), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """

    def pair(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """A draw and its negative."""
        draws = torch.rand(shape, dtype=dtype, device=device, generator=generator).logit(torch.finfo(dtype).eps)
        return draws, -draws


@final
@dataclass(frozen=True)
class SumOfGamma(Noise):
    """Noise for choices of k items: (G_1 + ... + G_s - log s) / k, with G_i of a Gamma law.

    G_i has shape 1/k and SCALE k/i, which is the rate i/k. The sum of k independent draws then tends, as s grows, to
    one Gumbel draw, so that the perturbed score of a set of k items is about Gumbel. The temperature of the papers is
    a factor: `Tempered(SumOfGamma(10), 10.0)`. The standard deviation is sqrt((1 + 1/4 + ... + 1/s^2) / k): 0.39 for
    k = 10 and s = 10.

    Some published code passes k/i as the rate. That noise is much weaker (0.062 for k = 10 and s = 10, and no Gumbel
    sum). `swapped=True` reproduces it.

    Args:
        k: How many items the solver chooses.
        iterations: Terms s of the sum.
        swapped: Take k/i for the rate.

    Example:
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

    def draw(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        """Add up the terms one by one, so that memory does not grow with them."""
        concentration = torch.full(shape, 1 / self.k, dtype=dtype, device=device)
        total = torch.zeros_like(concentration)
        for i in range(1, self.iterations + 1):
            scale = i / self.k if self.swapped else self.k / i
            total += scale * torch._standard_gamma(concentration, generator=generator)
        return (total - math.log(self.iterations)) / self.k


@final
@dataclass(frozen=True)
class Normal(MirroredNoise):
    """The standard normal law.

    Example:
        >>> Normal().sample((2,), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).dtype
        torch.float64
    """

    def pair(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """A draw and its negative."""
        draws = torch.randn(shape, dtype=dtype, device=device, generator=generator)
        return draws, -draws


@final
@dataclass(frozen=True)
class NoNoise(MirroredNoise):
    """Zeros: the estimator without chance.

    Example:
        >>> NoNoise().sample((2,))
        tensor([0., 0.])
    """

    def pair(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Nothing is drawn from the generator."""
        zeros = torch.zeros(shape, dtype=dtype, device=device)
        return zeros, zeros


@final
@dataclass(frozen=True)
class Antithetic(Noise):
    """Draws in mirrored pairs along the first axis: for many functions their mean varies less than a free one.

    Sample i and sample i + ceil(S / 2) are a pair; with an odd number the last of the first half is alone. Each draw
    keeps the law of the noise (the mirror image of a Gumbel draw is Gumbel too, not its negative).

    Args:
        noise: Gumbel, Logistic, Normal or NoNoise. The law of SumOfGamma has no quantile in closed form, so it has no
            mirror.

    Example:
        >>> pairs = Antithetic(Normal()).sample((4, 3), generator=torch.Generator().manual_seed(0))
        >>> torch.equal(pairs[:2], -pairs[2:])
        True
    """

    noise: MirroredNoise

    def __post_init__(self) -> None:
        if not isinstance(self.noise, MirroredNoise):
            raise OptionError(
                f"{type(self.noise).__name__} has no mirror image; use Gumbel(), Logistic(), Normal() or NoNoise(), "
                "and put a temperature around it: Tempered(Antithetic(Gumbel()), 0.5)"
            )

    def draw(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        """Draw the first half and put the mirror images behind it."""
        if not shape:
            raise OptionError(
                "antithetic noise needs an axis of samples in front; ask for shape (samples, *theta.shape)"
            )
        half = (shape[0] + 1) // 2
        first, second = self.noise.pair(torch.Size((half, *shape[1:])), dtype=dtype, device=device, generator=generator)
        return torch.cat([first, second[: shape[0] - half]])


@final
@dataclass(frozen=True, eq=False)
class Tempered(Noise):
    """Noise times a temperature, which may follow a schedule.

    Args:
        noise: Any noise.
        temperature: A number, 0 or more, or a `Temperature` that the training loop advances. It becomes a part of the
            estimator that the noise is given to, and is saved with it.

    Example:
        >>> hot = Tempered(Normal(), 10.0).sample((1000,), generator=torch.Generator().manual_seed(0))
        >>> round(hot.std().item())
        10
    """

    noise: Noise
    temperature: float | Temperature

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, Temperature) and not 0 <= self.temperature < math.inf:
            raise OptionError(f"a temperature is a finite number, 0 or more, got {self.temperature}")

    def draw(
        self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        """Scale one draw."""
        scale = self.temperature.value if isinstance(self.temperature, Temperature) else self.temperature
        return scale * self.noise.draw(shape, dtype=dtype, device=device, generator=generator)


def temperatures(noise: Noise | None) -> list[Temperature]:
    """The scheduled temperatures within noise, from the outside in.

    Example:
        >>> temperatures(Tempered(Normal(), Temperature(2.0)))[0].value
        2.0
    """
    if not isinstance(noise, Tempered):
        return []
    own = [noise.temperature] if isinstance(noise.temperature, Temperature) else []
    return own + temperatures(noise.noise)
