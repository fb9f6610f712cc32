"""States over the ranks of a process group: agree on a level, add up, find the largest."""

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
    # A torch without distributed has no such class, and setgrad works with it all the same.
    Group = dist.ProcessGroup | None
# Types of items. A rank without items does not know that they are whole numbers: the last of these is right.
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Gloo has no errors of its own; it says so. Anything else is a fault of this rank, such as a type that has no sum.
_LOST = ("gloo/transport", "connection", "timed out", "timeout", "peer", "socket")
_KINDS = (*_FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@final
class Meeting:
    """The points between passes where ranks meet, or hear that one of them failed."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self.device = group, device
        # Whether a pass has begun whose end the others wait for.
        self.awaited = False

    def reads(self, chunks: Chunks) -> Chunks:
        """The same chunks, which are awaited from the first one on."""

        def read() -> Iterator[Sets]:
            self.awaited = True
            yield from chunks()

        return read

    def agree(self, *, failed: bool = False) -> None:
        """Go on only if no rank failed."""
        self.awaited = False
        try:
            lost = bool(largest_numbers([int(failed)], self.device, self.group)[0])
        except LostRankError:
            if failed:
                return
            raise
        if lost and not failed:
            raise elsewhere()

    def settle(self, state: State) -> State:
        """The same content relative to the largest level of all ranks, so that sums add up."""
        self.agree()
        return settle(state, self.group)

    def total(self, state: State) -> State:
        """The sum of settled states."""
        return total(state, self.group)

    def largest(self, state: MaxState) -> MaxState:
        """The state of the items of all ranks."""
        self.agree()
        return largest(state, self.group)

    def gather(self, state: MaxState, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of features `(b, scores, width)` on each rank those of the winners, and where there are any."""
        self.agree()
        mine, some = _wins(state, self.group)
        return _sum_over(torch.where(mine[..., None], rows, 0.0), self.group), some


@final
class _SumOver(torch.autograd.Function):
    """Sum over ranks; the cotangents are summed too, because every rank's loss depends on every rank's term."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_reduce(x.clone(memory_format=torch.contiguous_format), dist.ReduceOp.SUM, group)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _SumOver.apply(cotangent, ctx.group), None


def _sum_over(x: Tensor, group: Group) -> Tensor:
    """Sum over ranks, with a graph on all of them if one has a graph: backward passes are common, too."""
    if torch.is_grad_enabled() and largest_numbers([int(x.requires_grad)], x.device, group)[0] and not x.requires_grad:
        x = x.detach().requires_grad_()
    return _SumOver.apply(x, group)


def settle(state: State, group: Group) -> State:
    """The same content relative to the largest level of all ranks; all must have the same slots."""
    slots = None if state.slots is None else state.slots.detach().flatten().to(state.count.dtype)
    parts = [] if state.level is None else [state.level.detach().flatten()]
    parts += [] if slots is None else [slots, -slots]
    if not parts:
        return state
    found = all_reduce(torch.cat(parts), dist.ReduceOp.MAX, group).split([len(part) for part in parts])
    # The largest and the smallest agree only if all do, and then every rank finds the same.
    if slots is not None and bool((found[-1] != -found[-2]).any()):
        raise StateError("the ranks have different slots; start from begin_over, which gives all of them the same")
    if state.level is None:
        return state
    level = found[0].reshape(state.level.shape)
    return state.at(level)


def total(state: State, group: Group) -> State:
    """Add up states that are relative to one level, in one message."""
    parts = [*state.sums, state.count]
    whole = _sum_over(torch.cat([part.flatten() for part in parts]), group)
    *sums, count = (
        total.reshape(part.shape).to(part.dtype)
        for total, part in zip(whole.split([part.numel() for part in parts]), parts, strict=True)
    )
    # What a rank removed before is rounding of its own, and small beside the sum of all.
    return replace(state, sums=tuple(sums), count=count, peaks=None)


def largest(state: MaxState, group: Group) -> MaxState:
    """The largest values of all ranks and the items that gave them, those of rank 0 numbered first."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    mine, some = _wins(state, group)
    lengths = state.length.new_zeros(ranks, len(state))
    lengths[rank] = state.length
    lengths = all_reduce(lengths, dist.ReduceOp.SUM, group)
    number = torch.where(mine, state.number + lengths[:rank].sum(0)[:, None] + 1, 0)
    (kind,) = largest_numbers([_KINDS.index(state.items.dtype)], state.items.device, group)
    own = mine.reshape(*mine.shape, *[1] * (state.items.dim() - 2))
    # Truth values have no sum.
    sent = torch.uint8 if _KINDS[kind] == torch.bool else _KINDS[kind]
    items = torch.where(own, state.items.detach().to(sent), 0)
    return MaxState(
        torch.where(some, _sum_over(torch.where(mine, state.value, 0.0), group), -torch.inf),
        all_reduce(number, dist.ReduceOp.SUM, group) - 1,
        all_reduce(items, dist.ReduceOp.SUM, group).to(_KINDS[kind]),
        lengths.sum(0),
    )


def _wins(state: MaxState, group: Group) -> tuple[Tensor, Tensor]:
    """Which maxima of all ranks are this one's, and which there are at all; of equal ones the first rank's."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    # NaN has no place in an order, and must not be lost.
    mine = state.value.detach().nan_to_num(torch.inf, torch.inf, -torch.inf)
    value = all_reduce(mine.clone(), dist.ReduceOp.MAX, group)
    has = (mine == value) & (state.number >= 0)
    first = -all_reduce(torch.where(has, -rank, -ranks), dist.ReduceOp.MAX, group)
    return has & (first == rank), first < ranks


def largest_numbers(numbers: Sequence[int], device: torch.device, group: Group) -> list[int]:
    """The largest of each number over all ranks."""
    return all_reduce(torch.tensor(numbers, device=device), dist.ReduceOp.MAX, group).tolist()


def all_reduce(x: Tensor, how: Any, group: Group) -> Tensor:
    """Reduce in place, with errors that say what happened."""
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
        dist.all_reduce(x, how, group)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _LOST)):
            raise
        raise LostRankError(
            f"another process ended or did not answer in time, so the sum over ranks cannot be made: {error}\n"
            "Look at the messages of the other processes, then start all of them again"
        ) from error
    return x


def elsewhere() -> LostRankError:
    """The error of a rank that has to stop because of another."""
    return LostRankError("another rank could not read its shard; its own message says why")
