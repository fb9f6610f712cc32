"""A pass that is gone again as it was gone first: with the same weights, modes, precision and random numbers."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from setgrad._autograd import in_transform
from setgrad.encoders._base import place_of
from setgrad.encoders._watch import Noted, require_same
from setgrad.errors import OptionError
from setgrad.sets import Sets


def only_backward() -> OptionError:
    """Build the error for a derivative that passes which are gone again do not have."""
    return OptionError(
        "chunks that are read again have a gradient in reverse mode only, by backward or torch.autograd.grad: use "
        "gradient='full' for forward mode and the transforms of torch.func"
    )


@final
class Moment:
    """What an encoder was when its stream began, and what the first pass saw; all other passes are held to both."""

    def __init__(self, encoder: nn.Module) -> None:
        if in_transform():
            raise only_backward()
        self.encoder, self.weights = encoder, list(encoder.parameters())
        self.modes = {part: part.training for part in encoder.modules()}
        # A part may train alone. In evaluation the caller's generator is left alone, unless something draws after all.
        self.draws, self.looked = any(self.modes.values()), False
        self.seed = int(torch.randint(2**62, ())) if self.draws else zlib.crc32(torch.get_rng_state().numpy().tobytes())
        self.device = place_of(encoder).device.type
        self.mixed, self.mixed_dtype = torch.is_autocast_enabled(self.device), torch.get_autocast_dtype(self.device)
        self.noted: Noted | None = None

    def remember(self, noted: Noted) -> None:
        """Keep what the first pass saw; refuse a later one that saw anything else."""
        if self.noted is None:
            self.noted = noted
        require_same(self.noted, noted)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A block in which the encoder is as it was."""
        now = list(self.encoder.parameters())
        if len(now) != len(self.weights) or any(a is not b for a, b in zip(now, self.weights, strict=True)):
            raise OptionError(
                "the encoder has other parameters in the backward pass than in the forward pass, as after "
                "torch.func.functional_call; call backward inside that function, or use gradient='full'"
            )
        modes = {part: part.training for part in self.modes}
        _set_modes(self.modes)
        try:
            # Without the cache: what a pass without graphs puts there has no graph, and would be taken for the weights.
            with torch.autocast(self.device, self.mixed_dtype, self.mixed, cache_enabled=False):
                yield
        finally:
            _set_modes(modes)

    @contextmanager
    def drawn(self, number: int, chunk: Sets) -> Iterator[None]:
        """A block in which dropout draws the same numbers for a chunk in every pass."""
        on_gpu, seed = chunk.device.type == "cuda", (self.seed + number) % 2**63
        looks = not self.draws and not self.looked
        with torch.random.fork_rng(devices=[chunk.device] if on_gpu else []):
            # Not torch.manual_seed, which would seed all other GPUs for good.
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                with torch.cuda.device(chunk.device):
                    torch.cuda.manual_seed(seed)
            before = _drawn_so_far(chunk) if looks else None
            yield
            drew = before is not None and not torch.equal(before, _drawn_so_far(chunk))
        self.draws, self.looked = self.draws or drew, self.looked or chunk.layout.total > 0
        if drew:
            # Its seed was made of the state of this generator: the next stream has to find another.
            torch.randint(2**62, ())


def _drawn_so_far(chunk: Sets) -> Tensor:
    """What changes when a module draws for a chunk."""
    cpu = torch.get_rng_state()
    return torch.cat([cpu, torch.cuda.get_rng_state(chunk.device)]) if chunk.device.type == "cuda" else cpu


def versions(encoder: nn.Module) -> list[tuple[Tensor, int]]:
    """What an encoder reads items with, and torch's count of its changes in place: to look at it waits for nothing."""
    named = itertools.chain(encoder.named_parameters(), encoder.named_buffers())
    # The head reads no items, and may well keep statistics of its own.
    return [(t, 0 if t.is_inference() else t._version) for name, t in named if name.partition(".")[0] != "head"]


def is_changed(encoder: nn.Module, before: list[tuple[Tensor, int]]) -> bool:
    """Whether an encoder holds other tensors than before, or one was written to, be it with the same numbers."""
    now = versions(encoder)
    return len(now) != len(before) or any(
        a is not b or one != other for (a, one), (b, other) in zip(now, before, strict=True)
    )


def require_known(outputs: Iterable[Tensor], known: Iterable[Tensor]) -> None:
    """Refuse a graph that ends in a tensor which is none of `known`, since that one would get no gradient."""
    known = list(known)
    ends = {(t.grad_fn, t.output_nr) for t in known if t.grad_fn is not None}
    leaves = {id(t) for t in known}
    left, seen = [(t.grad_fn, t.output_nr) for t in outputs], set()
    while left:
        step = left.pop()
        node = step[0]
        if node is None or step in ends or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in leaves:
            raise OptionError(
                f"what is seen of items depends on a tensor of shape {tuple(leaf.shape)} that requires a gradient and "
                "is no parameter of the encoder; make it one, detach it, or use gradient='full'"
            )
        left.extend(node.next_functions)


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for part, training in modes.items():
        part.training = training
