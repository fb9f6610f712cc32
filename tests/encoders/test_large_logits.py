"""Encoders that weigh items by exponentials keep their contract with logits of ten thousand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from setgrad.encoders import ABMIL, DSMIL, UMBC, DeepUMBC, MergeableEncoder
from setgrad.encoders.activations import ACTIVATIONS
from tests.encoders.helpers import DIM, SIZES, assert_close, random_sets, split_sets
from tests.encoders.test_mergeable import shift_logits

LARGE = 1e4


def shift_slot(encoder: UMBC, shift: float) -> None:
    """Shift the logits of the first slot; those of a head are divided by the root of its dimension, 4."""
    shift_logits(encoder, 2 * shift)


def shift_second_pass(encoder: Any, shift: float) -> None:
    """Shift the queries of all slots for a key that is 1 for every item; logits are divided by the root of 4."""
    with torch.no_grad():
        encoder.gather[1].ask[1].bias[::4] = 2 * shift


def shift_scores(encoder: ABMIL, shift: float) -> None:
    """Add the shift to the weight of a hidden feature that is 1 for every item."""
    with torch.no_grad():
        encoder.weigh.weight[:, 0] += shift


def shift_likeness(encoder: DSMIL, shift: float) -> None:
    """Give all items a common feature, whose square is added to the likeness of any two."""
    with torch.no_grad():
        encoder.ask.bias[0] = (shift * len(encoder.ask.bias) ** 0.5) ** 0.5


def _abmil() -> ABMIL:
    encoder = ABMIL(DIM, hidden=4, branches=2, gated=False, head=nn.Linear(2 * DIM, 2))
    with torch.no_grad():
        encoder.look.weight[0], encoder.look.bias[0] = 0.0, 50.0
    return encoder


def _deep_umbc() -> DeepUMBC:
    encoder: Any = DeepUMBC(DIM, 8, 4, passes=2, heads=2)
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
    """An encoder, a function that shifts its logits, and the shift."""

    name: str
    make: Callable[[], Any]
    apply_shift: Callable[[Any, float], None]
    shift: float
    # Whether a shift of all logits cancels; the other activations of UMBC depend on it.
    cancels: bool = True

    def __str__(self) -> str:
        return f"{self.name}, {self.shift:+.0f}"


CASES = [
    *(
        Case(f"umbc, {name}", partial(UMBC, DIM, 8, 4, heads=2, activation=a), shift_slot, shift, name == "softmax")
        for name, a in ACTIVATIONS.items()
        for shift in (-LARGE, LARGE)
    ),
    *(Case("umbc, deep", _deep_umbc, shift_second_pass, shift) for shift in (-LARGE, LARGE)),
    *(Case("ab-mil", _abmil, shift_scores, shift) for shift in (-LARGE, LARGE)),
    # A square is never negative.
    Case("ds-mil", _dsmil, shift_likeness, LARGE),
]


def build(case: Case, seeded: Any, dtype: torch.dtype, shift: float) -> Any:
    with seeded(0):
        encoder = case.make().eval()
    if shift:
        case.apply_shift(encoder, shift)
    return encoder.to(dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_partition_gives_the_code_of_the_whole_set(case, seeded):
    """Single items, a few, a different cut in each set, and all at once.

    The last digit of such a logit is 2e-12: with chunks of a few items, an encoder with 128 dimensions may differ as
    much.
    """
    encoder, sets = build(case, seeded, torch.float64, case.shift), random_sets()
    whole = encoder(sets)
    assert whole.isfinite().all()
    chunks = split_sets(sets)
    for source in (chunks, chunks[::-1]):
        assert_close(encoder.stream(source), whole, 1e-12)
    for size in range(1, max(SIZES) + 1):
        assert_close(encoder.stream(sets, chunk_size=size), whole, 1e-12)
    if isinstance(encoder, MergeableEncoder):
        first, second, third = (encoder.update(encoder.begin(len(sets)), chunk) for chunk in chunks)
        assert_close(encoder.finish(third.merge(first.merge(second))), whole, 1e-12)


@pytest.mark.parametrize("size", [100, 250, 700])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_of_a_hundred_items_give_the_code_of_the_whole_set_in_float32(case, seeded, size):
    """Shorter chunks use other kernels, whose logits differ in the last digit, which is a thousandth."""
    encoder, sets = build(case, seeded, torch.float32, case.shift), random_sets([1000, 500], dtype=torch.float32)
    assert_close(encoder.stream(sets, chunk_size=size), encoder(sets), 1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case.cancels], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 5e-3)])
def test_a_shift_of_all_logits_changes_nothing(case, seeded, dtype, tolerance):
    """Except for the digits that the logits lose: at 1e4 the last one is 2e-12, or 1e-3 in float32."""
    sets = random_sets(dtype=dtype)
    assert_close(build(case, seeded, dtype, case.shift)(sets), build(case, seeded, dtype, 0.0)(sets), tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_logits_are_shifted(case, seeded):
    """Otherwise the tests above would test nothing: the level of a state, if any, moves by the shift."""
    shifted, plain = (build(case, seeded, torch.float64, shift) for shift in (case.shift, 0.0))
    changed = [not torch.equal(a, b) for a, b in zip(shifted.parameters(), plain.parameters(), strict=True)]
    assert sum(changed) == 1
    if case.cancels and isinstance(shifted, MergeableEncoder):
        levels = [encoder.update(encoder.begin(4), random_sets()).level for encoder in (shifted, plain)]
        difference = (levels[0] - levels[1])[[0, 2, 3]]
        assert ((difference - case.shift).abs() < 1e-3 * LARGE).any()
