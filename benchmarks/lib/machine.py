"""The machine that a measurement ran on, and the memory in use there."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")


def describe(device: torch.device) -> dict[str, Any]:
    """Return device, threads, load and versions, to be stored with a measurement."""
    name = _gpu(device) if device.type == "cuda" else _processor()
    return {
        "device": f"{device.type}: {name}",
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def announce(device: torch.device, threads: int | None = None) -> dict[str, Any]:
    """Set the number of threads, if it is given, print the machine in one line, and return its description."""
    if threads:
        torch.set_num_threads(threads)
    machine = describe(device)
    print(
        f"{machine['device']}, {machine['threads']} threads (load {machine['load']} when started), "
        f"torch {machine['torch']}, Python {machine['python']}",
        flush=True,
    )
    return machine


def add_machine_options(parser: argparse.ArgumentParser, *, device: bool = True) -> None:
    """Add the options for the number of threads and, if wanted, for the device."""
    if device:
        parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: all cores)")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_now(device: torch.device) -> int:
    """Return the bytes in use: resident memory of this process, or allocated tensors on the GPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _status("VmRSS") if _STATUS.exists() else memory_peak(device)


def memory_peak(device: torch.device) -> int:
    """Return the most bytes in use since `reset_peak`, or since the process began where that cannot be reset.

    On Linux this reads the kernel's high-water mark of the address space. `getrusage` would include the peak of the
    parent process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak(device: torch.device) -> None:
    """Reset the peak to the memory in use now, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # The mark then stays at the peak of the imports, which is little above the memory in use.
        return


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def _gpu(device: torch.device) -> str:
    """Return the name of the GPU, with a mark for TF32 products: scores and times both depend on them."""
    has_tf32 = torch.get_float32_matmul_precision() != "highest"
    return torch.cuda.get_device_name(device) + (" (TF32)" if has_tf32 else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
