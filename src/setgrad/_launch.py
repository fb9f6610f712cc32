"""Whether several processes were started as one program, as torchrun does. Needs no torch."""

from __future__ import annotations

import os

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> tuple[int, int] | None:
    """Return the number of this process and that of all; None if it was started by itself.

    torchrun sets the variables of the environment that tell it, and so do other launchers of torch.
    """
    if not all(name in os.environ for name in _NAMES):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def is_first() -> bool:
    """Return whether this process is the one that writes files and talks to the user."""
    process = launched()
    return process is None or process[0] == 0
