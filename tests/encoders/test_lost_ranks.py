"""If a process is killed or does not answer, the others raise an error instead of hanging."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from setgrad.encoders import stream_over
from setgrad.errors import LostRankError
from setgrad.sets import Sets
from tests.encoders.test_distributed import RANKS, TIMEOUT, launch, loss_of, make, shard_of, start


def wait_for_all(folder: Path, rank: int) -> None:
    """Return when every process has connected to all others: none may be killed while another one still connects."""
    (folder / f"connected {rank}").touch()
    while not all((folder / f"connected {other}").exists() for other in range(RANKS)):
        time.sleep(0.01)


def lose(rank: int, folder: Path, where: str, timeout: float = TIMEOUT) -> None:
    start(rank, folder, timeout)
    wait_for_all(folder, rank)
    encoder = make("em" if where == "between passes" else "softmax")
    if rank == 2 and where == "forward":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2 and where == "asleep":
        time.sleep(100)
    opened = itertools.count()

    def shard() -> Iterator[Sets]:
        # Opened twice for the first pass, to look at the first chunk; so this is the second pass.
        if rank == 2 and next(opened) == 2 and where == "between passes":
            os.kill(os.getpid(), signal.SIGKILL)
        yield from shard_of(rank)

    code = stream_over(encoder, shard)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        loss_of(code).backward()
    except RuntimeError as error:
        (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")
    os._exit(0)


def lose_forward(rank: int, folder: Path, where: str = "forward", timeout: float = TIMEOUT) -> None:
    try:
        lose(rank, folder, where, timeout)
    except LostRankError as error:
        (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(0)


def lose_between(rank: int, folder: Path) -> None:
    lose_forward(rank, folder, "between passes")


def lose_asleep(rank: int, folder: Path) -> None:
    lose_forward(rank, folder, "asleep", timeout=4)


def lose_backward(rank: int, folder: Path) -> None:
    lose(rank, folder, "backward")


@pytest.mark.parametrize(
    ("work", "last"),
    [
        (lose_forward, -signal.SIGKILL),
        (lose_between, -signal.SIGKILL),
        (lose_backward, -signal.SIGKILL),
        (lose_asleep, None),
    ],
)
def test_a_process_that_dies_or_hangs_raises_an_error_in_the_others(work, last, tmp_path):
    assert launch(work, tmp_path, sleeps=last is None) == [0, 0, last]
    for rank in range(2):
        message = (tmp_path / f"{rank}.txt").read_text()
        assert message.startswith("LostRankError: another process ended or did not answer in time"), message
