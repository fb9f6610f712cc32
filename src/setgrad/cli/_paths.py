"""Where a command may write: to a path that takes a file, and not over its own input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from setgrad._files import check_writable
from setgrad.errors import OptionError
from setgrad.selector._model_files import MODEL_FILES


def check_output(output: Path, *, model: Path, table: Path | str | None) -> None:
    """Check that an output file can be written and replaces neither the table nor a file of the model.

    Raises:
        DataError: If the file cannot be written.
        OptionError: If it would replace an input.
    """
    check_writable(output)
    if isinstance(table, Path) and _is_same(output, table):
        raise OptionError(f"{output} is the input table and would be lost; choose another file: -o FILE")
    if _is_model_file(output, model):
        raise OptionError(f"{output} is a file of the model and would be lost; choose another file: -o FILE")


def check_checkpoint(
    checkpoint: str | Path | None, taken: Mapping[str, Path | str | None], *, start: Path | None = None
) -> None:
    """Check that a checkpoint is not another file of the command.

    The fit would take such a file for a damaged checkpoint, and advise to delete it.

    Args:
        checkpoint: The checkpoint.
        taken: The other files of the command by what they are.
        start: The folder of the model to start from.

    Raises:
        OptionError: If it is one of them.
    """
    if checkpoint is None:
        return
    path = Path(checkpoint)
    role = next((role for role, other in taken.items() if isinstance(other, Path) and _is_same(path, other)), None)
    if role is None and start is not None and _is_model_file(path, start):
        role = "a file of the model to start from"
    if role is not None:
        raise OptionError(f"{checkpoint} is {role}; choose another file for the state of training: --checkpoint FILE")


def _is_same(one: Path, other: Path) -> bool:
    both = one.exists() and other.exists()
    return one.samefile(other) if both else one.resolve() == other.resolve()


def _is_model_file(path: Path, model: Path) -> bool:
    return path.resolve() in [model.resolve() / name for name in MODEL_FILES]
