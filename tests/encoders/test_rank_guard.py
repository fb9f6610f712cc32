"""A process that is killed, stopped or late, at any stage: all others end with a LostRankError in the stated time."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from setgrad.encoders import UMBC, Sharded, _rank_guard, guard_ranks
from setgrad.errors import DataError, LostRankError, OptionError
from setgrad.sets import Sets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped as Linux does")

RANKS, LOST, TIMEOUT, GRACE = 3, 1, 1.5, 1.0
# The rest is for a busy machine.
LIMIT = TIMEOUT + GRACE + 30


class Losing:
    """Loses its process at one stage, in one way."""

    def __init__(self, rank: int, stage: str, way: str) -> None:
        self.rank, self.stage, self.way = rank, stage, way

    def __call__(self, stage: str) -> None:
        if (self.rank, self.stage) != (LOST, stage):
            return
        if self.way == "late":
            time.sleep(1000)
        if self.way == "error":
            raise DataError("the disk is gone")
        os.kill(os.getpid(), signal.SIGKILL if self.way == "killed" else signal.SIGSTOP)


class BackwardStage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lose: Losing) -> Tensor:
        ctx.lose = lose
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.lose("backward")
        return gradient, None


def train(lose: Losing, folder: Path) -> None:
    model = DistributedDataParallel(Sharded(UMBC(2, dim=4, slots=2, head=nn.Flatten(1))))
    chunk = Sets.from_list([torch.arange(8.0).reshape(4, 2)])

    def shard():
        lose("data")
        yield chunk

    for _ in range(2):
        lose("forward")
        BackwardStage.apply(model(shard), lose).square().sum().backward()
    if lose.rank == LOST:
        lose("save")
        torch.save(model.state_dict(), folder / "model")
    elif lose.stage == "sleep":
        # As a wait for a file: nothing of torch ends it.
        time.sleep(1000)
    lose("sleep")


def work(rank: int, folder: Path, stage: str, way: str) -> None:
    torch.set_num_threads(1)
    _rank_guard._GRACE = GRACE
    lose = Losing(rank, stage, way)
    # What would be the end of the log.
    sys.stderr = (folder / f"{rank}.txt").open("w")
    lose("start")
    meet = {"init_method": f"file://{folder}/meet", "rank": rank, "world_size": RANKS}
    # Long where nobody is waited for, as an error is told to the others.
    with guard_ranks("gloo", timeout=60.0 if way in ("error", "none") else TIMEOUT, **meet):
        train(lose, folder)


def launch(folder: Path, stage: str, way: str) -> list[int | None]:
    """Return the exit codes of all ranks; None for one that did not end."""
    # Processes are forked from one that has imported torch and has no threads.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    processes = [context.Process(target=work, args=(rank, folder, stage, way), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    ends = time.monotonic() + LIMIT
    for rank in (0, 2):
        processes[rank].join(max(0.0, ends - time.monotonic()))
    if way in ("killed", "error", "none"):
        processes[LOST].join(max(0.0, ends - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


@pytest.mark.parametrize("way", ["killed", "stopped"])
@pytest.mark.parametrize("stage", ["start", "data", "forward", "backward", "save"])
def test_the_others_end_when_a_process_is_lost(stage, way, tmp_path):
    first, _, last = launch(tmp_path, stage, way)
    assert (first, last) == (1, 1)
    for rank in (0, 2):
        text = (tmp_path / f"{rank}.txt").read_text()
        assert "LostRankError: " in text and "then start all of them again" in text, text


@pytest.mark.parametrize(
    ("stage", "way"),
    [
        ("forward", "late"),  # in a collective operation
        ("sleep", "killed"),  # while the others wait for something else
    ],
)
def test_the_others_end_when_they_wait(stage, way, tmp_path):
    first, _, last = launch(tmp_path, stage, way)
    assert (first, last) == (1, 1)
    assert all("LostRankError: " in (tmp_path / f"{rank}.txt").read_text() for rank in (0, 2))


def test_an_error_in_one_process_ends_the_others(tmp_path):
    assert launch(tmp_path, "save", "error") == [1, 1, 1]
    texts = [(tmp_path / f"{rank}.txt").read_text() for rank in range(RANKS)]
    assert "DataError: the disk is gone" in texts[LOST] and "LostRankError" not in texts[LOST]
    assert all("LostRankError: another process of the group failed; look at" in texts[rank] for rank in (0, 2))


def test_without_a_loss_all_end_together(tmp_path):
    assert launch(tmp_path, "end", "none") == [0, 0, 0]
    assert (tmp_path / "model").exists()


def test_the_group_is_gone_after_the_block_and_one_that_was_there_stays(tmp_path):
    meet = {"init_method": f"file://{tmp_path}/meet", "rank": 0, "world_size": 1}
    with guard_ranks("gloo", timeout=5, **meet):
        assert dist.get_world_size() == 1
    assert not dist.is_initialized()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/other", rank=0, world_size=1)
    try:
        with guard_ranks(timeout=5), pytest.raises(ZeroDivisionError):
            1 / 0  # noqa: B018
        assert dist.is_initialized()
        with pytest.raises(KeyError, match="own"), guard_ranks(timeout=5):
            raise KeyError("own")
        with pytest.raises(LostRankError, match="did not answer for 5 s"), guard_ranks(timeout=5):
            raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    finally:
        dist.destroy_process_group()


def test_a_timeout_must_be_positive():
    with pytest.raises(OptionError, match="timeout must be a positive number"), guard_ranks(timeout=0):
        pass
