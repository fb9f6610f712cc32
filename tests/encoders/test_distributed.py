"""Shards on three processes, one of them without items, against one process that reads everything."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
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
    DSMIL,
    UMBC,
    DeepSets,
    DeepUMBC,
    DiffEM,
    MaxPool,
    MergeableEncoder,
    Sharded,
    begin_over,
    mean_gradients,
    merge_over,
    stream_over,
)
from setgrad.errors import OptionError, StateError
from setgrad.sets import Sets
from tests.encoders.pieces import Orders

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


ENCODERS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: UMBC(DIM, 8, 4, heads=2, head=nn.Sequential(nn.Flatten(1), nn.Linear(32, 5))),
    "large logits": _scaled,
    "slot set encoder": lambda: UMBC(DIM, 8, 4, heads=2, activation="slot-sigmoid", normalize="none"),
    "deep sets": lambda: DeepSets(
        DIM, nn.Sequential(nn.Linear(DIM, 6), nn.Tanh()), pooling="mean", head=nn.Linear(6, 2)
    ),
    "max": lambda: MaxPool(DIM, nn.Sequential(nn.Linear(DIM, 6), nn.Tanh()), head=nn.Linear(6, 2)),
    "em": lambda: DiffEM(DIM, nn.Linear(DIM, 2), components=3, steps=2),
    "ds-mil": lambda: DSMIL(DIM, nn.Linear(DIM, 5), classes=2, hidden=4),
    "umbc, deep": lambda: DeepUMBC(DIM, 8, 3, passes=2, phi=nn.Linear(DIM, 5)),
}
WAYS = ("merge", "full", "exact", "sample", "full, DDP", "exact, DDP")
# These keep no state; they go through their shards several times.
SEVERAL = ("em", "ds-mil", "umbc, deep")
PAIRS = [(name, way) for name in ENCODERS for way in WAYS if name not in SEVERAL or way != "merge"]


def make(name: str) -> Any:
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


def code(encoder: Any, kind: str, rank: int) -> Tensor:
    if kind == "merge":
        state = encoder.begin(len(SIZES))
        for chunk in shard_of(rank):
            state = encoder.update(state, chunk)
        return encoder.finish(merge_over(state))
    # As many samples as chunks: "sample" is exact, too.
    return stream_over(encoder, shard_of(rank), gradient=kind, samples=2)


def gradients(encoder: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in encoder.parameters()]


# --- what runs in the processes


def start(rank: int, folder: Path, patience: float = PATIENCE) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=patience),
    )


def compute(rank: int, folder: Path) -> None:
    start(rank, folder)
    found: dict[Any, Any] = {}
    for name, way in PAIRS:
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
    found["sampled"] = sampled(rank)
    found["slots"] = random_slots(rank)
    found["largest"] = {kind: largest(rank, kind) for kind in (torch.int64, torch.bool)}
    found["errors"] = refused(rank)
    pool = MaxPool(DIM, Root()).eval()
    item = torch.tensor([[-1.0 if rank == 2 else 1.0, 4.0, 9.0 * rank]])
    found["nan"] = pool.finish(merge_over(pool.update(pool.begin(), Sets.from_list([item]))))
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def sampled(rank: int) -> list[Tensor]:
    """The mean over all orders of the chunks of both ranks that have any; one of two chunks is drawn."""
    orders, total = list(itertools.product([(0, 1), (1, 0)], repeat=2)), None
    for order in orders:
        encoder = make("softmax")
        mine = Orders([order[SHARDS[rank]] if rank in SHARDS else ()])
        loss_of(stream_over(encoder, shard_of(rank), gradient="sample", generator=mine)).backward()
        mean_gradients(encoder.parameters())
        found = [g / len(orders) for g in gradients(encoder)]
        total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    return total


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


class Letters(nn.Module):
    """Whole numbers in, numbers out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long()).flatten(1)


class Root(nn.Module):
    """NaN for items with a negative number."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


def tokens(kind: torch.dtype) -> tuple[MaxPool, list[Sets]]:
    """An encoder of names, and a shard for each rank: the second has none and does not know what items are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = MaxPool(2, Letters()).eval()
    # The items of the last rank are among those of the first: of equals the first one wins.
    numbers = {n: torch.arange(n).reshape(-1, 2) // (1 if kind == torch.int64 else 5) for n in (20, 12)}
    return encoder, [Sets.from_lengths(x.to(kind), [n // 2 - 2, 2]) for n, x in numbers.items()]


def largest(rank: int, kind: torch.dtype) -> dict[str, Tensor]:
    encoder, shards = tokens(kind)
    state = encoder.begin(2)
    if rank in SHARDS:
        state = encoder.update(state, shards[SHARDS[rank]])
    merged = merge_over(state)
    return {name: getattr(merged, name).detach() for name in ("value", "number", "items", "length")}


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
    root, fine = DeepSets(DIM, Root()).eval(), [chunk.with_values(chunk.values.abs()) for chunk in good]
    bad = [fine[0], fine[1].with_values(-fine[1].values)]
    return {
        "batch": told(lambda: stream_over(encoder, [good[0][: rank + 1]])),
        "shapes": told(lambda: merge_over(encoder.begin(rank + 1))),
        "nothing": told(lambda: stream_over(encoder, [])),
        "broken": told(lambda: stream_over(encoder, broken if rank == 1 else good)),
        "broken, full": told(lambda: stream_over(encoder, broken if rank == 1 else good, gradient="full")),
        "no source": told(lambda: stream_over(encoder, 3 if rank == 1 else good)),
        "nan": told(lambda: stream_over(encoder, [good[0], nan] if rank == 2 else good)),
        "phi": told(lambda: stream_over(root, bad if rank == 2 else fine)),
        "phi, full": told(lambda: stream_over(root, bad if rank == 2 else fine, gradient="full")),
        "phi, max": told(lambda: stream_over(MaxPool(DIM, Root()).eval(), bad if rank == 2 else fine)),
        # The group is in order after all of that.
        "after": told(lambda: stream_over(encoder, good)),
    }


def launch(work: Callable[..., None], folder: Path, *, sleeps: bool = False) -> list[int | None]:
    """Run three processes to their end; None for one that had to be stopped, as the last one if it `sleeps`."""
    context = mp.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, folder), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    limit = time.monotonic() + 120
    for process in processes[: RANKS - sleeps]:
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


@pytest.mark.parametrize(("name", "way"), PAIRS)
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


def test_the_mean_of_gradients_sampled_on_all_ranks_is_the_whole_gradient(found):
    encoder = make("softmax")
    loss_of(encoder(draw())).backward()
    for rank in range(RANKS):
        torch.testing.assert_close(found[rank]["sampled"], gradients(encoder), rtol=1e-12, atol=1e-12)


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
        ("nan", 2, "DataError: chunk 1 holds NaN"),
        ("phi", 2, "DataError: phi, or what is summed of it"),
        ("phi, full", 2, "DataError: phi, or what is summed of it"),
        ("phi, max", 2, "DataError: phi, or what is summed of it"),
    ):
        for rank, one in enumerate(errors):
            expected = text if rank == culprit else "LostRankError: another rank could not read its shard"
            assert one[kind].startswith(expected), (kind, rank, one[kind])


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_the_largest_of_all_ranks_has_its_item_and_number(found, kind):
    encoder, shards = tokens(kind)
    whole = Sets.from_list([torch.cat(parts) for parts in zip(*(s.to_list() for s in shards), strict=True)])
    state = encoder.update(encoder.begin(2), whole)
    for rank in range(RANKS):
        for name, ours in found[rank]["largest"][kind].items():
            assert torch.equal(ours, getattr(state, name)), (rank, name)
    assert state.items.dtype == kind


def test_nan_of_one_rank_is_the_largest_of_all(found):
    for one in found:
        torch.testing.assert_close(one["nan"], torch.tensor([[torch.nan, 2.0, 18**0.5]]), equal_nan=True)


def test_the_example_gives_the_same_numbers_on_any_number_of_processes():
    """Started by torchrun, as its page says."""
    script = Path(__file__).resolve().parents[2] / "examples" / "sharded_set.py"
    printed = []
    for ranks in (1, 3):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*launcher, script], capture_output=True, text=True, timeout=240, env=environment)
        assert done.returncode == 0, done.stderr
        printed.append([float(line.rsplit(maxsplit=1)[1]) for line in done.stdout.splitlines()])
    assert len(printed[0]) == 5 and printed[0][-1] < printed[0][0] / 5
    torch.testing.assert_close(*map(torch.tensor, printed), rtol=1e-6, atol=0)


def test_without_a_group_there_is_a_remedy():
    encoder = make("softmax")
    with pytest.raises(OptionError, match="start the program with torchrun"):
        merge_over(encoder.begin(1))
    with pytest.raises(OptionError, match="start the program with torchrun"):
        stream_over(encoder, draw())
    with pytest.raises(OptionError, match="unknown gradient"):
        Sharded(encoder, gradient="magic")
