"""Where a command may write: at a place that takes a file, and over nothing that it reads."""

from __future__ import annotations

from pathlib import Path

from setgrad.errors import OptionError
from setgrad.files import check_place
from setgrad.selector._files import MODEL_PARTS


def check_output(output: Path, *, model: Path, table: Path | None) -> None:
    """Refuse an output that cannot be written, or would take the place of the table or of a part of the model."""
    check_place(output)
    if table is not None and output.exists() and table.exists() and output.samefile(table):
        raise OptionError(f"{output} is the table that is read, and would be lost; choose another place: -o FILE")
    if output.resolve() in [model.resolve() / name for name in MODEL_PARTS]:
        raise OptionError(f"{output} is a part of the model, and would be lost; choose another place: -o FILE")
