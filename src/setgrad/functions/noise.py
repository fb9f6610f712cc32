"""Where the random numbers of an estimator come from.

`FreshNoise` draws new numbers at every call, for training. `ItemNoise` gives every item of a batch numbers that follow
from the item itself: a set then gets the same result alone, in any batch, in any order and on any device.
"""

from __future__ import annotations

import abc
import copy
from typing import final

import torch
from torch import Tensor

from setgrad.errors import ShapeError
from setgrad.sets import Layout, Sets, segment_order

# Rows hashed at once: bounds the temporary 64-bit copy of the features.
_ROWS = 2**15


class NoiseSource(abc.ABC):
    """A source of independent numbers, one row for each sample and one column for each item.

    `symmetric` says whether `symmetrise` does anything.
    """

    symmetric: bool = False

    @abc.abstractmethod
    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Numbers in [0, 1), `(samples, total)`."""

    @abc.abstractmethod
    def symmetrise(self, x: Tensor) -> Tensor:
        """Make a result `(total,)` equal for items that cannot be told apart."""

    def part(self, items: Sets) -> NoiseSource | None:
        """The same for some of the sets, whose items are given by their flat numbers; None if it cannot be had."""
        return None

    def normal(self, layout: Layout, samples: int) -> Tensor:
        """Standard normal numbers, `(samples, total)`."""
        # Half a unit in the last place away from 0 and 1 keeps the inverse finite; in float64 all devices agree on it.
        u = self.uniform(layout, samples).double().clamp(2**-25, 1 - 2**-25)
        return torch.special.ndtri(u)


@final
class FreshNoise(NoiseSource):
    """New numbers at every call, from a generator of its own.

    Example:
        >>> noise = FreshNoise(seed=0)
        >>> layout = Layout.from_lengths([2, 1])
        >>> noise.uniform(layout, 5).shape
        torch.Size([5, 3])
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Draw from the generator of the layout's device."""
        return torch.rand(samples, layout.total, generator=self.generator(layout.device), device=layout.device)

    def generator(self, device: torch.device) -> torch.Generator:
        """Where the numbers on a device come from."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def symmetrise(self, x: Tensor) -> Tensor:
        """Leave the result as it is."""
        return x

    def part(self, items: Sets) -> FreshNoise:
        """New numbers have no owner."""
        return self

    def twin(self) -> FreshNoise:
        """Another source that will give the same numbers as this one from now on."""
        other = FreshNoise(self.seed)
        other._generators = {device: generator.clone_state() for device, generator in self._generators.items()}
        return other


@final
class FrozenNoise(NoiseSource):
    """The first numbers that another noise gave, again at every call: an iteration then follows one smooth map."""

    def __init__(self, noise: NoiseSource) -> None:
        self.noise, self.symmetric = noise, noise.symmetric
        self._drawn: dict[tuple[str, int], tuple[Layout, Tensor]] = {}

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Draw once for each number of samples."""
        return self._keep("uniform", layout, samples)

    def normal(self, layout: Layout, samples: int) -> Tensor:
        """Draw once for each number of samples."""
        return self._keep("normal", layout, samples)

    def symmetrise(self, x: Tensor) -> Tensor:
        """As the other noise does."""
        return self.noise.symmetrise(x)

    def part(self, items: Sets) -> FrozenNoise | None:
        """The numbers of these items."""
        noise = self.noise.part(items)
        if noise is None:
            return None
        other = FrozenNoise(noise)
        other._drawn = {key: (items.layout, drawn[:, items.values]) for key, (_, drawn) in self._drawn.items()}
        return other

    def _keep(self, kind: str, layout: Layout, samples: int) -> Tensor:
        key = (kind, samples)
        if key not in self._drawn:
            draw = self.noise.uniform if kind == "uniform" else self.noise.normal
            self._drawn[key] = (layout, draw(layout, samples))
        known, numbers = self._drawn[key]
        if not known.same_as(layout):
            raise ShapeError("FrozenNoise noise belongs to the sets it was first asked about; make one for these sets")
        return numbers


@final
class ItemNoise(NoiseSource):
    """Numbers that follow from the seed, the item and, among identical items of a set, a running count.

    Identical items get different numbers, so that the draws stay independent; `symmetrise` then averages over
    them, so that the result still does not depend on the order.

    Example:
        >>> sets = Sets.from_list([[[1.0], [2.0], [1.0]]])
        >>> swapped = Sets.from_list([[[2.0], [1.0], [1.0]]])
        >>> a, b = ItemNoise(sets).uniform(sets.layout, 3), ItemNoise(swapped).uniform(swapped.layout, 3)
        >>> torch.equal(a[:, 1], b[:, 0])
        True
    """

    symmetric = True

    def __init__(self, sets: Sets, seed: int = 0) -> None:
        self.layout = sets.layout
        keys = _hash_items(sets.values)
        order = segment_order(keys, sets, descending=False)
        ids, sorted_keys = sets.layout.ids[order], keys[order]
        first = torch.ones_like(ids, dtype=torch.bool)
        first[1:] = (ids[1:] != ids[:-1]) | (sorted_keys[1:] != sorted_keys[:-1])
        place = torch.arange(len(order), device=order.device)
        start = torch.where(first, place, torch.zeros_like(place)).cummax(0).values if len(order) else place
        count = torch.empty_like(order).scatter(0, order, place - start)
        self._group = torch.empty_like(order).scatter(0, order, first.long().cumsum(0) - 1)
        self._keys = _mix(keys + _mix(count + _mix(torch.full_like(count, seed))))

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Hash the item's key with the number of the sample."""
        if not layout.same_as(self.layout):
            raise ShapeError("ItemNoise belongs to the sets it was made from; make one for these sets")
        rows = torch.arange(samples, device=self._keys.device)[:, None]
        # The upper 24 of 64 bits: as many as float32 can hold in [0, 1).
        return (_shift(_mix(self._keys + _mix(rows + 1)), 40)).float() * 2.0**-24

    def symmetrise(self, x: Tensor) -> Tensor:
        """Give identical items of a set the mean of their results."""
        if not len(x):
            return x
        # One by one, half precision counts to 256 and no further.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        total = torch.zeros_like(wide).index_add(0, self._group, wide)
        count = torch.zeros_like(wide).index_add(0, self._group, torch.ones_like(wide))
        return (total / count)[self._group].to(x.dtype)

    def part(self, items: Sets) -> ItemNoise:
        """The keys of these items, and who is identical with whom."""
        other = copy.copy(self)
        other.layout, other._keys = items.layout, self._keys[items.values]
        other._group = self._group[items.values].unique(return_inverse=True)[1]
        return other


def _hash_items(values: Tensor) -> Tensor:
    """One 64-bit number for each item, a function of its features alone."""
    flat = values.detach()[:, None].flatten(1)
    column = _mix(torch.arange(1, flat.shape[1] + 1, device=flat.device))
    # Adding 0 turns -0.0 into 0.0; float64 holds every narrower type, so the type does not matter.
    parts = [_mix((part.double() + 0.0).view(torch.int64) + column).sum(1) for part in flat.split(_ROWS)]
    return _mix(torch.cat(parts)) if parts else torch.zeros(0, dtype=torch.int64, device=values.device)


def _mix(x: Tensor) -> Tensor:
    """Scramble 64-bit integers (the finaliser of SplitMix64); products wrap around."""
    x = x + -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without copying the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
