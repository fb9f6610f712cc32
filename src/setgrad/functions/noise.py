"""Sources of the random numbers that estimators draw.

`FreshNoise` draws new numbers at every call, for training. `ItemNoise` derives the numbers of an item from its
features, so that a set gets the same result alone, in any batch, in any order and on any device. `FrozenNoise` repeats
one draw.
"""

from __future__ import annotations

import abc
import copy
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import ShapeError
from setgrad.sets import Layout, Sets, segment_order

# Number of items hashed at once, which bounds the temporary 64-bit copy of the features.
_ROWS = 2**15


class NoiseSource(abc.ABC):
    """A source of independent random numbers, one row per sample and one column per item.

    Attributes:
        symmetric: Whether `symmetrise` changes anything.
    """

    symmetric: bool = False

    @abc.abstractmethod
    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Return uniform numbers in [0, 1), `(samples, total)`."""

    def symmetrise(self, x: Tensor) -> Tensor:
        """Return a result `(total,)` made equal for items that cannot be distinguished; by default unchanged."""
        return x

    def restrict(self, items: Sets) -> NoiseSource | None:
        """Return the source for some of the sets, from the flat indices of their items, or None if there is none."""
        return None

    def normal(self, layout: Layout, samples: int) -> Tensor:
        """Return standard normal numbers, `(samples, total)`."""
        # Half a unit in the last place away from 0 and 1 keeps the inverse finite. In float64 all devices agree on it.
        u = self.uniform(layout, samples).double().clamp(2**-25, 1 - 2**-25)
        return torch.special.ndtri(u)


@final
class FreshNoise(NoiseSource):
    """New numbers at every call, from a private generator for each device.

    Args:
        seed: Seed of the generators.

    Examples:
        >>> noise = FreshNoise(seed=0)
        >>> layout = Layout.from_lengths([2, 1])
        >>> noise.uniform(layout, 5).shape
        torch.Size([5, 3])
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Return new uniform numbers in [0, 1), `(samples, total)`."""
        return torch.rand(samples, layout.total, generator=self.generator(layout.device), device=layout.device)

    def of_sets(self, layout: Layout, samples: int) -> Tensor:
        """Return new uniform numbers in [0, 1), one of each set, `(samples, sets)`."""
        return torch.rand(samples, len(layout), generator=self.generator(layout.device), device=layout.device)

    def generator(self, device: torch.device) -> torch.Generator:
        """Return the generator for a device."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def restrict(self, items: Sets) -> FreshNoise:
        """Return this source, because new numbers belong to no set."""
        return self

    def clone(self) -> FreshNoise:
        """Return another source that will draw the same numbers as this one from now on."""
        other = FreshNoise(self.seed)
        other._generators = {device: generator.clone_state() for device, generator in self._generators.items()}
        return other


@final
class NoiseOfSome(NoiseSource):
    """New numbers for some sets of a batch: those that they have when numbers are drawn for the whole batch.

    Args:
        noise: Draws for the whole batch.
        whole: The sizes of the sets of the batch.
        rows: The numbers of the sets in the batch, ascending.
    """

    def __init__(self, noise: FreshNoise, whole: Layout, rows: np.ndarray) -> None:
        self.noise, self.whole = noise, whole
        self.rows = torch.as_tensor(rows, device=whole.device)
        is_own = np.zeros(len(whole), dtype=bool)
        is_own[rows] = True
        self.items = torch.as_tensor(np.flatnonzero(np.repeat(is_own, whole.host_lengths)), device=whole.device)

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Return new uniform numbers in [0, 1), `(samples, total)`, for the items of these sets."""
        return self.noise.uniform(self.whole, samples)[:, self.items]

    def of_sets(self, layout: Layout, samples: int) -> Tensor:
        """Return new uniform numbers in [0, 1), one of each of these sets, `(samples, sets)`."""
        return self.noise.of_sets(self.whole, samples)[:, self.rows]


@final
class FrozenNoise(NoiseSource):
    """The first numbers that another source draws, repeated at every call, so that an iteration has one fixed map.

    Args:
        noise: The other source.
    """

    def __init__(self, noise: NoiseSource) -> None:
        self.noise, self.symmetric = noise, noise.symmetric
        self._drawn: dict[tuple[str, int], tuple[Layout, Tensor]] = {}

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        """Return the uniform numbers of the first call with this number of samples.

        Raises:
            ShapeError: If that call was for sets of other sizes.
        """
        return self._draw_once("uniform", layout, samples)

    def normal(self, layout: Layout, samples: int) -> Tensor:
        """Return the standard normal numbers of the first call with this number of samples.

        Raises:
            ShapeError: If that call was for sets of other sizes.
        """
        return self._draw_once("normal", layout, samples)

    def symmetrise(self, x: Tensor) -> Tensor:
        """Return the result as the other source symmetrises it."""
        return self.noise.symmetrise(x)

    def restrict(self, items: Sets) -> FrozenNoise | None:
        """Return a source with the numbers of these items, or None if the other source cannot be restricted."""
        noise = self.noise.restrict(items)
        if noise is None:
            return None
        other = FrozenNoise(noise)
        other._drawn = {key: (items.layout, drawn[:, items.values]) for key, (_, drawn) in self._drawn.items()}
        return other

    def _draw_once(self, kind: str, layout: Layout, samples: int) -> Tensor:
        key = (kind, samples)
        if key not in self._drawn:
            draw = self.noise.uniform if kind == "uniform" else self.noise.normal
            self._drawn[key] = (layout, draw(layout, samples))
        drawn_for, numbers = self._drawn[key]
        if drawn_for is not layout and not drawn_for.same_as(layout):
            raise ShapeError("FrozenNoise belongs to the sets of its first call; make a new one for these sets")
        return numbers


@final
class ItemNoise(NoiseSource):
    """Numbers that follow from the seed, the item and, among identical items of a set, a running count.

    Identical items get different numbers, so that the draws stay independent. `symmetrise` then averages over identical
    items, so that the result does not depend on the order.

    Args:
        sets: The sets that the numbers are for.
        seed: Seed of the hash.

    Examples:
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
        """Return uniform numbers in [0, 1), `(samples, total)`: hashes of the item's key and the sample's number.

        Raises:
            ShapeError: If the source was made for sets of other sizes.
        """
        if layout is not self.layout and not layout.same_as(self.layout):
            raise ShapeError("ItemNoise belongs to the sets it was made for; make one for these sets")
        rows = torch.arange(samples, device=self._keys.device)[:, None]
        # The upper 24 of 64 bits: as many as float32 can represent in [0, 1).
        return (_shift(_mix(self._keys + _mix(rows + 1)), 40)).float() * 2.0**-24

    def symmetrise(self, x: Tensor) -> Tensor:
        """Return the mean result of identical items of a set."""
        if not len(x):
            return x
        # In single precision, because a running sum in half precision stops counting at 256.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        total = torch.zeros_like(wide).index_add(0, self._group, wide)
        count = torch.zeros_like(wide).index_add(0, self._group, torch.ones_like(wide))
        return (total / count)[self._group].to(x.dtype)

    def restrict(self, items: Sets) -> ItemNoise:
        """Return a source with the keys of these items."""
        other = copy.copy(self)
        other.layout, other._keys = items.layout, self._keys[items.values]
        other._group = self._group[items.values].unique(return_inverse=True)[1]
        return other


def _hash_items(values: Tensor) -> Tensor:
    """Return one 64-bit number for each item, a function of its features only."""
    flat = values.detach()[:, None].flatten(1)
    column = _mix(torch.arange(1, flat.shape[1] + 1, device=flat.device))
    # Adding 0 turns -0.0 into 0.0. float64 represents every narrower type, so the type does not matter.
    hashes = [_mix((chunk.double() + 0.0).view(torch.int64) + column).sum(1) for chunk in flat.split(_ROWS)]
    return _mix(torch.cat(hashes)) if hashes else torch.zeros(0, dtype=torch.int64, device=values.device)


def _mix(x: Tensor) -> Tensor:
    """Scramble 64-bit integers (the finaliser of SplitMix64); products wrap around."""
    x = x + -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without copying the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
