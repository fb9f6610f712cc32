"""How often the host waits for a GPU."""

import warnings
from collections.abc import Callable

import torch


def count_syncs(work: Callable[[], object]) -> int:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchroniz" in str(w.message) and "prototype" not in str(w.message) for w in caught)
