"""What an item encoder is: a module from the items of each set to features, one row for each item."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets import Sets


class ItemEncoder(nn.Module, abc.ABC):
    """Maps `Sets` to features `(total, out_dim)`. An item's features may depend on the other items of its set.

    Encoders are equivariant: if the items of a set change places, so do their features, and other sets of the batch
    make no difference.
    """

    out_dim: int
    # Whether items are names, such as the letters of a sequence: no mean or scale of them means anything.
    reads_tokens: bool = False
    # Whether the features of an item follow from the item alone, so that a set may be read in pieces.
    itemwise: bool = True

    @abc.abstractmethod
    def forward(self, sets: Sets) -> Tensor:
        """Features of every item, `(total, out_dim)`."""


@final
class ItemWise(ItemEncoder):
    """Any module applied to each item on its own.

    Example:
        >>> phi = ItemWise(nn.Linear(2, 8), in_dim=2)
        >>> phi(Sets.from_list([[[0.0, 1.0]]])).shape
        torch.Size([1, 8])
    """

    def __init__(self, module: nn.Module, in_dim: int | Sequence[int]) -> None:
        super().__init__()
        self.module, self.shape = module, item_shape(in_dim)
        kind = place_of(module)
        modes = {part: part.training for part in module.modules()}
        # As in prediction: one item must not move running statistics, nor be too few for them.
        module.eval()
        try:
            with torch.no_grad():
                example = module(torch.zeros(1, *self.shape, dtype=kind.dtype, device=kind.device))
        except (RuntimeError, IndexError) as error:
            raise ShapeError(
                f"phi cannot read items of shape {self.shape}; make its input fit them: {error}"
            ) from error
        finally:
            for part, training in modes.items():
                part.training = training
        if not isinstance(example, Tensor) or example.dim() != 2 or len(example) != 1:
            given = tuple(example.shape) if isinstance(example, Tensor) else f"a {type(example).__name__}"
            raise ShapeError(f"phi must map items (total, ...) to features (total, width); one item gave {given}")
        self.out_dim = example.shape[1]

    def forward(self, sets: Sets) -> Tensor:
        """Apply the module to all items at once."""
        check_shape(sets, self.shape)
        weight = next(self.module.parameters(), None)
        # Whole numbers may be names, which a module may read as they are.
        if weight is None or not sets.dtype.is_floating_point:
            return self.module(sets.values)
        return self.module(sets.values.to(weight.dtype))


def place_of(module: nn.Module) -> Tensor:
    """A tensor of a module, for its device and type; one on the CPU for a module without any."""
    return next(module.parameters(), next(module.buffers(), torch.zeros(0)))


def item_shape(in_dim: int | Sequence[int]) -> tuple[int, ...]:
    """Shape of one item, from a number of features or a shape."""
    shape = (in_dim,) if isinstance(in_dim, int) else tuple(in_dim)
    if any(size < 1 for size in shape):
        raise OptionError(f"items need at least one feature, but in_dim is {in_dim}")
    return shape


def check_shape(sets: Sets, shape: tuple[int, ...]) -> None:
    """Refuse items that an encoder was not made for."""
    if tuple(sets.item_shape) != shape:
        raise ShapeError(
            f"this model reads items of shape {shape}, but the sets hold items of {tuple(sets.item_shape)}"
        )


def flat_items(sets: Sets, shape: tuple[int, ...]) -> Tensor:
    """Items as rows of numbers, after a check that they are what the encoder was made for."""
    check_shape(sets, shape)
    return sets.values.reshape(len(sets.values), math.prod(shape))


def flat_quantities(sets: Sets, shape: tuple[int, ...], weight: Tensor) -> Tensor:
    """The same in the type of a weight; whole numbers, which may be names, are refused."""
    items = flat_items(sets, shape)
    if not items.dtype.is_floating_point:
        raise DataError(
            f"this encoder reads real numbers, and the items are {items.dtype}; if they are quantities, such as the "
            "bytes of an image, give sets.to(torch.float32)"
        )
    return items.to(weight.dtype)
