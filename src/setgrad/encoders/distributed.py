"""One set over many machines: every rank reads its own shard, and states are summed with torch.distributed.

What is exact. Let R ranks read shards with states S_r(θ), S = Σ S_r their merged state, and let every rank compute a
loss L_r(S, θ) from it. The sum over ranks has a sum over ranks as its derivative, so rank r gets

    g_r = ∂S_r/∂θ · Σ_q ∂L_q/∂S + ∂L_r/∂θ,    and the mean is    (1/R) Σ_r g_r = d/dθ (1/R) Σ_q L_q.

So if all ranks compute the same loss, as they do from the same S, the mean of the gradients over ranks is the gradient
of one process that reads all items: for the encoder, for its slots and for the head. The mean is what
DistributedDataParallel (DDP) takes; without it, `mean_gradients` does.

Every rank must take part in every merge and in every backward pass, also one without items. A process that dies ends
the others with `LostRankError`, at once or after the time limit of the group (`timeout=` of `init_process_group`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from setgrad.encoders._mergeable import MergeableEncoder
from setgrad.encoders._state import State, _shrink, _times
from setgrad.encoders.streaming import Plan, check_options, pieces_of, state_of, watched
from setgrad.errors import DataError, OptionError, SetgradError, ShapeError, StateError

if TYPE_CHECKING:
    # A torch without distributed has no such class, and setgrad works with it all the same.
    Group = dist.ProcessGroup | None
# Below minus the batch that any rank could have.
_NONE = -(2**31)


class LostRankError(SetgradError, RuntimeError):
    """Another process of the group failed or did not answer in time."""


def merge_over(state: State, *, group: Group = None) -> State:
    """The state of the items of all ranks, on every rank, with the gradient described at the top of this module.

    Args:
        state: What this rank has read; `encoder.begin(batch)`, or `begin_over` for random slots, if it has nothing.
        group: The process group; None for all processes.

    Example:
        >>> import tempfile
        >>> from setgrad.encoders import UMBC
        >>> from setgrad.sets import Sets
        >>> encoder = UMBC(3, dim=8, slots=4)
        >>> state = encoder.update(encoder.begin(), Sets.from_list([torch.ones(5, 3)]))
        >>> dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
        >>> merged = merge_over(state)
        >>> dist.destroy_process_group()
        >>> torch.equal(merged.count, state.count)
        True
    """
    numbers = [len(state), sum(s.numel() for s in state.sums)]
    numbers += [0 if t is None else t.numel() for t in (state.level, state.slots)]
    found = _largest([*numbers, *(-n for n in numbers)], state.count.device, group)
    if found != [*numbers, *(-n for n in numbers)]:
        raise ShapeError(
            "the ranks hold states of different encoders or batches; every rank needs the same encoder and a piece, "
            "which may be empty, of each set of the same batch"
        )
    return _sum(_settle(state, group), group)


def begin_over(
    encoder: MergeableEncoder, batch: int = 1, *, generator: torch.Generator | None = None, group: Group = None
) -> State:
    """The state of sets without items, with random slots that are the same on every rank.

    The seed of rank 0 is used everywhere, so that the slots have a graph on every rank.
    """
    (seed,) = _largest([_seed(encoder, generator, group)], _device(encoder), group)
    return encoder.begin(batch, generator=_seeded(encoder, seed))


def stream_over(
    encoder: MergeableEncoder,
    source: Any,
    *,
    gradient: str = "exact",
    chunk_size: int = 4096,
    samples: int = 1,
    generator: np.random.Generator | None = None,
    verbose: int = 0,
    prefetch: bool | None = None,
    group: Group = None,
) -> Tensor:
    """Code of sets of which every rank reads a shard: `stream` over many machines.

    With "exact" each rank goes through its shard twice and keeps one chunk in memory; what travels is one state, once
    in each direction. Slots are the same on all ranks. A source without chunks (`[]`) is a shard without items. If
    reading fails on one rank, all of them raise.

    Args:
        encoder: The same encoder on every rank; for DDP wrap it as `Sharded`.
        source: The shard of this rank, as for `stream`. Its chunks hold pieces of the same sets on every rank.
        gradient: "full", "exact" or "sample" (every rank draws from its own chunks).
        chunk_size: Items of each set in a chunk, where the source does not say.
        samples: Chunks of a rank that "sample" differentiates.
        generator: Draws them.
        verbose: 1 shows a bar for each pass where the number of chunks is known.
        prefetch: Read the next chunk in a thread while the last one is computed; None does so for files.
        group: The process group; None for all processes.
    """
    check_options(gradient, chunk_size, samples)
    device, meeting = _device(encoder), _Meeting(group)
    try:
        mine = pieces_of(source, chunk_size, device, gradient)
    except Exception:
        _largest([0, _NONE, 0, 1], device, group)
        raise
    size = [0, _NONE] if mine is None else [mine, -mine]
    most, least, seed, failed = _largest([*size, _seed(encoder, None, group), 0], device, group)
    if failed:
        raise _elsewhere()
    if least == _NONE:
        raise DataError("no rank has a chunk; for sets without items give one chunk of empty pieces")
    if most != -least:
        raise ShapeError(
            f"chunks have pieces of {-least} sets on one rank and of {most} on another; every rank reads a piece, "
            "which may be empty, of each set of the same batch"
        )
    chunks = watched(source, chunk_size, device, verbose, prefetch)
    queries = encoder.queries(_seeded(encoder, seed))
    plan = Plan(encoder, chunks, most, None if gradient == "exact" else samples, generator, meeting.settle)
    try:
        state = state_of(plan, queries, graph=gradient == "full")
    except Exception:
        if not meeting.over:
            meeting.call_off(encoder.begin(most))
        raise
    return encoder.finish(_sum(state, group))


@final
class Sharded(nn.Module):
    """An encoder whose call takes the shard of this rank: `DistributedDataParallel(Sharded(encoder))(source)`.

    The gradients of all parameters are returned once, after the second pass, so that DDP reduces each of them once.
    Keep the DDP module in a variable: its hooks go with it, and gradients would stay those of one rank.

    Example:
        >>> from setgrad.encoders import UMBC
        >>> Sharded(UMBC(3, dim=8, slots=4), chunk_size=1000).gradient
        'exact'
    """

    def __init__(
        self, encoder: MergeableEncoder, *, gradient: str = "exact", chunk_size: int = 4096, group: Group = None
    ) -> None:
        super().__init__()
        check_options(gradient, chunk_size, 1)
        self.encoder, self.gradient, self.chunk_size, self.group = encoder, gradient, chunk_size, group

    def forward(self, source: Any) -> Tensor:
        """Codes of the whole sets, the same on every rank."""
        return stream_over(self.encoder, source, gradient=self.gradient, chunk_size=self.chunk_size, group=self.group)


def mean_gradients(parameters: Iterable[nn.Parameter], *, group: Group = None) -> None:
    """Replace each gradient by its mean over ranks, as DDP does; one that a rank does not have counts as 0 there."""
    wanted = [p for p in parameters if p.requires_grad]
    for kind in dict.fromkeys((p.dtype, p.device) for p in wanted):
        some = [p for p in wanted if (p.dtype, p.device) == kind]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in some])
        _all_reduce(flat, dist.ReduceOp.SUM, group)
        flat /= dist.get_world_size(group)
        for p, mean in zip(some, flat.split([p.numel() for p in some]), strict=True):
            p.grad = mean.reshape(p.shape).clone()


@final
class _SumOver(torch.autograd.Function):
    """Sum over ranks; the cotangents are summed too, because every rank's loss depends on every rank's term."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _all_reduce(x.clone(), dist.ReduceOp.SUM, group)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _SumOver.apply(cotangent, ctx.group), None


class _Meeting:
    """The one point between the passes where ranks agree on a level, or hear that one of them failed."""

    def __init__(self, group: Group) -> None:
        self.group, self.over = group, False

    def settle(self, state: State) -> State:
        self.over = True
        return _settle(state, self.group)

    def call_off(self, start: State) -> None:
        self.over = True
        with contextlib.suppress(LostRankError):
            _settle(start, self.group, failed=True)


def _settle(state: State, group: Group, *, failed: bool = False) -> State:
    """The same content relative to the largest level of all ranks, so that sums add up."""
    kind = state.count.dtype
    parts = [state.count.new_full((1,), float(failed))]
    parts += [] if state.level is None else [state.level.detach().flatten()]
    slots = None if state.slots is None else state.slots.detach().flatten().to(kind)
    parts += [] if slots is None else [slots, -slots]
    largest = _all_reduce(torch.cat(parts), dist.ReduceOp.MAX, group).split([len(part) for part in parts])
    if bool(largest[0]):
        raise _elsewhere()
    # The largest and the smallest agree only if all do, and then every rank finds the same.
    if slots is not None and bool((largest[-1] != -largest[-2]).any()):
        raise StateError("the ranks have different slots; start from begin_over, which gives all of them the same")
    if state.level is None:
        return state
    level = largest[1].reshape(state.level.shape)
    factor = _shrink(state.level, level)
    return replace(state, sums=tuple(_times(s, factor) for s in state.sums), level=level)


def _sum(state: State, group: Group) -> State:
    """Add up states that are relative to one level, in one message."""
    parts = [*state.sums, state.count]
    whole = _SumOver.apply(torch.cat([part.flatten() for part in parts]), group)
    *sums, count = (
        total.reshape(part.shape).to(part.dtype)
        for total, part in zip(whole.split([part.numel() for part in parts]), parts, strict=True)
    )
    return replace(state, sums=tuple(sums), count=count)


def _largest(numbers: Sequence[int], device: torch.device, group: Group) -> list[int]:
    return _all_reduce(torch.tensor(numbers, device=device), dist.ReduceOp.MAX, group).tolist()


def _all_reduce(x: Tensor, how: Any, group: Group) -> Tensor:
    """Reduce in place, with errors that say what happened."""
    if not (dist.is_available() and dist.is_initialized()):
        raise OptionError(
            "there is no process group; start the program with torchrun and call "
            "torch.distributed.init_process_group first"
        )
    try:
        dist.all_reduce(x, how, group)
    except RuntimeError as error:
        raise LostRankError(
            f"another process ended or did not answer in time, so the sum over ranks cannot be made: {error}\n"
            "Look at the messages of the other processes, then start all of them again"
        ) from error
    return x


def _elsewhere() -> LostRankError:
    return LostRankError("another rank could not read its shard; its own message says why")


def _seed(encoder: MergeableEncoder, generator: torch.Generator | None, group: Group) -> int:
    """What this rank offers as a seed of the slots: a number on the first rank, less than any on the others."""
    if not encoder.training:
        return 0
    # Drawn on every rank, so that generators that were in step stay so.
    mine = int(torch.randint(2**62, (), generator=generator, device="cpu" if generator is None else generator.device))
    return mine if dist.is_initialized() and dist.get_rank(group) == 0 else -1


def _seeded(encoder: MergeableEncoder, seed: int) -> torch.Generator:
    return torch.Generator(_device(encoder)).manual_seed(seed)


def _device(encoder: MergeableEncoder) -> torch.device:
    return next(encoder.parameters()).device
