"""Measuring in a process of its own, because what a process once held hides what it needs later.

The module that measures is run as a program: `answer` reads the request that `ask` wrote, and prints the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import setgrad

ROOT = Path(__file__).resolve().parents[2]
# Tensors go back to the system when freed: else the allocator's habits are measured, not what is in use.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def ask(module: str, case: Any, settings: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a module on a case, a dataclass, in a new process; `settings` are added to its environment."""
    paths = [str(ROOT), str(Path(setgrad.__file__).resolve().parent.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(settings or {})}
    request = json.dumps({**asdict(case), "threads": torch.get_num_threads()})
    command = [sys.executable, "-m", module, request]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def answer(kind: Callable[..., Any], measure: Callable[[Any, torch.device], Any]) -> None:
    """Measure the case that this program was asked about, and print what was found, a dataclass."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request.pop("threads"))
    print(json.dumps(asdict(measure(kind(**request), torch.device("cpu")))))


def spread(peaks: Sequence[int]) -> float:
    """Largest over smallest, less 1."""
    return max(peaks) / max(1, min(peaks)) - 1
