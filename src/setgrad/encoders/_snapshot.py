"""Repeat a pass exactly: with the same parameters, training modes, precision and random numbers as the first time."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from setgrad._autograd import in_transform
from setgrad.encoders._base import first_tensor
from setgrad.encoders._guard import PassDigest, check_same_chunks
from setgrad.errors import OptionError
from setgrad.sets import Sets


def reverse_mode_only() -> OptionError:
    """Return the error for a derivative that replayed passes cannot compute."""
    return OptionError(
        "chunks that are read again have a gradient in reverse mode only, by backward or torch.autograd.grad: use "
        "gradient='full' for forward mode and the transforms of torch.func"
    )


@final
class EncoderSnapshot:
    """The settings of an encoder at the start of a stream and the digest of its first pass, for all later passes."""

    def __init__(self, encoder: nn.Module) -> None:
        if in_transform():
            raise reverse_mode_only()
        self.encoder, self.parameters = encoder, list(encoder.parameters())
        self.modes = {part: part.training for part in encoder.modules()}
        # One submodule may be in training mode alone. In evaluation mode, torch's global generator stays unchanged
        # unless a submodule draws all the same, which the first chunk with items shows.
        self.is_random, self._is_probed = any(self.modes.values()), False
        self.seed = (
            int(torch.randint(2**62, ())) if self.is_random else zlib.crc32(torch.get_rng_state().numpy().tobytes())
        )
        self.device = first_tensor(encoder).device.type
        self.autocast = torch.is_autocast_enabled(self.device)
        self.autocast_dtype = torch.get_autocast_dtype(self.device)
        self.digest: PassDigest | None = None

    def check_pass(self, digest: PassDigest) -> None:
        """Keep the digest of the first pass; raise a DataError if a later pass read other items."""
        if self.digest is None:
            self.digest = digest
        check_same_chunks(self.digest, digest)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the training modes and the precision of the first pass inside the block."""
        current = list(self.encoder.parameters())
        if len(current) != len(self.parameters) or any(
            a is not b for a, b in zip(current, self.parameters, strict=True)
        ):
            raise OptionError(
                "the encoder has other parameters in the backward pass than in the forward pass, as after "
                "torch.func.functional_call; call backward inside that function, or use gradient='full'"
            )
        modes = {part: part.training for part in self.modes}
        _set_modes(self.modes)
        try:
            # Without the cache: casts without a graph would be reused for parameters that need one.
            with torch.autocast(self.device, self.autocast_dtype, self.autocast, cache_enabled=False):
                yield
        finally:
            _set_modes(modes)

    @contextmanager
    def seeded(self, number: int, chunk: Sets) -> Iterator[None]:
        """Seed torch's generators inside the block, so that dropout is the same for a chunk in every pass."""
        device = chunk.values.device
        on_gpu, seed = device.type == "cuda", (self.seed + number) % 2**63
        probe = not self.is_random and not self._is_probed
        with torch.random.fork_rng(devices=[device] if on_gpu else []):
            # Not torch.manual_seed, which would also seed all other GPUs, outside of this block too.
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            before = _rng_state(device) if probe else None
            yield
            drew = before is not None and not torch.equal(before, _rng_state(device))
        self.is_random, self._is_probed = self.is_random or drew, self._is_probed or len(chunk.values) > 0
        if drew:
            # The seed came from the state of the global generator: advance it, so that the next stream has another.
            torch.randint(2**62, ())


def _rng_state(device: torch.device) -> Tensor:
    """Return a tensor that changes when a module draws random numbers on the device or the CPU."""
    cpu = torch.get_rng_state()
    return torch.cat([cpu, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else cpu


def tensor_versions(encoder: nn.Module) -> list[tuple[Tensor, int]]:
    """Return the tensors that an encoder reads items with, and torch's count of their in-place changes."""
    named = itertools.chain(encoder.named_parameters(), encoder.named_buffers())
    # The head reads no items, and may update statistics of its own.
    return [(t, 0 if t.is_inference() else t._version) for name, t in named if name.partition(".")[0] != "head"]


def is_modified(encoder: nn.Module, before: list[tuple[Tensor, int]]) -> bool:
    """Return whether an encoder holds other tensors than before, or one was written to, even with the same values."""
    now = tensor_versions(encoder)
    return len(now) != len(before) or any(
        a is not b or version != earlier for (a, version), (b, earlier) in zip(now, before, strict=True)
    )


def check_graph_inputs(outputs: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
    """Raise an OptionError if the graph of the outputs has a leaf that is not among the inputs: it gets no gradient."""
    inputs = list(inputs)
    ends = {(t.grad_fn, t.output_nr) for t in inputs if t.grad_fn is not None}
    leaves = {id(t) for t in inputs}
    pending, visited = [(t.grad_fn, t.output_nr) for t in outputs], set()
    while pending:
        edge = pending.pop()
        node = edge[0]
        if node is None or edge in ends or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in leaves:
            raise OptionError(
                f"the features of items depend on a tensor of shape {tuple(leaf.shape)} that requires a gradient and "
                "is not a parameter of the encoder; make it a parameter, detach it, or use gradient='full'"
            )
        pending.extend(node.next_functions)


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for part, training in modes.items():
        part.training = training
