"""Processes of a group of which one is lost: killed, stopped, late or with an error, at any stage."""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.attack.verdicts import ERROR, HANG, SAME, TRACEBACK
from setgrad.encoders import UMBC, Sharded, _rank_guard, guard_ranks
from setgrad.errors import DataError
from setgrad.sets import Sets

STAGES = ("start", "data", "forward", "backward", "save", "sleep")
KILLED, STOPPED, LATE, FAILED, NOTHING = "killed", "stopped", "late", "error", "nothing"
# One that is late outside of collective operations gives signs of life, and nobody waits for it there.
CASES = [
    *((stage, way) for way in (KILLED, STOPPED) for stage in STAGES),
    *((stage, FAILED) for stage in ("data", "forward", "backward", "save")),
    *((stage, LATE) for stage in ("start", "data", "forward", "backward")),
    ("end", NOTHING),
]
RANKS, LOST, TIMEOUT, GRACE = 3, 1, 1.5, 1.0
# Where nobody is lost, a busy machine must not look as if somebody were.
_LONG = 60.0
# After the stated time, for a busy machine.
_SLACK = 30.0


@final
@dataclass(frozen=True)
class Losing:
    """Loses its process at one stage, in one way."""

    rank: int
    stage: str
    way: str

    def __call__(self, stage: str) -> None:
        """Lose the process if this is the stage."""
        if (self.rank, self.stage) != (LOST, stage):
            return
        if self.way == LATE:
            time.sleep(1000)
        if self.way == FAILED:
            raise DataError("the disk is gone")
        os.kill(os.getpid(), signal.SIGKILL if self.way == KILLED else signal.SIGSTOP)


@final
class _BackwardStage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lose: Losing) -> Tensor:
        ctx.lose = lose
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.lose("backward")
        return gradient, None


def _train(lose: Losing, folder: Path) -> None:
    model = DistributedDataParallel(Sharded(UMBC(2, dim=4, slots=2, head=nn.Flatten(1))))
    chunk = Sets.from_list([torch.arange(8.0).reshape(4, 2)])

    def shard() -> Iterator[Sets]:
        lose("data")
        yield chunk

    for _ in range(2):
        lose("forward")
        _BackwardStage.apply(model(shard), lose).square().sum().backward()
    if lose.rank == LOST:
        lose("save")
        torch.save(model.state_dict(), folder / "model")
    elif lose.stage == "sleep":
        # As a wait for a file: nothing of torch ends it.
        time.sleep(1000)
    lose("sleep")


def _work(rank: int, folder: Path, stage: str, way: str) -> None:
    torch.set_num_threads(1)
    _rank_guard._GRACE = GRACE
    sys.stderr = (folder / f"{rank}.txt").open("w")
    lose = Losing(rank, stage, way)
    lose("start")
    meet = {"init_method": f"file://{folder}/meet", "rank": rank, "world_size": RANKS}
    with guard_ranks("gloo", timeout=_LONG if way in (FAILED, NOTHING) else TIMEOUT, **meet):
        _train(lose, folder)


def lose_a_rank(folder: Path, stage: str, way: str) -> tuple[list[int | None], list[str]]:
    """Return the exit codes of all ranks, None for one that did not end, and what they wrote as errors."""
    # Processes are forked from one that has imported torch and has no threads.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    processes = [context.Process(target=_work, args=(rank, folder, stage, way), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    ends = time.monotonic() + TIMEOUT + GRACE + _SLACK
    # A stopped process does not end, and one that is late at the start comes too late for the group.
    waits_for = [rank for rank in range(RANKS) if rank != LOST or way in (KILLED, FAILED, NOTHING)]
    for rank in waits_for:
        processes[rank].join(max(0.0, ends - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes, [(folder / f"{rank}.txt").read_text() for rank in range(RANKS)]


def judge_lost_rank(codes: list[int | None], texts: list[str], way: str) -> str:
    """Return the verdict of a case."""
    others = [rank for rank in range(RANKS) if rank != LOST]
    if any(codes[rank] is None for rank in others):
        return HANG
    if way == NOTHING:
        return SAME if codes == [0] * RANKS else TRACEBACK
    is_clear = all(codes[rank] == 1 and "LostRankError: " in texts[rank] for rank in others)
    return ERROR if is_clear else TRACEBACK


def lose_ranks(cases: list[tuple[str, str]]) -> Counter[str]:
    """Lose a rank at each stage in each way."""
    result = Counter[str]()
    for stage, way in cases:
        folder = Path(tempfile.mkdtemp(prefix="setgrad-attack-"))
        verdict = judge_lost_rank(*lose_a_rank(folder, stage, way), way)
        if verdict not in (SAME, ERROR):
            print(f"lost ranks: {way} at {stage}: {verdict}")
        result[verdict] += 1
        shutil.rmtree(folder)
    return result
