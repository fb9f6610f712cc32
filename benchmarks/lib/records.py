"""Files of results, one JSON object for each run, and the context that a run needs."""

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

# Words that older records use for fields and options, with the names of today.
_RENAMED = {"width": "dim", "picture": "pixel-cnn", "piece": "chunk", "told the trees": "supervised", "knob": "option"}
_RENAMED |= {"settled": "share_converged", "settled_test": "share_converged_test"}


@final
@dataclass(frozen=True)
class RunContext:
    """Where a run takes place: device, data, unfinished fits, fitted models, and the origin that records state."""

    device: str | None = None
    data_dir: str | None = None
    commit: str = ""
    command: str = ""
    checkpoints: Path | None = None
    models: Path | None = None


def current_commit() -> str:
    """Return the commit of the checkout, with a plus if files differ from it; SETGRAD_COMMIT where there is no git."""
    commit = os.environ.get("SETGRAD_COMMIT")
    if commit:
        return commit
    git = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    try:
        commit = git(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def read_records(path: Path) -> list[Record]:
    """Return the stored records, under the names of today. A line that was cut off by a killed run is left out."""
    if not path.exists():
        return []
    old_name = re.compile(rf"\b({'|'.join(_RENAMED)})\b")
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(old_name.sub(lambda match: _RENAMED[match[0]], line)))
        except json.JSONDecodeError:
            print(f"{path}: a damaged line is left out: {line[:60]!r}", file=sys.stderr)
    return records


def append_record(path: Path, record: Record) -> None:
    """Append a record to a file and flush it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed run may have left half a line; the new record must start on its own line.
    broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if broken else "") + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
