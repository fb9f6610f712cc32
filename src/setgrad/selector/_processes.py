"""The processes that fit one model together: who works on what, and what they tell each other.

Every process runs the whole program: it draws the same random numbers, makes the same batches and takes the same
decisions. Of each batch it works on its share only, and the results are added up. So all processes hold the same
weights, and these are those of one process but for the order in which numbers are added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from setgrad._launch import launched
from setgrad.encoders._rank_guard import guard_ranks
from setgrad.encoders._ranks import all_reduce
from setgrad.errors import DataError, OptionError


@final
@dataclass(frozen=True)
class Processes:
    """The processes of a group. All of them call the same methods in the same order.

    Attributes:
        rank: The number of this process.
        count: The number of processes; with one, nothing is sent.
    """

    rank: int = 0
    count: int = 1

    @staticmethod
    def of_group() -> Processes:
        """Return the processes of the group that is there."""
        return Processes(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def own(self, costs: np.ndarray) -> np.ndarray:
        """Return the numbers of the pieces of work that are done by this process, ascending.

        Args:
            costs: What each piece costs. Every process has about the same sum.
        """
        if self.count == 1:
            return np.arange(len(costs))
        loads, owners = np.zeros(self.count), np.empty(len(costs), np.int64)
        # The largest piece first, each to the process with the least work.
        for piece in np.argsort(-costs, kind="stable").tolist():
            owners[piece] = owner = int(loads.argmin())
            # Pieces without a cost are spread too.
            loads[owner] += max(float(costs[piece]), 1e-9)
        return np.flatnonzero(owners == self.rank)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        return x if self.count == 1 else all_reduce(x.contiguous().clone(), dist.ReduceOp.SUM, None)

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in any process."""
        return flag if self.count == 1 else bool(self.sum(torch.tensor(int(flag), device=_device())))

    def mean_gradients(self, parameters: Sequence[nn.Parameter], means: Tensor, counts: Tensor) -> Tensor:
        """Replace gradients of sums by the gradient of the mean over all processes.

        A parameter without a gradient in every process stays without one.

        Args:
            parameters: The parameters.
            means: Means over what this process worked on, `(k,)`; the gradients are those of the first one, multiplied
                by its count.
            counts: Over how many each of them is the mean, `(k,)`.

        Returns:
            The means over all processes, `(k,)`.
        """
        has_gradient = [parameter.grad is not None for parameter in parameters]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        parts = [*gradients, means * counts, counts, torch.tensor(has_gradient, dtype=means.dtype, device=means.device)]
        flat = self.sum(torch.cat([part.flatten() for part in parts]))
        *sums, totals, total_counts, with_gradient = flat.split([part.numel() for part in parts])
        total_counts = total_counts.clamp(min=1)
        for parameter, gradient, number in zip(parameters, sums, with_gradient.tolist(), strict=True):
            parameter.grad = (gradient / total_counts[0]).reshape(parameter.shape) if number else None
        return totals / total_counts

    def send(self, content: bytes) -> bytes:
        """Return what the first process passes, in all of them."""
        if self.count == 1:
            return content
        size = self.sum(torch.tensor(len(content) if self.is_first else 0, device=_device()))
        data = torch.zeros(int(size), dtype=torch.uint8)
        if self.is_first:
            data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        data = data.to(_device())
        dist.broadcast(data, 0)
        return data.cpu().numpy().tobytes()

    def check_same(self, value: Any, what: str) -> None:
        """Raise a DataError if a value, which JSON can hold, is another one than in the first process.

        Args:
            value: The value.
            what: What differs then, for the message.
        """
        first = json.loads(self.send(json.dumps(value).encode()))
        if self.any(first != value):
            raise DataError(f"the processes have {what}; start all of them with the same arguments and files")


# One process by itself.
ALONE = Processes()
# Seconds that a process may be silent, or late where the others wait for it: as long as torch waits by default.
TIMEOUT = 1800.0


@contextmanager
def together() -> Iterator[Processes]:
    """Yield the processes of the group, and let them end together; the group is started if torchrun asks for one.

    Raises:
        LostRankError: If another process is lost or fails.
        OptionError: If there is no group, and torchrun did not start this process.
    """
    is_there = dist.is_available() and dist.is_initialized()
    if not is_there and launched() is None:
        raise OptionError(
            "there is no process group to fit in; start the program with torchrun --nproc-per-node, or call "
            "torch.distributed.init_process_group first"
        )
    if torch.cuda.is_available():
        torch.cuda.set_device(_local_gpu())
    with guard_ranks("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT):
        yield Processes.of_group()


def own_device(device: Any) -> Any:
    """Return the device of this process: without another wish, the GPU with its number on this machine."""
    return f"cuda:{_local_gpu()}" if device is None and torch.cuda.is_available() else device


def _local_gpu() -> int:
    # torchrun numbers the processes of a machine.
    return int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()


def _device() -> torch.device:
    """Return where tensors are that the group can send."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
