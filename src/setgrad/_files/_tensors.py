"""The one reader and writer of safetensors files: every byte is under a checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setgrad._files._json import from_json
from setgrad._files._write import atomic_write
from setgrad.errors import FileFormatError

# The checksum of a file is inside it: it is computed with zeros in its place.
_NO_CHECKSUM = "0" * 64


def tensor_bytes(tensors: Mapping[str, Tensor], kind: str | None = None, **metadata: str) -> bytes:
    """Serialise tensors as safetensors; with a kind, the header has it, more metadata and a checksum."""
    from safetensors.torch import save

    # Copies, because safetensors refuses two names for one tensor, as a phi with shared weights has.
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    if kind is None:
        return save(copies)
    content = save(copies, {"format": kind, "sha256": _NO_CHECKSUM, **metadata})
    return content.replace(_entry(_NO_CHECKSUM), _entry(_checksum(content)), 1)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], kind: str, **metadata: str) -> None:
    """Write tensors atomically, with their kind, a checksum and more metadata in the header."""
    content = tensor_bytes(tensors, kind, **metadata)
    with atomic_write(Path(path)) as draft:
        # By Python, whose error says what is wrong where the disk is full.
        draft.write_bytes(content)


def read_tensors(
    path: str | Path, kind: str, *, remedy: str, device: str | torch.device = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `write_tensors` wrote: the tensors and the metadata.

    Raises:
        FileFormatError: If the file is of another kind or damaged. The message ends with `remedy`.
    """
    try:
        content = Path(path).read_bytes()
        tensors, metadata = from_tensor_bytes(content)
    except (ValueError, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as {kind}: {error}; {remedy}") from None
    if metadata.get("format") != kind:
        found = metadata.get("format", "other tensors")
        raise FileFormatError(f"{path} holds {found}, not {kind}; {remedy}")
    digest = str(metadata.get("sha256"))
    if digest != _checksum(content.replace(_entry(digest), _entry(_NO_CHECKSUM), 1)):
        raise FileFormatError(f"{path} was changed or damaged since it was written; {remedy}")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, metadata


def from_tensor_bytes(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of safetensors.

    Raises:
        ValueError: If they are damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        # A type of numbers that this torch does not have is a KeyError.
        raise ValueError(str(error)) from None
    header: Any = from_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tensors, header.get("__metadata__") or {}


def _entry(digest: str) -> bytes:
    return f'"sha256":"{digest}"'.encode()


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
