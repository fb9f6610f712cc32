"""Base classes of set encoders: any set encoder, one that reads sets in chunks, and one with a mergeable state."""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from setgrad._autograd import batch_norms
from setgrad.encoders._base import ItemEncoder, first_tensor
from setgrad.encoders._fingerprint import Fingerprint, check_same_encoder
from setgrad.encoders._passes import InMemoryPasses, Passes
from setgrad.encoders._pooling import check_sets, item_features
from setgrad.encoders._slot_softmax import RowsOf, exponentials
from setgrad.encoders._state import State
from setgrad.errors import DataError, OptionError, ShapeError, StateError
from setgrad.sets import Layout, Sets


class SetEncoder(nn.Module, abc.ABC):
    """A module that maps every set of a batch to a code that does not depend on the order of its items."""

    @abc.abstractmethod
    def forward(self, sets: Sets, counts: Tensor | None = None) -> Tensor:
        """Return codes `(b, ...)`.

        Args:
            sets: The sets.
            counts: How often each item counts, `(total,)`; 1 if None.

        Raises:
            OptionError: If counts are passed to an encoder that does not support them.
        """


class ChunkedEncoder(SetEncoder):
    """A set encoder that can read sets in chunks, in one or several passes, with the same result as for whole sets.

    Attributes:
        phi: The item encoder.
        shape: Shape of one item.
    """

    phi: ItemEncoder
    shape: tuple[int, ...]

    @abc.abstractmethod
    def encode(self, passes: Passes) -> Tensor:
        """Return codes `(b, ...)` of the items that the passes give."""

    def forward(self, sets: Sets, counts: Tensor | None = None) -> Tensor:
        """Return codes `(b, ...)` of whole sets. `counts` `(total,)` is how often each item counts; 1 if None."""
        return self.encode(InMemoryPasses.of(*counted_items(sets, counts, self.phi)))

    def stream(
        self,
        source: Any,
        *,
        gradient: str = "exact",
        chunk_size: int = 4096,
        samples: int = 1,
        generator: torch.Generator | None = None,
        verbose: int = 0,
        prefetch: bool | None = None,
    ) -> Tensor:
        """Return codes of sets that are read in chunks; see `setgrad.encoders.stream`."""
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
        """Return the features that phi computes for every item, `(total, phi.out_dim)`."""
        return item_features(self.phi, sets, next(self.parameters(), None))

    def empty_sets(self, batch: int) -> Sets:
        """Return a batch of sets without items."""
        like = first_tensor(self)
        return Sets(like.new_zeros(0, *self.shape), Layout.from_lengths([0] * batch, like.device))


class MergeableEncoder(ChunkedEncoder):
    """An encoder whose state adds up over items: `begin`, any number of `update` and `merge`, then `finish`.

    Attributes:
        random: Whether slots are drawn again for every batch while training.
    """

    random: bool = False

    @abc.abstractmethod
    def queries(self, generator: torch.Generator | None = None) -> Tensor | None:
        """Return the queries that items are compared with, with a graph; None for encoders without slots."""

    @abc.abstractmethod
    def read(self, chunk: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Return the state of these items only, relative to `level` if that is not None."""

    @abc.abstractmethod
    def finish(self, state: State) -> Tensor:
        """Return the code `(b, ...)` of a state.

        Raises:
            StateError: If the state belongs to another encoder.
        """

    def encode(self, passes: Passes) -> Tensor:
        """Return codes `(b, ...)` after one pass."""
        return self.finish(passes.sums(self.read, self.queries(passes.slot_generator)))

    def begin(self, batch: int = 1, *, generator: torch.Generator | None = None) -> State:
        """Return the state of empty sets. Random slots are drawn here, from `generator` if there is one."""
        check_no_batch_norm(self)
        empty = self.empty_sets(batch)
        state = self.read(empty, unit_counts(empty), self.queries(generator), None)
        return replace(state, encoder=Fingerprint.of(self))

    def update(self, state: State, chunk: Sets, counts: Tensor | None = None) -> State:
        """Return the state after more items.

        Args:
            state: The state so far.
            chunk: More items of each set of the batch, possibly none.
            counts: How often each item counts, `(total,)`; 1 if None.

        Raises:
            ShapeError: If the chunk does not fit the batch.
            DataError: If items are not finite.
            StateError: If the state belongs to another encoder, or the weights changed since it was begun.
        """
        chunk, counts = counted_items(chunk, counts, self.phi)
        check_chunk(chunk, len(state))
        check_no_batch_norm(self)
        _check_state(state, first_tensor(self).dtype, chunk.device.type)
        check_same_encoder(state.encoder, Fingerprint.of(self))
        return state.merge(self.read(chunk, counts, state.slots, None))


def check_chunk(chunk: Sets, batch: int) -> None:
    """Raise if a chunk does not have one part for each set, or if it is not finite, which would spoil the state."""
    if len(chunk) != batch:
        raise ShapeError(
            f"the state belongs to {batch} sets, but the chunk has items of {len(chunk)}; pass one part for each set, "
            "empty where there are no new items"
        )
    values = chunk.values
    # A compiled program cannot branch on a value.
    if values.dtype.is_floating_point and not torch.compiler.is_compiling() and not bool(values.isfinite().all()):
        raise DataError("a chunk holds NaN or infinity; remove or impute such items first")


def _check_state(state: object, dtype: torch.dtype, device: str) -> None:
    """Raise a StateError if an encoder of this dtype cannot resume a state."""
    if not isinstance(state, State):
        raise StateError(f"this encoder needs a State, not a {type(state).__name__}; start with begin()")
    dtypes = {dtype, torch.get_autocast_dtype(device)} if torch.is_autocast_enabled(device) else {dtype}
    if state.slots is not None and state.slots.dtype not in dtypes:
        raise StateError(
            f"the slots of this state are {state.slots.dtype}, but the encoder is {dtype}; start again with begin(), "
            "or resume with an encoder of the same dtype (encoder.to) or under the same torch.autocast"
        )


def unit_counts(chunk: Sets) -> Tensor:
    """Return a count of 1 for each item."""
    return torch.ones(len(chunk.values), device=chunk.values.device)


def counted_items(sets: Sets, counts: Any, phi: ItemEncoder) -> tuple[Sets, Tensor]:
    """Return the sets and one count for each item. Items of count 0 are ignored, so they may hold anything, even NaN.

    Raises:
        OptionError: If phi does not support counts.
        ShapeError: If there is not one count for each item.
        DataError: If a count is negative or not finite, or the sets are not `Sets`.
    """
    check_sets(sets)
    if counts is None:
        return sets, unit_counts(sets)
    if not phi.itemwise:
        raise OptionError(
            f"counts need a phi that encodes each item independently, which {type(phi).__name__} does not; use "
            "phi=MLPItems(in_dim, dim), or repeat items that count several times and leave out those of count 0"
        )
    values = sets.values
    counts = torch.as_tensor(counts, device=values.device)
    if counts.shape != (len(values),):
        raise ShapeError(f"counts must hold one number for each of {len(values)} items, not {tuple(counts.shape)}")
    if not bool(((counts >= 0) & counts.isfinite()).all()):
        raise DataError("a count is negative, infinite or NaN; use 0 for items to be left out")
    if values.dtype.is_floating_point:
        ignored = (counts == 0).reshape(-1, *[1] * (values.dim() - 1))
        sets = sets.with_values(torch.where(ignored & ~values.isfinite(), 0.0, values))
    return sets, counts


def log_counts(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the logarithms of counts, -inf for 0: in an exponent no count is too large or too small."""
    positive = counts > 0
    # In the wider dtype: the count may overflow in one of them, and its logarithm may lose digits in the other.
    exact = torch.where(positive, counts, 1).to(torch.promote_types(counts.dtype, dtype))
    return torch.where(positive, exact.log().to(dtype), -torch.inf)


def relative_weights(log_weights: Tensor, chunk: Sets, counts: Tensor, level: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return exponentials relative to a level, times the counts, and that level.

    Args:
        log_weights: Exponents, `(total, heads, slots)`.
        chunk: The items.
        counts: How often each item counts.
        level: What the exponents are relative to, `(b, heads, slots)`; None for the largest of each set.
    """
    # An item of count 0 is ignored, so it must not set the level.
    log_weights = log_weights + log_counts(counts, log_weights.dtype)[:, None, None]
    return exponentials(log_weights, RowsOf(chunk), level)


def expect_sums(state: object, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Return the sums of a state; raise a StateError if those of one set do not have these shapes."""
    actual = [tuple(s.shape[1:]) for s in state.sums] if isinstance(state, State) else None
    if not isinstance(state, State) or actual != list(shapes):
        raise StateError(
            f"this encoder needs a State with sums of shapes {list(shapes)} for each set, not a {type(state).__name__}"
            f"{'' if actual is None else f' with {actual}'}; pass a state that started with its own begin()"
        )
    return state.sums


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums: half precision cannot count beyond a few thousand items."""
    return torch.promote_types(dtype, torch.float32)


def check_itemwise(phi: ItemEncoder, name: str) -> None:
    """Raise an OptionError for an item encoder whose features depend on the chunk that an item is in."""
    if not phi.itemwise:
        raise OptionError(
            f"{name} reads a set in chunks, so phi must encode each item independently, but the features of "
            f"{type(phi).__name__} depend on the other items. Use phi=MLPItems(in_dim, dim), or put attention into the "
            "head: head=TransformerHead(dim)"
        )


def check_no_batch_norm(encoder: ChunkedEncoder) -> None:
    """Raise an OptionError if items are normalised by the others of their chunk. The head sees whole sets only."""
    for name, _ in batch_norms(encoder):
        if name.partition(".")[0] != "head":
            raise OptionError(
                f"{name} normalises over the items of a chunk, so that the result would depend on the partition; put "
                "it into evaluation mode (encoder.eval()) with running statistics, or use LayerNorm"
            )
