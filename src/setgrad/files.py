"""Files that are either the old ones or the new ones, never half of either."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from setgrad.errors import DataError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a draft to write to, beside the path; when the block ends well, it takes the place of the path.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder, "deep", "note.txt")) as draft:
        ...         _ = draft.write_text("done")
        ...     Path(folder, "deep", "note.txt").read_text()
        'done'
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise DataError(f"{path}: this cannot be written: {error}; choose a path that can be") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
