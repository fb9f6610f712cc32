"""What became of one attack, judged in a process of its own: it may crash, hang, or eat all memory."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setgrad.errors import SetgradError

SAME, ERROR, OTHER, TRACEBACK = "same", "clear error", "silently other", "traceback"
CRASH, HANG, MEMORY, LOST = "crash", "hang", "memory", "lost"
VERDICTS = (SAME, ERROR, OTHER, TRACEBACK, CRASH, HANG, MEMORY, LOST)
BAD = (TRACEBACK, CRASH, HANG, MEMORY, LOST)
# Seconds and bytes that reading one small file may take.
_SECONDS, _BYTES = 20, 2**32


def digest(*parts: Any) -> str:
    """Return a hash of tensors and of anything with a repr."""
    result = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            plain = part.detach().cpu().contiguous()
            result.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            result.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            result.update(repr(part).encode(errors="backslashreplace"))
    return result.hexdigest()


def fork(work: Callable[[], int]) -> int:
    """Run a function in a child process, which exits with its result; return the id of the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Newer Pythons warn of threads, which the readers of tables start; the children start their own.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        return child
    code = 99
    with contextlib.suppress(BaseException):
        code = work()
    os._exit(code)


def judge(read: Callable[[], str], expected: str, notes: Counter[str] | None = None) -> str:
    """Return what reading a changed file comes to.

    Args:
        read: Reads it and returns a digest of the result.
        expected: The digest of the unchanged file.
        notes: Counts the kinds of tracebacks.
    """
    inbox, outbox = os.pipe()

    def work() -> int:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, resource.RLIM_INFINITY))
        signal.alarm(_SECONDS)
        # A crash is a verdict here, and needs no report.
        faulthandler.disable()
        with contextlib.redirect_stderr(None), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return 0 if read() == expected else 2
            except SetgradError as error:
                return 1 if len(str(error)) < 5000 else 3
            except MemoryError:
                return 4
            except Exception as error:
                os.write(outbox, f"{type(error).__name__}: {error}"[:200].encode(errors="replace"))
                return 3

    child = fork(work)
    os.close(outbox)
    text = os.read(inbox, 1000).decode(errors="replace")
    os.close(inbox)
    _, status = os.waitpid(child, 0)
    if text and notes is not None:
        notes[text] += 1
    if os.WIFSIGNALED(status):
        return HANG if os.WTERMSIG(status) == signal.SIGALRM else CRASH
    return {0: SAME, 1: ERROR, 2: OTHER, 4: MEMORY}.get(os.WEXITSTATUS(status), TRACEBACK)
