"""Which encoder a state belongs to: states of other weights must not be merged or continued.

A hash of all weights at every step of training would be dear. So a fingerprint first remembers the tensors and torch's
count of their changes, which is compared in microseconds, and computes the hash when it is needed: to compare it with
another encoder, or to save it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from setgrad._autograd import in_transform
from setgrad.encoders._snapshot import tensor_versions
from setgrad.errors import StateError

# Encoders with fewer weights on a CPU are hashed at once, which takes about a millisecond: so a state stays comparable
# when its encoder is changed and changed back, as by loading the same weights again.
_SMALL = 2**18
_ENTRY = "encoder"
_PLAIN = (bool, int, float, str, tuple)


@final
class Fingerprint:
    """Identifies the weights and the settings that items are read with; not those of the head.

    Args:
        tensors: The tensors of the encoder and torch's count of their changes.
        settings: What else the result depends on.
        digest: The hash, if it is known.
    """

    def __init__(self, tensors: list[tuple[Tensor, int]], settings: str, digest: str | None = None) -> None:
        self._tensors, self._settings, self._digest = tensors, settings, digest

    @staticmethod
    def of(encoder: nn.Module) -> Fingerprint | None:
        """Return the fingerprint of an encoder as it is now; None inside a transform, where tensors hold no numbers."""
        if in_transform() or torch.compiler.is_compiling():
            return None
        tensors = tensor_versions(encoder)
        mark = Fingerprint(tensors, _settings(encoder))
        if sum(t.numel() for t, _ in tensors if t.device.type == "cpu") < _SMALL:
            _ = mark.digest
        return mark

    @property
    def digest(self) -> str | None:
        """The hash; None if it is not known and the encoder has other weights by now."""
        if self._digest is None and all(_version(t) == version for t, version in self._tensors):
            digest = hashlib.sha256(self._settings.encode())
            for tensor, _ in self._tensors:
                plain = tensor.detach().cpu().contiguous()
                digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
                digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
            self._digest = digest.hexdigest()
        return self._digest

    def matches(self, other: Fingerprint) -> bool:
        """Return whether both are known to be of the same weights and settings."""
        if self is other or self._is_same_memory(other):
            return True
        return self.digest is not None and self.digest == other.digest

    def _is_same_memory(self, other: Fingerprint) -> bool:
        return (
            bool(self._tensors)
            and self._settings == other._settings
            and len(self._tensors) == len(other._tensors)
            and all(a is b and v == w for (a, v), (b, w) in zip(self._tensors, other._tensors, strict=True))
        )

    def __reduce__(self) -> Any:
        # Without the weights.
        return Fingerprint, ([], self._settings, self.digest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Fingerprint:
        return self


def check_same_encoder(one: Fingerprint | None, other: Fingerprint | None) -> None:
    """Raise a StateError if two fingerprints are of different encoders; an unknown one is of any."""
    if one is not None and other is not None and not one.matches(other):
        raise StateError(
            "the states were read by encoders with other weights or settings, or the weights changed in between; read "
            "all items with one encoder, and load the weights that the saved state was read with"
        )


def fingerprint_entry(fingerprint: Fingerprint | None) -> dict[str, str]:
    """Return what a file keeps of a fingerprint.

    Raises:
        StateError: If the weights changed before their hash was known.
    """
    if fingerprint is None:
        return {}
    if fingerprint.digest is None:
        raise StateError(
            "the weights of the encoder changed since this state was begun, so that nothing could continue it; save "
            "states before the weights change"
        )
    return {_ENTRY: fingerprint.digest}


def fingerprint_from(metadata: Mapping[str, str]) -> Fingerprint | None:
    """Return the fingerprint that a file kept; None if it has none."""
    digest = metadata.get(_ENTRY)
    return None if digest is None else Fingerprint([], "", digest)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _settings(encoder: nn.Module) -> str:
    """Return the classes of the parts of an encoder and their plain settings."""
    parts = []
    for name, part in encoder.named_modules():
        if name.partition(".")[0] == "head":
            continue
        # Modules of others may count their calls.
        own = vars(part) if type(part).__module__.startswith("setgrad.") else {}
        values = {
            key: value if isinstance(value, _PLAIN) else type(value).__name__
            for key, value in sorted(own.items())
            if key != "training" and not key.startswith("_")
        }
        parts.append(f"{name}:{type(part).__name__}:{part.extra_repr()}:{values!r}")
    return "\n".join(parts)
