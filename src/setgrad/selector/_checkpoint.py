"""Checkpoints: the state of training after an epoch, in one safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setgrad._files import read_tensors, write_tensors
from setgrad.errors import FileFormatError, OptionError, parameter
from setgrad.selector._batch_constraint import constraint_signature
from setgrad.selector._training import Training

_KIND = "setgrad.checkpoint"
# Options that may change when a run is resumed. Modules have no JSON form; the shapes of their weights are compared.
_FREE_OPTIONS = ("checkpoint", "device", "verbose", "max_epochs", "patience", "phi")


def resume_from_checkpoint(trainer: Training, start: dict[str, Tensor] | None) -> Callable[[Training], None] | None:
    """Restore the trainer from its checkpoint if the file exists, and return a function that writes the checkpoint.

    Args:
        trainer: The trainer of the run.
        start: State of the model whose weights training starts from.

    Returns:
        The function to call after every epoch; None without the option `checkpoint`.

    Raises:
        FileFormatError: If the checkpoint is damaged or belongs to another run.
        OptionError: If the checkpoint has more epochs than `max_epochs`.
    """
    if trainer.model.config.options.checkpoint is None:
        return None
    path = Path(trainer.model.config.options.checkpoint)
    mark = _run_fingerprint(trainer, start)
    if path.exists():
        tensors, numbers = read_checkpoint(path)
        if numbers.get("fingerprint") != mark:
            raise FileFormatError(
                f"the checkpoint {path} belongs to other data or other options; delete it or name another file"
            )
        trainer.restore(tensors, numbers)
        epochs = len(trainer.history)
        if epochs > trainer.max_epochs:
            name = parameter("max_epochs")
            raise OptionError(
                f"the checkpoint {path} has {epochs} epochs, more than {name}={trainer.max_epochs}; "
                f"raise {name}, or name another file to start again"
            )

    def save(running: Training) -> None:
        tensors, numbers = running.state()
        extra = {"members": running.model.config.members, "fingerprint": mark}
        write_tensors(path, tensors, _KIND, numbers=json.dumps({**numbers, **extra}))

    return save


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the numbers of a checkpoint.

    Raises:
        FileFormatError: If the file is not a checkpoint or is damaged.
    """
    tensors, metadata = read_tensors(path, _KIND, remedy="name another file, or delete it to start again")
    return tensors, json.loads(metadata["numbers"])


def _run_fingerprint(trainer: Training, start: dict[str, Tensor] | None) -> str:
    """Return a hash of everything that a resumed run must share with the first one."""
    config, both = trainer.model.config, (trainer.train_data, trainer.validation)
    options = {name: value for name, value in config.options.get_params().items() if name not in _FREE_OPTIONS}
    parts: list[Any] = [
        {**options, "phi": config.phi, "item_shape": config.item_shape, "slots": config.slots},
        {name: list(value.shape) for name, value in trainer.model.state_dict().items()},
        [choices.sets.layout.host_lengths.tolist() for choices in both],
        *(tensor for choices in both for tensor in (choices.sets.values, choices.subsets.values)),
        *([] if trainer.weights is None else [trainer.weights]),
        # Flat, because the batch counter of a normalisation has no axis, and such a tensor has no view as bytes.
        *([] if start is None else [value.flatten() for value in start.values()]),
    ]
    if trainer.constraints is not None:
        parts += [constraint_signature(c, choices.sets) for c, choices in zip(trainer.constraints, both, strict=True)]
        parts.append(trainer.gradient.check(trainer.constraints[0], trainer.train_data))
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.detach().cpu().contiguous()
            digest.update(str((part.dtype, tuple(part.shape))).encode())
            digest.update(part.view(torch.uint8).numpy().tobytes() if part.numel() else b"")
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()
