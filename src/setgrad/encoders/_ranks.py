"""Combine states over the ranks of a process group: agree on a level, add up, find the maximum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from setgrad.encoders._max_state import MaxState
from setgrad.encoders._state import State
from setgrad.encoders.sources import Chunks
from setgrad.errors import LostRankError, OptionError, StateError
from setgrad.sets import Sets

if TYPE_CHECKING:
    # A torch build without distributed has no such class, and setgrad must still import.
    Group = dist.ProcessGroup | None
# Gloo raises plain RuntimeErrors for lost connections. Any other message is a fault of this rank, such as a dtype that
# cannot be summed.
_LOST_CONNECTION = ("gloo/transport", "connection", "timed out", "timeout", "peer", "socket")
# Dtypes of items. A rank without items holds floating-point zeros and does not know that items are integers, so the
# last dtype of all ranks in this order is the right one.
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


@final
class RankGroup:
    """Combines the results of passes over a process group, and tells the other ranks when this one fails."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self.device = group, device
        # Whether a pass has started, so that the other ranks wait for its end.
        self.awaited = False

    def awaiting(self, chunks: Chunks) -> Chunks:
        """Return the same chunks; from the first one on, the other ranks wait for the end of the pass."""

        def read() -> Iterator[Sets]:
            self.awaited = True
            yield from chunks()

        return read

    def check_all(self, *, failed: bool = False) -> None:
        """Tell the other ranks whether this one failed; raise a LostRankError if another one did."""
        self.awaited = False
        try:
            any_failed = bool(max_numbers([int(failed)], self.device, self.group)[0])
        except LostRankError:
            if failed:
                return
            raise
        if any_failed and not failed:
            raise failed_elsewhere()

    def synchronise(self, state: State) -> State:
        """Return the same state relative to the largest level of all ranks, so that sums add up."""
        self.check_all()
        return synchronise(state, self.group)

    def total(self, state: State) -> State:
        """Return the sum of the synchronised states of all ranks."""
        return total_state(state, self.group)

    def maximum(self, state: MaxState) -> MaxState:
        """Return the state of the items of all ranks."""
        self.check_all()
        return maximum_state(state, self.group)

    def gather(self, state: MaxState, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of the top items of all ranks, `(b, scores, dim)`, and whether there are any."""
        self.check_all()
        wins, exists = _winning(state, self.group)
        return _sum_over_ranks(torch.where(wins[..., None], features, 0.0), self.group), exists


@final
class _SumOverRanks(torch.autograd.Function):
    """Sum over ranks; the cotangents are summed too, because the loss of every rank depends on the term of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_reduce(x.clone(memory_format=torch.contiguous_format), dist.ReduceOp.SUM, group)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _SumOverRanks.apply(cotangent, ctx.group), None


def _sum_over_ranks(x: Tensor, group: Group) -> Tensor:
    """Sum over ranks, with a graph on all ranks if one has a graph, since all take part in the backward pass."""
    if torch.is_grad_enabled() and max_numbers([int(x.requires_grad)], x.device, group)[0] and not x.requires_grad:
        x = x.detach().requires_grad_()
    return _SumOverRanks.apply(x, group)


def synchronise(state: State, group: Group) -> State:
    """Return the same state relative to the largest level of all ranks; raise a StateError if their slots differ."""
    slots = None if state.slots is None else state.slots.detach().flatten().to(state.count.dtype)
    parts = [] if state.level is None else [state.level.detach().flatten()]
    parts += [] if slots is None else [slots, -slots]
    if not parts:
        return state
    maxima = all_reduce(torch.cat(parts), dist.ReduceOp.MAX, group).split([len(part) for part in parts])
    # The maximum equals the minimum only if all ranks agree, and then every rank finds the same.
    if slots is not None and bool((maxima[-1] != -maxima[-2]).any()):
        raise StateError("the ranks have different slots; start from begin_over, which gives all of them the same")
    if state.level is None:
        return state
    return state.at(maxima[0].reshape(state.level.shape))


def total_state(state: State, group: Group) -> State:
    """Return the sum of states that are relative to one level, with a single reduction."""
    parts = [*state.sums, state.count]
    flat = _sum_over_ranks(torch.cat([part.flatten() for part in parts]), group)
    *sums, count = (
        total.reshape(part.shape).to(part.dtype)
        for total, part in zip(flat.split([part.numel() for part in parts]), parts, strict=True)
    )
    # The rounding errors of removals on one rank are small beside the sum of all ranks.
    return replace(state, sums=tuple(sums), count=count, peaks=None)


def maximum_state(state: MaxState, group: Group) -> MaxState:
    """Return the largest values of all ranks and their items; the items of rank 0 are numbered first."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    wins, exists = _winning(state, group)
    lengths = state.length.new_zeros(ranks, len(state))
    lengths[rank] = state.length
    lengths = all_reduce(lengths, dist.ReduceOp.SUM, group)
    number = torch.where(wins, state.number + lengths[:rank].sum(0)[:, None] + 1, 0)
    (index,) = max_numbers([_DTYPES.index(state.items.dtype)], state.items.device, group)
    item_wins = wins.reshape(*wins.shape, *[1] * (state.items.dim() - 2))
    # Booleans have no sum.
    dtype = torch.uint8 if _DTYPES[index] == torch.bool else _DTYPES[index]
    items = torch.where(item_wins, state.items.detach().to(dtype), 0)
    return MaxState(
        torch.where(exists, _sum_over_ranks(torch.where(wins, state.value, 0.0), group), -torch.inf),
        all_reduce(number, dist.ReduceOp.SUM, group) - 1,
        all_reduce(items, dist.ReduceOp.SUM, group).to(_DTYPES[index]),
        lengths.sum(0),
        state.encoder,
    )


def _winning(state: MaxState, group: Group) -> tuple[Tensor, Tensor]:
    """Return which maxima over all ranks belong to this one, and which exist at all; the first rank wins ties."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    # NaN is not ordered, and must not be lost.
    value = state.value.detach().nan_to_num(torch.inf, torch.inf, -torch.inf)
    maxima = all_reduce(value.clone(), dist.ReduceOp.MAX, group)
    is_maximum = (value == maxima) & (state.number >= 0)
    first = -all_reduce(torch.where(is_maximum, -rank, -ranks), dist.ReduceOp.MAX, group)
    return is_maximum & (first == rank), first < ranks


def max_numbers(numbers: Sequence[int], device: torch.device, group: Group) -> list[int]:
    """Return the maximum of each number over all ranks."""
    return all_reduce(torch.tensor(numbers, device=device), dist.ReduceOp.MAX, group).tolist()


def all_reduce(x: Tensor, operation: Any, group: Group) -> Tensor:
    """Reduce a tensor over all ranks in place and return it.

    Raises:
        OptionError: If there is no process group, or it cannot reduce tensors on this device.
        LostRankError: If another process ended or did not answer in time.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise OptionError(
            "there is no process group; start the program with torchrun and call "
            "torch.distributed.init_process_group first"
        )
    if dist.get_backend(group) == "nccl" and x.device.type != "cuda":
        raise OptionError(
            f"NCCL sums tensors on GPUs, but this one is on {x.device}; move the encoder to the GPU of its rank, or "
            "start the group with 'gloo' or 'cpu:gloo,cuda:nccl'"
        )
    try:
        dist.all_reduce(x, operation, group)
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise LostRankError(
            f"another process ended or did not answer in time, so the sum over ranks cannot be computed: {error}\n"
            f"{LostRankError.remedy.capitalize()}"
        ) from error
    return x


def is_lost_connection(error: Exception) -> bool:
    """Return whether torch raised this because another process ended or did not answer."""
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _LOST_CONNECTION)


def failed_elsewhere() -> LostRankError:
    """Return the error of a rank that has to stop because another one failed."""
    return LostRankError("another rank could not read its shard; its own message says why")
