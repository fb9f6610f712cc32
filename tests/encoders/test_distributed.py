"""Shards on three processes, one of them without items, against one process that reads everything."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from setgrad.encoders import (
    UMBC,
    DeepSets,
    MergeableEncoder,
    Sharded,
    begin_over,
    mean_gradients,
    merge_over,
    stream_over,
)
from setgrad.encoders.distributed import LostRankError
from setgrad.errors import OptionError, StateError
from setgrad.sets import Sets

RANKS, DIM = 3, 3
SIZES = [7, 0, 1, 12]
CUTS = [[3, 4], [0, 0], [0, 1], [5, 7]]
# What the processes read: pieces of the sets, nothing, and the other pieces.
SHARDS = {0: 0, 2: 1}
PATIENCE = 15


def _scaled() -> MergeableEncoder:
    """Levels of the shards differ by hundreds."""
    encoder = UMBC(DIM, 8, 4, heads=2, head=nn.Sequential(nn.Flatten(1), nn.Linear(32, 5)))
    with torch.no_grad():
        encoder.read_items.weight.mul_(100)
    return encoder


ENCODERS: dict[str, Callable[[], MergeableEncoder]] = {
    "softmax": lambda: UMBC(DIM, 8, 4, heads=2, head=nn.Sequential(nn.Flatten(1), nn.Linear(32, 5))),
    "large logits": _scaled,
    "slot set encoder": lambda: UMBC(DIM, 8, 4, heads=2, activation="slot-sigmoid", normalize="none"),
    "deep sets": lambda: DeepSets(
        DIM, nn.Sequential(nn.Linear(DIM, 6), nn.Tanh()), pooling="mean", head=nn.Linear(6, 2)
    ),
}
WAYS = ("merge", "full", "exact", "full, DDP", "exact, DDP")


def make(name: str) -> MergeableEncoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ENCODERS[name]().double().eval()


def draw() -> Sets:
    generator = torch.Generator().manual_seed(0)
    return Sets.from_lengths(torch.randn(sum(SIZES), DIM, generator=generator, dtype=torch.float64), SIZES)


def shard_of(rank: int) -> list[Sets]:
    """Chunks of this rank; a piece of each set, cut in two."""
    if rank not in SHARDS:
        return []
    pieces = [x.split(cut)[SHARDS[rank]] for x, cut in zip(draw().to_list(), CUTS, strict=True)]
    return [Sets.from_list([x[:2] for x in pieces]), Sets.from_list([x[2:] for x in pieces])]


def loss_of(value: Tensor) -> Tensor:
    return (value.square() * torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape)).sum()


def code(encoder: MergeableEncoder, kind: str, rank: int) -> Tensor:
    if kind == "merge":
        state = encoder.begin(len(SIZES))
        for chunk in shard_of(rank):
            state = encoder.update(state, chunk)
        return encoder.finish(merge_over(state))
    return stream_over(encoder, shard_of(rank), gradient=kind)


def gradients(encoder: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in encoder.parameters()]


# --- what runs in the processes


def start(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=PATIENCE),
    )


def compute(rank: int, folder: Path) -> None:
    start(rank, folder)
    found: dict[Any, Any] = {}
    for name in ENCODERS:
        for way in WAYS:
            encoder = make(name)
            kind, _, ddp = way.partition(", ")
            if ddp:
                # It must live until the backward pass is over, and the second step has other buckets than the first.
                wrapped = DistributedDataParallel(Sharded(encoder, gradient=kind))
                for _ in range(2):
                    wrapped.zero_grad()
                    value = wrapped(shard_of(rank))
                    loss_of(value).backward()
            else:
                value = code(encoder, kind, rank)
                loss_of(value).backward()
                mean_gradients(encoder.parameters())
            found[name, way] = (value.detach(), gradients(encoder))
    # Every rank its own loss: the mean of them is what is differentiated.
    encoder = make("softmax")
    ((rank + 1) * loss_of(code(encoder, "exact", rank))).backward()
    mean_gradients(encoder.parameters())
    found["own losses"] = gradients(encoder)
    found["slots"] = random_slots(rank)
    found["errors"] = refused(rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def random_slots(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    encoder = UMBC(DIM, 8, 4, heads=2, random=True).double().train()
    # From here on the ranks draw other numbers.
    torch.manual_seed(rank)
    first = begin_over(encoder, 4)
    state = first
    for chunk in shard_of(rank):
        state = encoder.update(state, chunk)
    own = encoder.begin(4)
    try:
        merge_over(own)
        told = ""
    except StateError as error:
        told = str(error)
    streamed = stream_over(encoder, shard_of(rank))
    loss_of(streamed).backward()
    mean_gradients(encoder.parameters())
    return {
        "slots": first.slots.detach(),
        "own": own.slots.detach(),
        "told": told,
        "merged": encoder.finish(merge_over(state)).detach(),
        "streamed": streamed.detach(),
        "spread": encoder.spread.grad,
    }


def refused(rank: int) -> dict[str, str]:
    encoder = make("softmax")
    good = shard_of(0)

    def broken():
        yield good[0]
        raise OSError("the disk is gone")

    def told(work: Callable[[], object]) -> str:
        try:
            work()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    nan = good[0].with_values(good[0].values * torch.nan)
    return {
        "batch": told(lambda: stream_over(encoder, [good[0][: rank + 1]])),
        "shapes": told(lambda: merge_over(encoder.begin(rank + 1))),
        "nothing": told(lambda: stream_over(encoder, [])),
        "broken": told(lambda: stream_over(encoder, broken if rank == 1 else good)),
        "broken, full": told(lambda: stream_over(encoder, broken if rank == 1 else good, gradient="full")),
        "no source": told(lambda: stream_over(encoder, 3 if rank == 1 else good)),
        "nan": told(lambda: stream_over(encoder, [good[0], nan] if rank == 2 else good)),
        # The group is in order after all of that.
        "after": told(lambda: stream_over(encoder, good)),
    }


def lose(rank: int, folder: Path, where: str) -> None:
    start(rank, folder)
    encoder = make("softmax")
    if rank == 2 and where == "forward":
        os._exit(9)
    value = stream_over(encoder, shard_of(rank))
    if rank == 2:
        os._exit(9)
    try:
        loss_of(value).backward()
    except RuntimeError as error:
        (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")
    os._exit(0)


def lose_forward(rank: int, folder: Path) -> None:
    try:
        lose(rank, folder, "forward")
    except LostRankError as error:
        (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(0)


def lose_backward(rank: int, folder: Path) -> None:
    lose(rank, folder, "backward")


def launch(work: Callable[..., None], folder: Path) -> list[int | None]:
    """Run three processes to their end; None for one that had to be stopped."""
    context = mp.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, folder), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    limit = time.monotonic() + 120
    for process in processes:
        process.join(max(0.0, limit - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


# --- what they found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    assert launch(compute, folder) == [0, 0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ENCODERS)
def test_shards_give_value_and_gradient_of_the_whole(found, name, way):
    encoder = make(name)
    value = encoder(draw())
    loss_of(value).backward()
    expected = gradients(encoder)
    scale = max(float(g.abs().max()) for g in expected)
    for rank in range(RANKS):
        ours, parameters = found[rank][name, way]
        torch.testing.assert_close(ours, value, rtol=1e-12, atol=1e-12)
        for a, b in zip(parameters, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * max(1.0, scale))


def test_the_mean_of_the_losses_of_the_ranks_is_differentiated(found):
    encoder = make("softmax")
    (2 * loss_of(encoder(draw()))).backward()
    for rank in range(RANKS):
        for a, b in zip(found[rank]["own losses"], gradients(encoder), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_random_slots_are_those_of_the_first_rank(found):
    first, *others = (one["slots"] for one in found)
    for other in others:
        assert torch.equal(first["slots"], other["slots"])
        assert not torch.equal(first["own"], other["own"])
        assert torch.equal(first["merged"], other["merged"]) and torch.equal(first["streamed"], other["streamed"])
        torch.testing.assert_close(first["spread"], other["spread"], rtol=0, atol=0)
    assert float(first["spread"].abs().max()) > 0
    assert all("start from begin_over" in one["slots"]["told"] for one in found)


def test_an_error_on_one_rank_is_an_error_on_all(found):
    errors = [one["errors"] for one in found]
    for one in errors:
        assert one["batch"].startswith("ShapeError: chunks have pieces of 1 sets on one rank and of 3 on another")
        assert one["shapes"].startswith("ShapeError: the ranks hold states of different")
        assert one["nothing"].startswith("DataError: no rank has a chunk")
        assert one["after"] == "nothing"
    for kind, culprit, text in (
        ("broken", 1, "OSError: the disk is gone"),
        ("broken, full", 1, "OSError: the disk is gone"),
        ("no source", 1, "DataError: chunks cannot be read from int"),
        ("nan", 2, "DataError: a chunk holds NaN"),
    ):
        for rank, one in enumerate(errors):
            expected = text if rank == culprit else "LostRankError: another rank could not read its shard"
            assert one[kind].startswith(expected), (kind, rank, one[kind])


@pytest.mark.parametrize("work", [lose_forward, lose_backward])
def test_a_process_that_dies_ends_the_others_with_an_error(work, tmp_path):
    assert launch(work, tmp_path) == [0, 0, 9]
    for rank in range(2):
        told = (tmp_path / f"{rank}.txt").read_text()
        assert told.startswith("LostRankError: another process ended or did not answer in time"), told


def test_without_a_group_there_is_a_remedy():
    encoder = make("softmax")
    with pytest.raises(OptionError, match="start the program with torchrun"):
        merge_over(encoder.begin(1))
    with pytest.raises(OptionError, match="start the program with torchrun"):
        stream_over(encoder, draw())
    with pytest.raises(OptionError, match="unknown gradient"):
        Sharded(encoder, gradient="magic")
