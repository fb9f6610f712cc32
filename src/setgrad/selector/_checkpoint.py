"""Checkpoints: the state of training after an epoch or a part of one, in one safetensors file."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, final

from torch import Tensor

from setgrad._files import from_json, owned_file, previous_of, read_tensors, replace_file, tensor_bytes
from setgrad.errors import FileFormatError, OptionError, parameter
from setgrad.selector._batch_constraint import constraint_signature
from setgrad.selector._examples import Examples, hash_parts
from setgrad.selector._records import check_history, is_number
from setgrad.selector._trainer import Progress
from setgrad.selector._training import Training
from setgrad.sets import Choices

_KIND = "setgrad.checkpoint"
_BEST = re.compile(r"(\d+\.)?best\.")
_REMEDY = "name another file, or delete it to start again"
# Options that may change when a run is resumed. Modules have no JSON form; the shapes of their weights are compared.
_FREE_OPTIONS = ("checkpoint", "checkpoint_minutes", "device", "verbose", "max_epochs", "patience", "phi")


@final
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run that was saved.

    Attributes:
        tensors: Its tensors.
        numbers: Its plain values.
        is_previous: Whether it is the one before the last, because the last is damaged.
    """

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    is_previous: bool


@contextmanager
def checkpoint_of(
    trainer: Training, start: dict[str, Tensor] | None, validation: Choices
) -> Iterator[Callable[[Training], None] | None]:
    """Restore the trainer from its checkpoint if the file exists, and yield a function that writes the checkpoint.

    The last two checkpoints are kept. Inside the block no other fit can use them.

    Args:
        trainer: The trainer of the run.
        start: State of the model whose weights training starts from.
        validation: The validation sets as they were passed.

    Yields:
        The function to call with a run to save it; None without the option `checkpoint`.

    Raises:
        DataError: If another fit uses the checkpoint, or it cannot be written.
        FileFormatError: If the checkpoint is damaged or belongs to another run.
        OptionError: If the checkpoint has more epochs than `max_epochs`.
    """
    if trainer.model.config.options.checkpoint is None:
        yield None
        return
    path = Path(trainer.model.config.options.checkpoint)
    with owned_file(path) as target:
        mark = run_fingerprint(trainer, start, validation)
        found = read_checkpoint(path)
        if found is not None:
            _resume(trainer, found, mark, path)
        # A damaged checkpoint must not take the place of the one before it.
        keeps_previous = found is None or not found.is_previous

        def save(running: Training) -> None:
            nonlocal keeps_previous
            tensors, numbers = running.state()
            extra = {"members": running.model.config.members, "fingerprint": mark}
            content = tensor_bytes(tensors, _KIND, numbers=json.dumps({**numbers, **extra}))
            replace_file(target, content, keep_previous=keeps_previous)
            keeps_previous = True

        yield save


def _resume(trainer: Training, found: Checkpoint, mark: str, path: Path) -> None:
    if found.numbers.get("fingerprint") != mark:
        raise FileFormatError(
            f"the checkpoint {path} belongs to other data or other options; delete it or name another file"
        )
    try:
        _check_parts(found)
        trainer.restore(found.tensors, found.numbers)
        if trainer.history or not trainer.is_inside:
            check_history(trainer.history)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise FileFormatError(f"the checkpoint {path} does not fit this run ({error}); {_REMEDY}") from None
    epochs = len(trainer.history)
    if epochs > trainer.max_epochs:
        name = parameter("max_epochs")
        raise OptionError(
            f"the checkpoint {path} has {epochs} epochs, more than {name}={trainer.max_epochs}; "
            f"raise {name}, or name another file to start again"
        )


def _check_parts(found: Checkpoint) -> None:
    """Raise a ValueError if a number has another type than in a run, or there are no best weights."""
    # Members that are trained by themselves have one run each.
    for numbers in found.numbers.get("runs", [found.numbers]):
        for name, usual in asdict(Progress()).items():
            if not _is_like(numbers.get(name, usual), usual):
                raise ValueError(f"{name} is {numbers[name]!r:.80}")
    best = {name.replace("best.", "model.", 1) for name in found.tensors if _BEST.match(name)}
    if not best or not best <= found.tensors.keys():
        raise ValueError("the best weights are missing")


def _is_like(value: Any, usual: Any) -> bool:
    if isinstance(usual, tuple):
        return isinstance(value, list) and len(value) == len(usual) and all(map(is_number, value))
    if isinstance(usual, list):
        return isinstance(value, list)
    if isinstance(usual, float):
        return is_number(value)
    if usual is None:
        return value is None or is_number(value)
    # Numbers of epochs and steps.
    return type(value) is type(usual) and not value < 0


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the last checkpoint, or the one before if the last is damaged; None if there is none.

    Raises:
        FileFormatError: If the file is not a checkpoint, or both are damaged.
    """
    if not path.exists():
        return None
    try:
        return Checkpoint(*_read(path), is_previous=False)
    except FileFormatError as error:
        try:
            found = Checkpoint(*_read(previous_of(path.resolve())), is_previous=True)
        except FileFormatError:
            raise error from None
        warnings.warn(f"{error}. The run continues from the checkpoint before it", RuntimeWarning, stacklevel=2)
        return found


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, metadata = read_tensors(path, _KIND, remedy=_REMEDY)
    try:
        numbers = from_json(metadata["numbers"].encode())
    except (KeyError, ValueError) as error:
        raise FileFormatError(f"{path} is not a whole checkpoint ({shorten(str(error), 200)}); {_REMEDY}") from None
    if not isinstance(numbers, dict):
        raise FileFormatError(f"{path} is not a whole checkpoint; {_REMEDY}")
    return tensors, numbers


def run_fingerprint(trainer: Training, start: dict[str, Tensor] | None, validation: Choices) -> str:
    """Return a hash of everything that a resumed run must share with the first one."""
    config, train = trainer.model.config, trainer.train_data
    options = {name: value for name, value in config.options.get_params().items() if name not in _FREE_OPTIONS}
    parts: list[Any] = [
        {
            **options,
            "phi": config.phi,
            "item_shape": config.item_shape,
            "slots": config.slots,
            "run": trainer.name,
        },
        {name: list(value.shape) for name, value in trainer.model.state_dict().items()},
        *train.signature(),
        *Examples(validation, None).signature(),
        # Flat, because the batch counter of a normalisation has no axis, and such a tensor has no view as bytes.
        *([] if start is None else [value.flatten() for value in start.values()]),
    ]
    if trainer.constraints is not None:
        # Under a constraint the training sets are in memory.
        assert isinstance(train, Examples)
        both = (train.choices, validation)
        parts += [constraint_signature(c, choices.sets) for c, choices in zip(trainer.constraints, both, strict=True)]
        parts.append(trainer.gradient.check(trainer.constraints[0], train.choices))
    return hash_parts(parts)
