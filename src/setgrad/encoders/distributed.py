"""One set over many machines: every rank reads its own shard, and states are summed with torch.distributed.

Gradients are exact. Let R ranks read shards with states S_r(θ), let S = Σ S_r be their merged state, and let every rank
compute a loss L_r(S, θ) from it. The derivative of a sum over ranks is a sum over ranks, so rank r gets

    g_r = ∂S_r/∂θ · Σ_q ∂L_q/∂S + ∂L_r/∂θ,    and the mean is    (1/R) Σ_r g_r = d/dθ (1/R) Σ_q L_q.

If all ranks compute the same loss from the same S, the mean of the gradients over ranks is therefore the gradient of
one process that reads all items: for the encoder, its slots and the head. DistributedDataParallel (DDP) takes this
mean; without DDP, `mean_gradients` does.

Every rank must take part in every merge and every backward pass, even if it has no items. If a process dies, the others
raise a `LostRankError` here, at once or after the timeout of the group (`timeout=` of `init_process_group`).
`guard_ranks` ends all processes within its timeout, also while they read, save, or are inside DDP.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from setgrad.encoders import _ranks
from setgrad.encoders._base import first_tensor
from setgrad.encoders._chunks import check_untracked, peek_batch_size, with_prefetch
from setgrad.encoders._max_state import MaxState
from setgrad.encoders._mergeable import ChunkedEncoder, MergeableEncoder, unit_counts
from setgrad.encoders._passes import InMemoryPasses, Passes
from setgrad.encoders._ranks import RankGroup, all_reduce, failed_elsewhere, max_numbers
from setgrad.encoders._snapshot import EncoderSnapshot
from setgrad.encoders._state import State
from setgrad.encoders.streaming import ReplayedPasses, check_stream_options, guarded
from setgrad.errors import DataError, ShapeError

if TYPE_CHECKING:
    from setgrad.encoders._ranks import Group
# Stands for a rank without chunks; below minus any batch size.
_NO_CHUNK = -(2**31)
AnyState = TypeVar("AnyState", State, MaxState)


def merge_over(state: AnyState, *, group: Group = None) -> AnyState:
    """Return the merged state of all ranks, on every rank, with exact gradients.

    If all ranks compute the same loss from the merged state, the mean of their gradients (`DistributedDataParallel`, or
    `mean_gradients`) is the gradient of one process that reads all items.

    Args:
        state: The state of this rank: `encoder.begin(batch)`, or `begin_over` for random slots, if it has no items.
        group: The process group; None for all processes.

    Raises:
        ShapeError: If the states belong to different encoders or batches.
        StateError: If the ranks have different slots.
        OptionError: If there is no process group.
        LostRankError: If another process fails.

    Examples:
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
    sizes: list[int] = _sizes(state)
    signed = [*sizes, *(-n for n in sizes)]
    device = state.length.device if isinstance(state, MaxState) else state.count.device
    if max_numbers(signed, device, group) != signed:
        raise ShapeError(
            "the ranks hold states of different encoders or batches; every rank needs the same encoder and a part, "
            "possibly empty, of each set of the same batch"
        )
    if isinstance(state, MaxState):
        return _ranks.maximum_state(state, group)
    return _ranks.total_state(_ranks.synchronise(state, group), group)


def _sizes(state: State | MaxState) -> list[int]:
    """Return five numbers that differ for states that cannot be merged."""
    digest = None if state.encoder is None else state.encoder.digest
    mark = 0 if digest is None else int(digest[:15], 16)
    if isinstance(state, MaxState):
        return [len(state), state.value.numel(), state.items.numel(), -1, mark]
    sizes = [0 if part is None else part.numel() for part in (state.level, state.slots)]
    return [len(state), sum(s.numel() for s in state.sums), *sizes, mark]


def begin_over(
    encoder: MergeableEncoder, batch: int = 1, *, generator: torch.Generator | None = None, group: Group = None
) -> State:
    """Return the state of empty sets, with random slots that are the same on every rank.

    All ranks use the seed of rank 0, so that the slots have a graph on every rank.
    """
    device = first_tensor(encoder).device
    (seed,) = max_numbers([_slot_seed(encoder, generator, group)], device, group)
    return encoder.begin(batch, generator=torch.Generator(device).manual_seed(seed))


def stream_over(
    encoder: ChunkedEncoder,
    source: Any,
    *,
    gradient: str = "exact",
    chunk_size: int = 4096,
    samples: int = 1,
    generator: torch.Generator | None = None,
    verbose: int = 0,
    prefetch: bool | None = None,
    group: Group = None,
) -> Tensor:
    """Return the codes of sets of which every rank reads a shard: `stream` over many machines.

    With "exact" each rank reads its shard twice and keeps one chunk in memory; one state is sent in each direction.
    Slots are the same on all ranks. A source without chunks (`[]`) is a shard without items. If reading fails on one
    rank, all of them raise. The items with a maximum (`MaxPool`, `DSMIL`) are sent to all ranks, and each rank runs
    them again.

    Args:
        encoder: The same encoder on every rank; for DDP wrap it in `Sharded`.
        source: The shard of this rank, as for `stream`. Its chunks hold parts of the same sets on every rank.
        gradient: "full", "exact" or "sample" (every rank draws from its own chunks).
        chunk_size: Items of each set in a chunk, unless the source defines the chunks.
        samples: Chunks of a rank that "sample" differentiates.
        generator: Draws these chunks; None for a new generator with a random seed.
        verbose: 1 shows a progress bar for each pass.
        prefetch: Whether to read the next chunk in a thread during the computation; None does so for files.
        group: The process group; None for all processes.

    Raises:
        OptionError: As `stream`, and if there is no process group.
        DataError: As `stream`, and if no rank has a chunk.
        ShapeError: As `stream`, and if the ranks read batches of different sizes.
        LostRankError: If another process fails.
    """
    check_stream_options(encoder, gradient, chunk_size, samples, generator)
    device = first_tensor(encoder).device
    try:
        batch, chunks = peek_batch_size(source, chunk_size, device)
    except Exception:
        max_numbers([0, _NO_CHUNK, 0, 1], device, group)
        raise
    size = [0, _NO_CHUNK] if batch is None else [batch, -batch]
    largest, negative, seed, failed = max_numbers([*size, _slot_seed(encoder, None, group), 0], device, group)
    if failed:
        raise failed_elsewhere()
    if negative == _NO_CHUNK:
        raise DataError("no rank has a chunk; for sets without items, pass one chunk of empty sets")
    if largest != -negative:
        raise ShapeError(
            f"chunks hold items of {-negative} sets on one rank and of {largest} on another; every rank reads a part, "
            "possibly empty, of each set of the same batch"
        )
    chunks = with_prefetch(chunks, source, chunk_size, verbose=verbose, prefetch=prefetch)
    slot_generator = torch.Generator(device).manual_seed(seed)
    ranks = RankGroup(group, device)
    passes: Passes
    if gradient == "full" and torch.is_grad_enabled():
        empty = encoder.empty_sets(largest)
        # A rank without chunks needs a state too.
        start = (empty, unit_counts(empty))
        passes = InMemoryPasses(
            lambda: itertools.chain([start], guarded(ranks.awaiting(chunks), largest)),
            slot_generator,
            ranks,
            checked=True,
        )
    else:
        sampled = samples if gradient == "sample" else None
        read = ranks.awaiting(check_untracked(chunks))
        snapshot = EncoderSnapshot(encoder)
        passes = ReplayedPasses(encoder, read, largest, sampled, generator, snapshot, slot_generator, ranks)
    try:
        return encoder.encode(passes)
    except Exception:
        # The other ranks wait for the end of this pass.
        if ranks.awaited:
            ranks.check_all(failed=True)
        raise


@final
class Sharded(nn.Module):
    """An encoder whose call takes the shard of this rank: `DistributedDataParallel(Sharded(encoder))(source)`.

    The gradients of all parameters are returned once, after the second pass, so that DDP reduces each of them once.
    Keep the DDP module in a variable: without it its hooks are gone, and gradients stay those of one rank.

    Args:
        encoder: The same encoder on every rank.
        gradient: "full", "exact" or "sample".
        chunk_size: Items of each set in a chunk, unless the source defines the chunks.
        group: The process group; None for all processes.

    Raises:
        OptionError: If an option is unknown or out of range, or the encoder cannot read sets in chunks.

    Examples:
        >>> from setgrad.encoders import UMBC
        >>> Sharded(UMBC(3, dim=8, slots=4), chunk_size=1000).gradient
        'exact'
    """

    def __init__(
        self, encoder: ChunkedEncoder, *, gradient: str = "exact", chunk_size: int = 4096, group: Group = None
    ) -> None:
        super().__init__()
        check_stream_options(encoder, gradient, chunk_size, 1)
        self.encoder, self.gradient, self.chunk_size, self.group = encoder, gradient, chunk_size, group

    def forward(self, source: Any) -> Tensor:
        """Return the codes of the whole sets, the same on every rank; see `stream_over`."""
        return stream_over(self.encoder, source, gradient=self.gradient, chunk_size=self.chunk_size, group=self.group)


def mean_gradients(parameters: Iterable[nn.Parameter], *, group: Group = None) -> None:
    """Replace each gradient by its mean over ranks, as DDP does; a missing gradient counts as 0."""
    trained = [p for p in parameters if p.requires_grad]
    for kind in dict.fromkeys((p.dtype, p.device) for p in trained):
        alike = [p for p in trained if (p.dtype, p.device) == kind]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in alike])
        all_reduce(flat, dist.ReduceOp.SUM, group)
        flat /= dist.get_world_size(group)
        for p, mean in zip(alike, flat.split([p.numel() for p in alike]), strict=True):
            p.grad = mean.reshape(p.shape).clone()


def _slot_seed(encoder: ChunkedEncoder, generator: torch.Generator | None, group: Group) -> int:
    """Return the seed that this rank proposes for random slots: at least 0 on the first rank, -1 on the others."""
    if not encoder.training:
        return 0
    # Drawn on every rank, so that synchronised generators stay synchronised.
    seed = int(torch.randint(2**62, (), generator=generator, device="cpu" if generator is None else generator.device))
    return seed if dist.is_initialized() and dist.get_rank(group) == 0 else -1
