"""What a set encoder is, one that goes through a set in chunks, and one whose state of any partition is the same."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from setgrad._autograd import batch_norms
from setgrad.encoders._base import ItemEncoder, place_of
from setgrad.encoders._passes import Kept, Passes
from setgrad.encoders._pooling import item_features, require_sets
from setgrad.encoders._state import State
from setgrad.errors import DataError, OptionError, ShapeError, StateError
from setgrad.sets import Layout, Sets, segment_sum


class SetEncoder(nn.Module, abc.ABC):
    """Maps every set of a batch to a code that does not depend on the order of its items."""

    @abc.abstractmethod
    def forward(self, sets: Sets, weights: Tensor | None = None) -> Tensor:
        """Codes `(b, ...)`. `weights` `(total,)` says how often each item counts; an encoder may refuse them."""


class ChunkedEncoder(SetEncoder):
    """An encoder that can go through a set in chunks, once or several times, with the code of the whole set."""

    phi: ItemEncoder
    shape: tuple[int, ...]

    @abc.abstractmethod
    def encode(self, passes: Passes) -> Tensor:
        """Codes `(b, ...)` of the items that lie on a way."""

    def forward(self, sets: Sets, weights: Tensor | None = None) -> Tensor:
        """Codes of whole sets. `weights` `(total,)` says how often each item counts."""
        return self.encode(Kept.of(*weighed_items(sets, weights, self.phi)))

    def stream(
        self,
        source: Any,
        *,
        gradient: str = "exact",
        chunk_size: int = 4096,
        samples: int = 1,
        generator: np.random.Generator | None = None,
        verbose: int = 0,
        prefetch: bool | None = None,
    ) -> Tensor:
        """Codes of sets that are read in chunks; see `setgrad.encoders.stream`."""
        from setgrad.encoders.streaming import stream

        return stream(
            self,
            source,
            gradient=gradient,
            chunk_size=chunk_size,
            samples=samples,
            generator=generator,
            verbose=verbose,
            prefetch=prefetch,
        )

    def features(self, sets: Sets) -> Tensor:
        """What phi sees of every item, `(total, width)`."""
        return item_features(self.phi, sets, self.shape, next(self.parameters(), None))

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return self.shape

    def nothing(self, batch: int) -> Sets:
        """A batch of sets without items."""
        where = place_of(self)
        return Sets(where.new_zeros(0, *self.shape), Layout.from_lengths([0] * batch, where.device))


class MergeableEncoder(ChunkedEncoder):
    """An encoder whose state adds up over items: `begin`, any number of `update`, `merge`, then `finish`."""

    # Whether slots are drawn anew for every batch while training.
    random: bool = False

    @abc.abstractmethod
    def queries(self, generator: torch.Generator | None = None) -> Tensor | None:
        """What items are compared with, with a graph; None for encoders without slots."""

    @abc.abstractmethod
    def read(self, chunk: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """The state of these items alone, relative to `level` where one is given."""

    @abc.abstractmethod
    def finish(self, state: State) -> Tensor:
        """The code of what was read, `(b, ...)`."""

    def encode(self, passes: Passes) -> Tensor:
        """One pass."""
        return self.finish(passes.sums(self.read, self.queries(passes.slots)))

    def begin(self, batch: int = 1, *, generator: torch.Generator | None = None) -> State:
        """The state of sets without items. Random slots are drawn here, from `generator` if there is one."""
        nothing = self.nothing(batch)
        refuse_batch_norm(self)
        return self.read(nothing, item_weights(None, nothing), self.queries(generator), None)

    def update(self, state: State, chunk: Sets, weights: Tensor | None = None) -> State:
        """The state after more items: `chunk` holds a piece, which may be empty, of each set of the batch."""
        chunk, weights = weighed_items(chunk, weights, self.phi)
        require_pieces(chunk, len(state))
        refuse_batch_norm(self)
        require_slots(state, place_of(self).dtype, chunk.device.type)
        return state.merge(self.read(chunk, weights, state.slots, None))


def require_pieces(chunk: Sets, batch: int) -> None:
    """Refuse a chunk that has no piece of every set, and one whose numbers would spoil a state for good."""
    require_sets(chunk)
    if len(chunk) != batch:
        raise ShapeError(
            f"the state belongs to {batch} sets, the chunk has pieces of {len(chunk)}; give one piece for each set, "
            "empty where there is nothing new"
        )
    # A compiled program cannot stop at a number.
    if chunk.dtype.is_floating_point and not torch.compiler.is_compiling() and not bool(chunk.values.isfinite().all()):
        raise DataError("a chunk holds NaN or infinity; remove or impute such items first")


def require_slots(state: object, kind: torch.dtype, device: str) -> None:
    """Refuse a state that an encoder of weights of this kind cannot go on with."""
    if not isinstance(state, State):
        raise StateError(f"this encoder goes on with a State, not with a {type(state).__name__}; begin with begin()")
    known = {kind, torch.get_autocast_dtype(device)} if torch.is_autocast_enabled(device) else {kind}
    if state.slots is not None and state.slots.dtype not in known:
        raise StateError(
            f"the slots of this state are of {state.slots.dtype}, the encoder is of {kind}; begin anew, or go on "
            "with an encoder of the type that made the state (encoder.to), or under the same torch.autocast"
        )


def item_weights(weights: Any, chunk: Sets) -> Tensor:
    """One weight for each item: 1 if nothing is said."""
    require_sets(chunk)
    if weights is None:
        return torch.ones(chunk.layout.total, device=chunk.device)
    weights = torch.as_tensor(weights, device=chunk.device)
    if weights.shape != (chunk.layout.total,):
        raise ShapeError(
            f"weights must be one number of at least 0 for each of {chunk.layout.total} items, not "
            f"{tuple(weights.shape)}"
        )
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise DataError("a weight of an item is negative, infinite or NaN; give 0 for items to be left out")
    return weights


def weighed_items(sets: Sets, weights: Any, phi: ItemEncoder) -> tuple[Sets, Tensor]:
    """The sets and one weight for each item. An item of weight 0 is no item, so it may hold anything, even NaN."""
    if weights is not None and not phi.itemwise:
        raise OptionError(
            f"{type(phi).__name__} as phi lets items look at each other and knows no weights of items; use "
            "phi=MLPItems(in_dim, width), or repeat items that count more than once and leave out those of weight 0"
        )
    found = item_weights(weights, sets)
    if weights is None or not sets.dtype.is_floating_point:
        return sets, found
    none = (found == 0).reshape(-1, *[1] * len(sets.item_shape))
    return sets.with_values(torch.where(none & ~sets.values.isfinite(), 0.0, sets.values)), found


def log_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Logarithms of weights, -inf for 0: in an exponent no weight is too large or too small."""
    some = weights > 0
    # In the wider of both types: the weight may be too large for the one, its logarithm too short in the other.
    exact = torch.where(some, weights, 1).to(torch.promote_types(weights.dtype, dtype))
    return torch.where(some, exact.log().to(dtype), -torch.inf)


def sums_of(state: object, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The sums of a state, if those of a set have these shapes, as only states of this encoder have."""
    found = [tuple(s.shape[1:]) for s in state.sums] if isinstance(state, State) else None
    if not isinstance(state, State) or found != list(shapes):
        raise StateError(
            f"this encoder keeps sums of shapes {list(shapes)} for a set, and cannot finish a {type(state).__name__} "
            f"{'of other things' if found is None else f'with {found}'}; give a state that its own begin began"
        )
    return state.sums


def mean_of(weight: Tensor, total: Tensor) -> Tensor:
    """Sums `(..., width)` divided by their weights: 0 for nothing, and NaN where there is NaN."""
    # The sum of nothing is 0 already. To ask for weights above 0 would take NaN for nothing.
    return total / torch.where(weight == 0, 1.0, weight)[..., None]


def counted(chunk: Sets, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Weight of all items of each set, `(b,)`."""
    return segment_sum(weights.to(dtype), chunk)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that sums are kept in: half precision loses count after a few thousand items."""
    return torch.promote_types(dtype, torch.float32)


def require_itemwise(phi: ItemEncoder, name: str) -> None:
    """Refuse an item encoder whose features depend on the piece that an item comes in."""
    if not phi.itemwise:
        raise OptionError(
            f"{name} reads a set in pieces, so phi must look at one item at a time; {type(phi).__name__} looks at the "
            "others too. Use phi=MLPItems(in_dim, width), or put attention into the head: head=TransformerHead(dim)"
        )


def refuse_batch_norm(encoder: ChunkedEncoder) -> None:
    """Refuse an encoder that normalises items by the others of their chunk. The head sees whole sets only."""
    for name, _ in batch_norms(encoder):
        if name.partition(".")[0] != "head":
            raise OptionError(
                f"{name} normalises over the items of a chunk, so that the result would depend on the partition; put "
                "it into evaluation mode (encoder.eval()) with running statistics, or use LayerNorm"
            )
