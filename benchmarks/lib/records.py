"""A file of results, one JSON object for each run, and where a run takes place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

Record = dict[str, Any]

# Names that older records use for fields and options, by today's names.
_RENAMED = {"width": "dim", "picture": "pixel-cnn"}


@final
@dataclass(frozen=True)
class Place:
    """Where fits run, where their data are, where unfinished ones are kept, and what to write beside every result."""

    device: str | None = None
    data_dir: str | None = None
    commit: str = ""
    command: str = ""
    checkpoints: Path | None = None


def current_commit() -> str:
    """The commit of the checkout, with a plus if files differ from it; SETGRAD_COMMIT where there is no git."""
    named = os.environ.get("SETGRAD_COMMIT")
    if named:
        return named
    try:
        ask = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        commit = ask(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
        changed = ask(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def read_records(path: Path) -> list[Record]:
    """Return the stored results, under today's names. A line that was cut off when a run was killed is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(re.sub(rf"\b({'|'.join(_RENAMED)})\b", lambda m: _RENAMED[m[0]], line)))
        except json.JSONDecodeError:
            print(f"{path}: a damaged line is left out: {line[:60]!r}", file=sys.stderr)
    return records


def append_record(path: Path, record: Record) -> None:
    """Add a line to a file of results, and see to it that it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed run may have left half a line; the new record must not be glued to it.
    broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if broken else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
