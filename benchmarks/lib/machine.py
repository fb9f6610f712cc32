"""What a measurement ran on, and how much memory it took there."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")


def describe(device: torch.device) -> dict[str, Any]:
    """Name the machine, so that a stored number can be judged later."""
    name = _gpu(device) if device.type == "cuda" else _processor()
    return {
        "device": f"{device.type}: {name}",
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def describe_line(machine: dict[str, Any]) -> str:
    """The same in one line."""
    return (
        f"{machine['device']}, {machine['threads']} threads (load {machine['load']} when started), "
        f"torch {machine['torch']}, Python {machine['python']}"
    )


def wait(device: torch.device) -> None:
    """Let the device finish what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_now(device: torch.device) -> int:
    """Bytes in use: resident memory of this process, or allocated tensors on the GPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _status("VmRSS") if _STATUS.exists() else memory_peak(device)


def memory_peak(device: torch.device) -> int:
    """The most bytes in use since `forget_peak`, or since the process began where that cannot be reset.

    On Linux this reads the kernel's own mark for the address space. `getrusage` reports the same mark, but a child
    process inherits there the peak of the process that started it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak(device: torch.device) -> None:
    """Start a new peak from what is in use now, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # The mark then stays at what imports once took, which is little above what is in use.
        return


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def _gpu(device: torch.device) -> str:
    """The GPU, and that it multiplies coarsely where it was told to: scores and times both depend on it."""
    coarse = torch.get_float32_matmul_precision() != "highest"
    return torch.cuda.get_device_name(device) + (" (TF32)" if coarse else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
