"""Atomic writes, and the one reader and writer of safetensors files."""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from setgrad.errors import DataError, FileFormatError


def check_writable(path: Path) -> None:
    """Check that a file can be written at a path; call it before long work.

    Raises:
        DataError: If the path is a folder, a device, or below a folder that takes no files.

    Examples:
        >>> check_writable(Path("."))
        Traceback (most recent call last):
        setgrad.errors.DataError: .: this is a folder; name a file, such as one inside it
    """
    try:
        if not path.name or path.is_dir():
            raise DataError(f"{path}: this is a folder; name a file, such as one inside it")
        if path.exists() and not path.is_file():
            # The new file would replace it: a file where /dev/null was.
            raise _unwritable(path, "it is a device or a pipe")
        above = next(parent for parent in path.absolute().parents if parent.exists())
        is_folder = above.is_dir() and os.access(above, os.W_OK)
    except OSError as error:
        raise _unwritable(path, str(error)) from error
    if not is_folder:
        raise _unwritable(path, f"{above} is not a folder that takes files")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it replaces `path` when the block ends without an error.

    Raises:
        DataError: If the file cannot be written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_write(Path(folder, "deep", "note.txt")) as temporary:
        ...         _ = temporary.write_text("done")
        ...     Path(folder, "deep", "note.txt").read_text()
        'done'
    """
    check_writable(path)
    # A symbolic link stays, and its target is replaced.
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, str(error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Serialise tensors as safetensors."""
    from safetensors.torch import save

    # Copies, because safetensors refuses two names for one tensor, as a phi with shared weights has.
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    return save(copies, None if metadata is None else dict(metadata))


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], kind: str, **metadata: str) -> None:
    """Write tensors atomically, with their kind, a checksum and more metadata in the header."""
    content = tensor_bytes(tensors, {"format": kind, "checksum": _checksum(tensors), **metadata})
    with atomic_write(Path(path)) as temporary:
        # By Python, whose error says what is wrong where the disk is full.
        temporary.write_bytes(content)


def read_tensors(
    path: str | Path, kind: str, *, remedy: str, device: str | torch.device = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `write_tensors` wrote: the tensors and the metadata.

    Raises:
        FileFormatError: If the file is of another kind or damaged. The message ends with `remedy`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read as {kind}: {error}; {remedy}") from None
    if metadata.get("format") != kind:
        found = metadata.get("format", "other tensors")
        raise FileFormatError(f"{path} holds {found}, not {kind}; {remedy}")
    if metadata.get("checksum") != _checksum(tensors):
        raise FileFormatError(f"{path} was changed or damaged since it was written; {remedy}")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, metadata


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), crc)
    return str(crc)


def _unwritable(path: Path, cause: str) -> DataError:
    return DataError(f"{path}: this cannot be written: {cause}; choose a path that can be")
