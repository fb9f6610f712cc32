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

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from setgrad.encoders import _ranks
from setgrad.encoders._base import place_of
from setgrad.encoders._chunks import begun, watched, without_graph
from setgrad.encoders._max_state import MaxState
from setgrad.encoders._mergeable import ChunkedEncoder, MergeableEncoder, item_weights
from setgrad.encoders._moment import Moment
from setgrad.encoders._passes import Kept, Passes
from setgrad.encoders._ranks import Meeting, all_reduce, elsewhere, largest_numbers
from setgrad.encoders._state import State
from setgrad.encoders.streaming import Again, check_options, noted
from setgrad.errors import DataError, ShapeError

if TYPE_CHECKING:
    from setgrad.encoders._ranks import Group
# Below minus the batch that any rank could have.
_NONE = -(2**31)
Kind = TypeVar("Kind", State, MaxState)


def merge_over(state: Kind, *, group: Group = None) -> Kind:
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
    numbers: list[int] = _sizes(state)
    found = largest_numbers([*numbers, *(-n for n in numbers)], _device(state), group)
    if found != [*numbers, *(-n for n in numbers)]:
        raise ShapeError(
            "the ranks hold states of different encoders or batches; every rank needs the same encoder and a piece, "
            "which may be empty, of each set of the same batch"
        )
    if isinstance(state, MaxState):
        return _ranks.largest(state, group)
    return _ranks.total(_ranks.settle(state, group), group)


def _sizes(state: State | MaxState) -> list[int]:
    """As many numbers for every kind of state, which differ if states cannot be merged."""
    if isinstance(state, MaxState):
        return [len(state), state.value.numel(), state.items.numel(), -1]
    sizes = [0 if part is None else part.numel() for part in (state.level, state.slots)]
    return [len(state), sum(s.numel() for s in state.sums), *sizes]


def _device(state: State | MaxState) -> torch.device:
    return state.length.device if isinstance(state, MaxState) else state.count.device


def begin_over(
    encoder: MergeableEncoder, batch: int = 1, *, generator: torch.Generator | None = None, group: Group = None
) -> State:
    """The state of sets without items, with random slots that are the same on every rank.

    The seed of rank 0 is used everywhere, so that the slots have a graph on every rank.
    """
    device = place_of(encoder).device
    (seed,) = largest_numbers([_seed(encoder, generator, group)], device, group)
    return encoder.begin(batch, generator=torch.Generator(device).manual_seed(seed))


def stream_over(
    encoder: ChunkedEncoder,
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
    reading fails on one rank, all of them raise. Items that won a maximum (`MaxPool`, `DSMIL`) travel to all ranks, and
    each runs them again.

    Args:
        encoder: The same encoder on every rank; for DDP wrap it as `Sharded`.
        source: The shard of this rank, as for `stream`. Its chunks hold pieces of the same sets on every rank.
        gradient: "full", "exact" or "sample" (every rank draws from its own chunks).
        chunk_size: Items of each set in a chunk, where the source does not say.
        samples: Chunks of a rank that "sample" differentiates.
        generator: Draws them.
        verbose: 1 shows a bar for each pass.
        prefetch: Read the next chunk in a thread while the last one is computed; None does so for files.
        group: The process group; None for all processes.
    """
    check_options(encoder, gradient, chunk_size, samples, generator)
    device = place_of(encoder).device
    try:
        mine, chunks = begun(source, chunk_size, device)
    except Exception:
        largest_numbers([0, _NONE, 0, 1], device, group)
        raise
    size = [0, _NONE] if mine is None else [mine, -mine]
    most, least, seed, failed = largest_numbers([*size, _seed(encoder, None, group), 0], device, group)
    if failed:
        raise elsewhere()
    if least == _NONE:
        raise DataError("no rank has a chunk; for sets without items give one chunk of empty pieces")
    if most != -least:
        raise ShapeError(
            f"chunks have pieces of {-least} sets on one rank and of {most} on another; every rank reads a piece, "
            "which may be empty, of each set of the same batch"
        )
    chunks = watched(chunks, source, chunk_size, verbose, prefetch)
    slots = torch.Generator(device).manual_seed(seed)
    ranks = Meeting(group, device)
    kept = gradient == "full" and torch.is_grad_enabled()
    passes: Passes
    if kept:
        nothing = encoder.nothing(most)
        # A rank without chunks has a state too.
        start = (nothing, item_weights(None, nothing))
        passes = Kept(lambda: itertools.chain([start], noted(ranks.reads(chunks), most)), slots, ranks, checked=True)
    else:
        drawn = samples if gradient == "sample" else None
        read = ranks.reads(without_graph(chunks))
        passes = Again(encoder, read, most, drawn, generator, Moment(encoder), slots, ranks)
    try:
        return encoder.encode(passes)
    except Exception:
        # The others wait for what this rank reads.
        if ranks.awaited:
            ranks.agree(failed=True)
        raise


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
        self, encoder: ChunkedEncoder, *, gradient: str = "exact", chunk_size: int = 4096, group: Group = None
    ) -> None:
        super().__init__()
        check_options(encoder, gradient, chunk_size, 1)
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
        all_reduce(flat, dist.ReduceOp.SUM, group)
        flat /= dist.get_world_size(group)
        for p, mean in zip(some, flat.split([p.numel() for p in some]), strict=True):
            p.grad = mean.reshape(p.shape).clone()


def _seed(encoder: ChunkedEncoder, generator: torch.Generator | None, group: Group) -> int:
    """What this rank offers as a seed of the slots: a number on the first rank, less than any on the others."""
    if not encoder.training:
        return 0
    # Drawn on every rank, so that generators that were in step stay so.
    mine = int(torch.randint(2**62, (), generator=generator, device="cpu" if generator is None else generator.device))
    return mine if dist.is_initialized() and dist.get_rank(group) == 0 else -1
