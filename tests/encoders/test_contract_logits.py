"""What every encoder that weighs items by exponentials owes: logits of ten thousand change nothing in its promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from setgrad.encoders import ABMIL, DSMIL, UMBC, ChunkedEncoder, DeepUMBC, MergeableEncoder
from setgrad.encoders.activations import ACTIVATIONS
from tests.encoders.pieces import DIM, SIZES, draw, split
from tests.encoders.test_mergeable import CUTS, move_logits

LARGE = 1e4


def move_slot(encoder: UMBC, shift: float) -> None:
    """Move the logits of the first slot; those of a head are divided by the root of its width, 4."""
    move_logits(encoder, 2 * shift)


def move_second_look(encoder: DeepUMBC, shift: float) -> None:
    """All slots ask for a key that is 1 for every item; logits of a head are divided by the root of its width, 4."""
    with torch.no_grad():
        encoder.gather[1].ask[1].bias[::4] = 2 * shift


def move_scores(encoder: ABMIL, shift: float) -> None:
    """Weigh a hidden feature that is 1 for every item by the shift."""
    with torch.no_grad():
        encoder.weigh.weight[:, 0] += shift


def move_likeness(encoder: DSMIL, shift: float) -> None:
    """Give all items one more thing in common: its square is added to the likeness of any two."""
    with torch.no_grad():
        encoder.ask.bias[0] = (shift * len(encoder.ask.bias) ** 0.5) ** 0.5


def _abmil() -> ABMIL:
    encoder = ABMIL(DIM, hidden=4, branches=2, gated=False, head=nn.Linear(2 * DIM, 2))
    with torch.no_grad():
        encoder.look.weight[0], encoder.look.bias[0] = 0.0, 50.0
    return encoder


def _deep_umbc() -> DeepUMBC:
    encoder = DeepUMBC(DIM, 8, 4, passes=2, heads=2)
    second = encoder.gather[1]
    with torch.no_grad():
        second.read_items[1].weight[:8:4], second.read_items[1].bias[:8:4] = 0.0, 1.0
        second.ask[1].weight[::4], second.ask[1].bias[::4] = 0.0, 0.0
    return encoder


def _dsmil() -> DSMIL:
    encoder = DSMIL(DIM, classes=2, hidden=4)
    with torch.no_grad():
        encoder.ask.weight[0], encoder.ask.bias[0] = 0.0, 0.0
    return encoder


@dataclass(frozen=True)
class Case:
    """An encoder, what moves its logits, and by how much."""

    name: str
    make: Callable[[], Any]
    move: Callable[[Any, float], None]
    shift: float
    # Whether equal shifts cancel; the other activations of UMBC mean what a logit is.
    cancels: bool = True

    def __str__(self) -> str:
        return f"{self.name}, {self.shift:+.0f}"


CASES = [
    *(
        Case(f"umbc, {name}", lambda name=name: UMBC(DIM, 8, 4, heads=2, activation=name), move_slot, shift, same)
        for name in ACTIVATIONS
        for shift in (-LARGE, LARGE)
        for same in [name == "softmax"]
    ),
    *(Case("umbc, deep", _deep_umbc, move_second_look, shift) for shift in (-LARGE, LARGE)),
    *(Case("ab-mil", _abmil, move_scores, shift) for shift in (-LARGE, LARGE)),
    # A square is never negative.
    Case("ds-mil", _dsmil, move_likeness, LARGE),
]


def build(case: Case, seeded: Any, dtype: torch.dtype, shift: float) -> ChunkedEncoder:
    with seeded(0):
        encoder = case.make().eval()
    if shift:
        case.move(encoder, shift)
    return encoder.to(dtype)


def close(ours: Any, expected: Any, tolerance: float) -> None:
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_partition_gives_the_whole(case, seeded):
    """Single items, a few, a cut elsewhere in each set, and all at once.

    The last digit of such a logit is 2e-12: an encoder of 128 numbers may be off by as much with chunks of a few items.
    """
    encoder, sets = build(case, seeded, torch.float64, case.shift), draw()
    whole = encoder(sets)
    assert whole.isfinite().all()
    cut = split(sets, CUTS)
    for source in (cut, cut[::-1]):
        close(encoder.stream(source), whole, 1e-12)
    for size in range(1, max(SIZES) + 1):
        close(encoder.stream(sets, chunk_size=size), whole, 1e-12)
    if isinstance(encoder, MergeableEncoder):
        first, second, third = (encoder.update(encoder.begin(len(sets)), chunk) for chunk in cut)
        close(encoder.finish(third.merge(first.merge(second))), whole, 1e-12)


@pytest.mark.parametrize("size", [100, 250, 700])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_of_a_hundred_items_give_the_whole_in_float32(case, seeded, size):
    """Shorter chunks take other kernels, whose logits differ by their last digit, which is a thousandth."""
    encoder, sets = build(case, seeded, torch.float32, case.shift), draw([1000, 500], dtype=torch.float32)
    close(encoder.stream(sets, chunk_size=size), encoder(sets), 1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case.cancels], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 5e-3)])
def test_a_shift_of_all_logits_changes_nothing(case, seeded, dtype, tolerance):
    """But for the digits that the logits themselves lose: at 1e4, the last one is 2e-12, or 1e-3 in float32."""
    sets = draw(dtype=dtype)
    close(build(case, seeded, dtype, case.shift)(sets), build(case, seeded, dtype, 0.0)(sets), tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_logits_are_moved(case, seeded):
    """Or the tests above would say nothing: the level of a state, where there is one, is that of the shift."""
    moved, plain = (build(case, seeded, torch.float64, shift) for shift in (case.shift, 0.0))
    changed = [not torch.equal(a, b) for a, b in zip(moved.parameters(), plain.parameters(), strict=True)]
    assert sum(changed) == 1
    if case.cancels and isinstance(moved, MergeableEncoder):
        levels = [encoder.update(encoder.begin(4), draw()).level for encoder in (moved, plain)]
        far = (levels[0] - levels[1])[[0, 2, 3]]
        assert ((far - case.shift).abs() < 1e-3 * LARGE).any()
