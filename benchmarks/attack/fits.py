"""A fit that is killed at random moments and goes on from its checkpoint: the result is the same, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.attack.targets import fit
from benchmarks.attack.verdicts import HANG, LOST, OTHER, SAME, TRACEBACK, digest, fork

_EPOCHS = 12
# Seconds that a small fit may take on a busy machine.
_LIMIT = 120


def _fit(path: Path) -> str:
    selector = fit(checkpoint=path, max_epochs=_EPOCHS)
    return digest(*selector.model_.state_dict().values(), selector.best_epoch_, selector.size_rule_)


def _start(path: Path) -> int:
    def work() -> int:
        signal.alarm(_LIMIT)
        path.with_suffix(".digest").write_text(_fit(path))
        return 0

    return fork(work)


def kill_fits(kills: int, draw: random.Random) -> Counter[str]:
    """Kill fits up to three times each, let them go on, and compare the result with that of one that was not killed."""
    result = Counter[str]()
    place = Path(tempfile.mkdtemp(prefix="setgrad-attack-"))
    started = time.monotonic()
    expected = _fit(place / "whole.ckpt")
    seconds = time.monotonic() - started
    for number in range(kills):
        folder = place / str(number)
        folder.mkdir()
        for _ in range(draw.randrange(1, 4)):
            child = _start(folder / "run.ckpt")
            time.sleep(draw.uniform(0.0, seconds))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        _, status = os.waitpid(_start(folder / "run.ckpt"), 0)
        result[_verdict(folder, status, expected)] += 1
    shutil.rmtree(place)
    return result


def _verdict(folder: Path, status: int, expected: str) -> str:
    if os.WIFSIGNALED(status):
        return HANG
    if os.WEXITSTATUS(status):
        return TRACEBACK
    left = {path.name for path in folder.iterdir()} - {"run.ckpt", "run.ckpt.previous", "run.digest"}
    if left:
        return LOST
    return SAME if (folder / "run.digest").read_text() == expected else OTHER
