"""Measurements in a new process, because memory that a process once held hides what it needs later.

The module that measures is run as a program: `serve_case` reads the case that `measure_in_subprocess` sends, and prints
the result.
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
# Freed tensors return to the system: otherwise the habits of the allocator are measured.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def measure_in_subprocess(module: str, case: Any, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a module on a case, a dataclass, in a new process, and return its result.

    `variables` are added to the environment.
    """
    paths = [str(ROOT), str(Path(setgrad.__file__).resolve().parent.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(variables or {})}
    request = json.dumps({**asdict(case), "threads": torch.get_num_threads()})
    command = [sys.executable, "-m", module, request]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def serve_case(kind: Callable[..., Any], measure: Callable[[Any, torch.device], Any]) -> None:
    """Measure the case in the arguments of this program, and print the result, a dataclass."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request.pop("threads"))
    print(json.dumps(asdict(measure(kind(**request), torch.device("cpu")))))


def relative_spread(peaks: Sequence[int]) -> float:
    """Return the largest over the smallest, minus 1."""
    return max(peaks) / max(1, min(peaks)) - 1
