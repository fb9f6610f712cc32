"""Saved models that are changed on purpose, with a manifest that agrees."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setgrad._files import write_folder

MODEL_FILES = {"README.md", "config.json", "manifest.json", "weights.safetensors"}


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Change one file of a model together with its checksum."""
    files = {part: (folder / part).read_bytes() for part in MODEL_FILES - {"manifest.json"}}
    write_folder(folder, {**files, name: content})


def rewrite_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the configuration of a model in place, together with its checksum."""
    config = json.loads((folder / "config.json").read_bytes())
    change(config)
    rewrite(folder, "config.json", json.dumps(config).encode())
