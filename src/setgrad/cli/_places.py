"""Where a command may write: at a place that takes a file, and over nothing that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from setgrad._files import check_writable
from setgrad.errors import OptionError
from setgrad.selector._files import MODEL_PARTS


def check_output(output: Path, *, model: Path, table: Path | None) -> None:
    """Refuse an output that cannot be written, or would take the place of the table or of a part of the model."""
    check_writable(output)
    if table is not None and _same(output, table):
        raise OptionError(f"{output} is the table that is read, and would be lost; choose another place: -o FILE")
    if _is_part(output, model):
        raise OptionError(f"{output} is a part of the model, and would be lost; choose another place: -o FILE")


def check_checkpoint(
    checkpoint: str | Path | None, taken: Mapping[str, Path | None], *, start: Path | None = None
) -> None:
    """Refuse to keep the state of a fit where another file of the command is, or in a part of the model it starts from.

    The fit itself would take such a file for a damaged checkpoint, and advise to remove it. `taken` says in words what
    each of the other files is.
    """
    if checkpoint is None:
        return
    place = Path(checkpoint)
    found = next((words for words, path in taken.items() if path is not None and _same(place, path)), None)
    if found is None and start is not None and _is_part(place, start):
        found = "a part of the model to start from"
    if found is not None:
        raise OptionError(f"{checkpoint} is {found}; choose another place for the state: --checkpoint FILE")


def _same(one: Path, other: Path) -> bool:
    both = one.exists() and other.exists()
    return one.samefile(other) if both else one.resolve() == other.resolve()


def _is_part(path: Path, model: Path) -> bool:
    return path.resolve() in [model.resolve() / name for name in MODEL_PARTS]
