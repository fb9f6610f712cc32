"""The base class of item encoders, a wrapper for plain modules, and helpers that read items."""

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
    """A module that maps `Sets` to one row of features for each item, `(total, out_dim)`.

    The features of an item may depend on the other items of its set. Item encoders are permutation equivariant: when
    the items of a set are reordered, so are their features. The other sets of the batch make no difference. `forward`
    raises a ShapeError for items of another shape than the encoder was built for.

    Attributes:
        out_dim: Number of features of an item.
        reads_tokens: Whether items are tokens, such as the letters of a sequence, which must not be standardised.
        itemwise: Whether the features of an item depend on that item alone, so that a set may be read in chunks.
    """

    out_dim: int
    reads_tokens: bool = False
    itemwise: bool = True

    @abc.abstractmethod
    def forward(self, sets: Sets) -> Tensor:
        """Return the features of every item, `(total, out_dim)`."""


@final
class ItemWise(ItemEncoder):
    """An item encoder that applies a module to each item independently.

    Args:
        module: Any module from `(total, *item_shape)` to `(total, features)`.
        in_dim: Number of features of an item, or its shape.

    Raises:
        ShapeError: If the module cannot read such items, or does not return one row for each item.

    Examples:
        >>> phi = ItemWise(nn.Linear(2, 8), in_dim=2)
        >>> phi(Sets.from_list([[[0.0, 1.0]]])).shape
        torch.Size([1, 8])
    """

    def __init__(self, module: nn.Module, in_dim: int | Sequence[int]) -> None:
        super().__init__()
        self.module, self.shape = module, item_shape(in_dim)
        reference = first_tensor(module)
        modes = {part: part.training for part in module.modules()}
        # In evaluation mode, so that this call does not update running statistics, which also need several items.
        module.eval()
        try:
            with torch.no_grad():
                output = module(torch.zeros(1, *self.shape, dtype=reference.dtype, device=reference.device))
        except (RuntimeError, IndexError) as error:
            raise ShapeError(
                f"phi cannot read items of shape {self.shape}; make its input fit them: {error}"
            ) from error
        finally:
            for part, training in modes.items():
                part.training = training
        if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != 1:
            result = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ShapeError(f"phi must map items (total, ...) to features (total, dim); for one item it gave {result}")
        self.out_dim = output.shape[1]

    def forward(self, sets: Sets) -> Tensor:
        """Return the output of the module for all items, `(total, out_dim)`."""
        check_item_shape(sets, self.shape)
        values = sets.values
        weight = next(self.module.parameters(), None)
        # Integers may be tokens, so the module gets them unchanged.
        if weight is None or not values.dtype.is_floating_point:
            return self.module(values)
        return self.module(values.to(weight.dtype))


def first_tensor(module: nn.Module) -> Tensor:
    """Return a parameter or buffer, for its device and dtype; an empty CPU tensor if the module has neither."""
    return next(module.parameters(), next(module.buffers(), torch.zeros(0)))


def item_shape(in_dim: int | Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one item, from a number of features or a shape."""
    shape = (in_dim,) if isinstance(in_dim, int) else tuple(in_dim)
    if any(size < 1 for size in shape):
        raise OptionError(f"items need at least one feature, but in_dim is {in_dim}")
    return shape


def check_item_shape(sets: Sets, shape: tuple[int, ...]) -> None:
    """Raise a ShapeError if the items do not have the shape that an encoder was built for."""
    actual = tuple(sets.values.shape[1:])
    if actual != shape:
        raise ShapeError(f"this encoder reads items of shape {shape}, but the sets hold items of shape {actual}")


def flat_items(sets: Sets, shape: tuple[int, ...]) -> Tensor:
    """Return the items as rows, `(total, features)`, after a check of their shape."""
    check_item_shape(sets, shape)
    return sets.values.reshape(len(sets.values), math.prod(shape))


def flat_quantities(sets: Sets, shape: tuple[int, ...], weight: Tensor) -> Tensor:
    """Return the items as rows in the dtype of a weight; raise a DataError for integers, which may be tokens."""
    items = flat_items(sets, shape)
    if not items.dtype.is_floating_point:
        raise DataError(
            f"this encoder reads real numbers, but the items are {items.dtype}; if they are quantities, such as the "
            "bytes of an image, pass sets.to(torch.float32)"
        )
    return items.to(weight.dtype)
