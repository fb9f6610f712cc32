"""Shards on three processes, one of them without items, compared with one process that reads everything."""

from __future__ import annotations

import itertools
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
    SlotSigmoid,
    begin_over,
    mean_gradients,
    merge_over,
    stream_over,
)
from setgrad.errors import OptionError, StateError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, SIZES, generator_drawing, random_sets

RANKS = 3
CUTS = [[3, 4], [0, 0], [0, 1], [5, 7]]
# Which of the two parts a process reads; the second process reads nothing.
SHARDS = {0: 0, 2: 1}
TIMEOUT = 15


def _scaled() -> MergeableEncoder:
    """Return an encoder for which the levels of the shards differ by hundreds."""
    encoder = UMBC(DIM, 8, 4, heads=2, head=nn.Sequential(nn.Flatten(1), nn.Linear(32, 5)))
    with torch.no_grad():
        encoder.read_items.weight.mul_(100)
    return encoder


ENCODERS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: UMBC(DIM, 8, 4, heads=2, head=nn.Sequential(nn.Flatten(1), nn.Linear(32, 5))),
    "large logits": _scaled,
    "slot set encoder": lambda: UMBC(DIM, 8, 4, heads=2, activation=SlotSigmoid(), normalize=False),
    "deep sets": lambda: DeepSets(
        DIM, nn.Sequential(nn.Linear(DIM, 6), nn.Tanh()), pooling="mean", head=nn.Linear(6, 2)
    ),
    "max": lambda: MaxPool(DIM, nn.Sequential(nn.Linear(DIM, 6), nn.Tanh()), head=nn.Linear(6, 2)),
    "em": lambda: DiffEM(DIM, nn.Linear(DIM, 2), components=3, steps=2),
    "ds-mil": lambda: DSMIL(DIM, nn.Linear(DIM, 5), classes=2, hidden=4),
    "umbc, deep": lambda: DeepUMBC(DIM, 8, 3, passes=2, phi=nn.Linear(DIM, 5)),
}
MODES = ("merge", "full", "exact", "sample", "full, DDP", "exact, DDP")
# These have no state; they read their shards several times.
WITHOUT_STATE = ("em", "ds-mil", "umbc, deep")
PAIRS = [(name, mode) for name in ENCODERS for mode in MODES if name not in WITHOUT_STATE or mode != "merge"]


def make(name: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ENCODERS[name]().double().eval()


def shard_of(rank: int) -> list[Sets]:
    """Return the chunks of this rank: a part of each set, cut in two."""
    if rank not in SHARDS:
        return []
    parts = [x.split(cut)[SHARDS[rank]] for x, cut in zip(random_sets().to_list(), CUTS, strict=True)]
    return [Sets.from_list([x[:2] for x in parts]), Sets.from_list([x[2:] for x in parts])]


def loss_of(code: Tensor) -> Tensor:
    return (code.square() * torch.linspace(-1, 1, code.numel(), dtype=code.dtype).reshape(code.shape)).sum()


def encode(encoder: Any, mode: str, rank: int) -> Tensor:
    if mode == "merge":
        state = encoder.begin(len(SIZES))
        for chunk in shard_of(rank):
            state = encoder.update(state, chunk)
        return encoder.finish(merge_over(state))
    # With as many samples as chunks, "sample" is exact too.
    return stream_over(encoder, shard_of(rank), gradient=mode, samples=2)


def gradients(encoder: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in encoder.parameters()]


# --- in the processes


def start(rank: int, folder: Path, timeout: float = TIMEOUT) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=timeout),
    )


def compute(rank: int, folder: Path) -> None:
    start(rank, folder)
    results: dict[Any, Any] = {}
    for name, mode in PAIRS:
        encoder = make(name)
        gradient, _, ddp = mode.partition(", ")
        if ddp:
            # It must live until the backward pass is over, and the second step has other buckets than the first.
            wrapped = DistributedDataParallel(Sharded(encoder, gradient=gradient))
            for _ in range(2):
                wrapped.zero_grad()
                code = wrapped(shard_of(rank))
                loss_of(code).backward()
        else:
            code = encode(encoder, gradient, rank)
            loss_of(code).backward()
            mean_gradients(encoder.parameters())
        results[name, mode] = (code.detach(), gradients(encoder))
    # Every rank has its own loss; their mean is differentiated.
    encoder = make("softmax")
    ((rank + 1) * loss_of(encode(encoder, "exact", rank))).backward()
    mean_gradients(encoder.parameters())
    results["own losses"] = gradients(encoder)
    results["sampled"] = sampled_gradients(rank)
    results["slots"] = random_slots(rank)
    results["maxima"] = {dtype: maxima(rank, dtype) for dtype in (torch.int64, torch.bool)}
    results["errors"] = error_messages(rank)
    pool = MaxPool(DIM, SquareRoot()).eval()
    item = torch.tensor([[-1.0 if rank == 2 else 1.0, 4.0, 9.0 * rank]])
    results["nan"] = pool.finish(merge_over(pool.update(pool.begin(), Sets.from_list([item]))))
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


def sampled_gradients(rank: int) -> list[Tensor]:
    """Return the mean over all orders of the chunks of both ranks that have any; one of two chunks is drawn."""
    encoder = make("softmax")
    for order in itertools.product([(0, 1), (1, 0)], repeat=2):
        generator = generator_drawing([order[SHARDS[rank]]] if rank in SHARDS else [])
        loss_of(stream_over(encoder, shard_of(rank), gradient="sample", generator=generator)).backward()
    mean_gradients(encoder.parameters())
    return [g / 4 for g in gradients(encoder)]


def random_slots(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    encoder = UMBC(DIM, 8, 4, heads=2, random=True).double().train()
    # From now on the ranks draw different numbers.
    torch.manual_seed(rank)
    first = begin_over(encoder, 4)
    state = first
    for chunk in shard_of(rank):
        state = encoder.update(state, chunk)
    own = encoder.begin(4)
    try:
        merge_over(own)
        message = ""
    except StateError as error:
        message = str(error)
    streamed = stream_over(encoder, shard_of(rank))
    loss_of(streamed).backward()
    mean_gradients(encoder.parameters())
    return {
        "slots": first.slots.detach(),
        "own": own.slots.detach(),
        "message": message,
        "merged": encoder.finish(merge_over(state)).detach(),
        "streamed": streamed.detach(),
        "spread": encoder.spread.grad,
    }


class TokenEmbedding(nn.Module):
    """Reads integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long()).flatten(1)


class SquareRoot(nn.Module):
    """Gives NaN for items with a negative number."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


def token_shards(dtype: torch.dtype) -> tuple[MaxPool, list[Sets]]:
    """Return an encoder of tokens and two shards; the rank without items does not know their dtype."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = MaxPool(2, TokenEmbedding()).eval()
    # The items of the last rank are among those of the first, which wins ties.
    numbers = {n: torch.arange(n).reshape(-1, 2) // (1 if dtype == torch.int64 else 5) for n in (20, 12)}
    return encoder, [Sets.from_lengths(x.to(dtype), [n // 2 - 2, 2]) for n, x in numbers.items()]


def maxima(rank: int, dtype: torch.dtype) -> dict[str, Tensor]:
    encoder, shards = token_shards(dtype)
    state = encoder.begin(2)
    if rank in SHARDS:
        state = encoder.update(state, shards[SHARDS[rank]])
    merged = merge_over(state)
    return {name: getattr(merged, name).detach() for name in ("value", "number", "items", "length")}


def error_messages(rank: int) -> dict[str, str]:
    encoder = make("softmax")
    good = shard_of(0)

    def broken():
        yield good[0]
        raise OSError("the disk is gone")

    def error_of(work: Callable[[], object]) -> str:
        try:
            work()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "none"

    nan = good[0].with_values(good[0].values * torch.nan)
    root, pool = DeepSets(DIM, SquareRoot()).eval(), MaxPool(DIM, SquareRoot()).eval()
    positive = [chunk.with_values(chunk.values.abs()) for chunk in good]
    negative = [positive[0], positive[1].with_values(-positive[1].values)]
    return {
        "batch": error_of(lambda: stream_over(encoder, [good[0][: rank + 1]])),
        "shapes": error_of(lambda: merge_over(encoder.begin(rank + 1))),
        "empty": error_of(lambda: stream_over(encoder, [])),
        "broken": error_of(lambda: stream_over(encoder, broken if rank == 1 else good)),
        "broken, full": error_of(lambda: stream_over(encoder, broken if rank == 1 else good, gradient="full")),
        "no source": error_of(lambda: stream_over(encoder, 3 if rank == 1 else good)),
        "nan": error_of(lambda: stream_over(encoder, [good[0], nan] if rank == 2 else good)),
        "phi": error_of(lambda: stream_over(root, negative if rank == 2 else positive)),
        "phi, full": error_of(lambda: stream_over(root, negative if rank == 2 else positive, gradient="full")),
        "phi, max": error_of(lambda: stream_over(pool, negative if rank == 2 else positive)),
        # The group still works after all of that.
        "after": error_of(lambda: stream_over(encoder, good)),
    }


def launch(work: Callable[..., None], folder: Path, *, sleeps: bool = False) -> list[int | None]:
    """Run three processes and return their exit codes; None for a killed one, as the last if it `sleeps`."""
    # Processes are forked from one that has imported this module and has no threads.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
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


# --- the results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    assert launch(compute, folder) == [0, 0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize(("name", "mode"), PAIRS)
def test_shards_give_code_and_gradient_of_the_whole_set(results, name, mode):
    encoder = make(name)
    code = encoder(random_sets())
    loss_of(code).backward()
    expected = gradients(encoder)
    scale = max(float(g.abs().max()) for g in expected)
    for rank in range(RANKS):
        actual, parameters = results[rank][name, mode]
        torch.testing.assert_close(actual, code, rtol=1e-12, atol=1e-12)
        for a, b in zip(parameters, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * max(1.0, scale))


def test_the_mean_of_the_losses_of_the_ranks_is_differentiated(results):
    encoder = make("softmax")
    (2 * loss_of(encoder(random_sets()))).backward()
    for rank in range(RANKS):
        for a, b in zip(results[rank]["own losses"], gradients(encoder), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_mean_of_gradients_sampled_on_all_ranks_is_the_gradient_of_the_whole_set(results):
    encoder = make("softmax")
    loss_of(encoder(random_sets())).backward()
    for rank in range(RANKS):
        torch.testing.assert_close(results[rank]["sampled"], gradients(encoder), rtol=1e-12, atol=1e-12)


def test_random_slots_come_from_the_first_rank(results):
    first, *others = (one["slots"] for one in results)
    for other in others:
        assert torch.equal(first["slots"], other["slots"])
        assert not torch.equal(first["own"], other["own"])
        assert torch.equal(first["merged"], other["merged"]) and torch.equal(first["streamed"], other["streamed"])
        torch.testing.assert_close(first["spread"], other["spread"], rtol=0, atol=0)
    assert float(first["spread"].abs().max()) > 0
    assert all("start from begin_over" in one["slots"]["message"] for one in results)


def test_an_error_on_one_rank_is_an_error_on_all(results):
    errors = [one["errors"] for one in results]
    for one in errors:
        assert one["batch"].startswith("ShapeError: chunks hold items of 1 sets on one rank and of 3 on another")
        assert one["shapes"].startswith("ShapeError: the ranks hold states of different")
        assert one["empty"].startswith("DataError: no rank has a chunk")
        assert one["after"] == "none"
    for kind, culprit, text in (
        ("broken", 1, "OSError: the disk is gone"),
        ("broken, full", 1, "OSError: the disk is gone"),
        ("no source", 1, "DataError: chunks cannot be read from int"),
        ("nan", 2, "DataError: chunk 1 holds NaN"),
        ("phi", 2, "DataError: phi, or a sum of its features"),
        ("phi, full", 2, "DataError: phi, or a sum of its features"),
        ("phi, max", 2, "DataError: phi, or a sum of its features"),
    ):
        for rank, one in enumerate(errors):
            expected = text if rank == culprit else "LostRankError: another rank could not read its shard"
            assert one[kind].startswith(expected), (kind, rank, one[kind])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_the_maximum_of_all_ranks_has_its_item_and_index(results, dtype):
    encoder, shards = token_shards(dtype)
    whole = Sets.from_list([torch.cat(parts) for parts in zip(*(s.to_list() for s in shards), strict=True)])
    state = encoder.update(encoder.begin(2), whole)
    for rank in range(RANKS):
        for name, actual in results[rank]["maxima"][dtype].items():
            assert torch.equal(actual, getattr(state, name)), (rank, name)
    assert state.items.dtype == dtype


def test_nan_of_one_rank_is_the_maximum_of_all(results):
    for one in results:
        torch.testing.assert_close(one["nan"], torch.tensor([[torch.nan, 2.0, 18**0.5]]), equal_nan=True)


def test_without_a_process_group_the_error_names_torchrun():
    encoder = make("softmax")
    with pytest.raises(OptionError, match="start the program with torchrun"):
        merge_over(encoder.begin(1))
    with pytest.raises(OptionError, match="start the program with torchrun"):
        stream_over(encoder, random_sets())
    with pytest.raises(OptionError, match="unknown gradient"):
        Sharded(encoder, gradient="magic")
