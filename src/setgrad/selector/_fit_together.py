"""A fit by several processes: what it can be of, and that all begin from the same state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from setgrad._files import from_json, from_tensor_bytes, tensor_bytes
from setgrad.errors import OptionError, parameter
from setgrad.selector._checkpoint import checkpoint_of, run_fingerprint
from setgrad.selector._data import TrainingData
from setgrad.selector._examples import AbstractExamples
from setgrad.selector._model import ChoiceModel
from setgrad.selector._processes import Processes
from setgrad.selector._stacked_weights import can_be_stacked
from setgrad.selector._tables import CONDITIONAL, UMBC
from setgrad.selector._training import Training
from setgrad.sets import Choices


def check_together(model: ChoiceModel, train: AbstractExamples, data: TrainingData) -> None:
    """Check that several processes can fit a model together.

    Raises:
        OptionError: If its gradient is no sum over the sets, or steps depend on the time.
    """
    options, causes = model.config.options, []
    if options.method != CONDITIONAL:
        causes.append(f"{parameter('method')}={options.method!r}")
    elif not can_be_stacked(model):
        causes.append("a module as phi, or one with running statistics")
    if data.constraints is not None:
        causes.append("constraints and limits")
    if options.max_time is not None:
        causes.append(parameter("max_time"))
    if options.phi == UMBC and train.layout.longest > options.chunk_size:
        causes.append(f"sets of more than {parameter('chunk_size')} items that are read in chunks")
    if causes:
        raise OptionError(f"several processes cannot fit together with {' and '.join(causes)}; use one process")


@contextmanager
def begin_together(
    trainer: Training, start: dict[str, Tensor] | None, validation: Choices, processes: Processes
) -> Iterator[Callable[[Training], None] | None]:
    """Let all processes begin from the state of the first one, which reads and writes the checkpoint.

    Arguments and errors are those of `checkpoint_of`.

    Yields:
        The function to call with a run to save it; None without a checkpoint, and in the other processes.

    Raises:
        DataError: If the processes have other data or options.
    """
    if processes.count == 1:
        with checkpoint_of(trainer, start, validation) as save:
            yield save
        return
    processes.check_same(run_fingerprint(trainer, start, validation), "different data or options")
    if processes.is_first:
        with checkpoint_of(trainer, start, validation) as save:
            tensors, numbers = trainer.state()
            processes.send(tensor_bytes(tensors))
            processes.send(json.dumps(numbers).encode())
            yield save
        return
    tensors, _ = from_tensor_bytes(processes.send(b""))
    trainer.restore(tensors, from_json(processes.send(b"")))
    yield None
