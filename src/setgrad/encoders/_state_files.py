"""States on disk: named tensors with a checksum, so that a file that was cut short or altered is not gone on with."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch
from torch import Tensor

from setgrad.errors import FileFormatError
from setgrad.files import replacing


def write_tensors(path: str | Path, named: dict[str, Tensor], kind: str) -> None:
    """Write tensors of one kind of state."""
    from safetensors.torch import save_file

    plain = {name: t.detach().contiguous().cpu() for name, t in named.items()}
    with replacing(Path(path)) as draft:
        save_file(plain, draft, {"format": kind, "checksum": str(_checksum(plain))})


def read_tensors(path: str | Path, kind: str, device: str | torch.device) -> dict[str, Tensor]:
    """Read what `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            known = file.metadata() or {}
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read as a state: {error}; write it again with state.save") from None
    if known.get("format") != kind:
        raise FileFormatError(
            f"{path} holds {known.get('format', 'tensors that are no state')!r} and not {kind!r}; give a file that "
            "save of the same class wrote"
        )
    if known.get("checksum") != str(_checksum(named)):
        raise FileFormatError(f"{path} was altered since it was written; write it again with state.save")
    return {name: t.to(device) for name, t in named.items()}


def _checksum(named: dict[str, Tensor]) -> int:
    found = 0
    for name in sorted(named):
        t = named[name]
        found = zlib.crc32(f"{name} {t.dtype} {tuple(t.shape)}".encode(), found)
        found = zlib.crc32(t.reshape(-1).view(torch.uint8).numpy().tobytes(), found)
    return found
