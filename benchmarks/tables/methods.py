"""Methods that are fitted on a shop's table and choose from another one, with sizes that are given or their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.selection.models import make_selector
from benchmarks.tables.features import numbers, one_hot
from benchmarks.tables.rivals import RIVALS, Score
from benchmarks.tables.shop import BOUGHT, OFFER, SESSION, Frame, Shop, session_sizes, split_sessions
from setgrad import SubsetSelector
from setgrad.selector import jaccard, pick_top
from setgrad.selector.sizes import SizeRule, calibrate
from setgrad.sets import Sets, subset_sizes

# From a table and the sizes, or None for its own, to whether each row is chosen.
Predict = Callable[[Frame, np.ndarray | None], np.ndarray]
# Ours on the table as it is, and on arrays that are made by hand from it.
DEFAULT, ORACLE = "default", "oracle"
_ENCODED = {"one-hot": one_hot, "numbers": numbers}
OURS = (DEFAULT, *_ENCODED)
METHODS = (*OURS, *RIVALS, ORACLE)


def fit_method(name: str, shop: Shop, *, seed: int, options: dict[str, Any], device: str | None) -> Predict:
    """Return a fitted method; `options` and `device` are for ours."""
    if name == ORACLE:
        return fit_oracle(shop)
    if name in RIVALS:
        return _fit_rival(name, shop.train, seed)
    selector = make_selector(options, seed=seed, device=device)
    if name == DEFAULT:
        selector.fit(shop.train, set_id=SESSION, chosen=BOUGHT, item_id=OFFER)

        def predict(frame: Frame, sizes: np.ndarray | None) -> np.ndarray:
            picks = selector.predict(frame.drop(columns=BOUGHT), size=None if sizes is None else sizes.tolist())
            return picks["chosen"].to_numpy()

        return predict
    encode = _ENCODED[name]
    selector.fit(as_sets(encode(shop.train), shop.train), bought(shop.train))
    return lambda frame, sizes: (
        selector.predict(as_sets(encode(frame), frame), size=None if sizes is None else sizes.tolist())
        .values.cpu()
        .numpy()
    )


def fit_oracle(shop: Shop) -> Predict:
    """Return the choice of one who knows the worth of every offer, but not the noise."""
    worth: dict[str, float] = {}
    for frame, values in zip((shop.train, shop.test), shop.worth, strict=True):
        worth |= zip(frame[OFFER], values.tolist(), strict=True)
    return _with_sizes(lambda frame: frame[OFFER].map(worth).to_numpy(), shop.train, shop.train)


def score_method(predict: Predict, frame: Frame, sizes: np.ndarray | None) -> float:
    """Return the mean Jaccard score of a method in percent."""
    truth = bought(frame)
    return 100 * float(jaccard(as_sets(predict(frame, sizes), frame), truth).mean())


def true_sizes(frame: Frame) -> np.ndarray:
    """Return how many items were bought in each session."""
    return np.asarray(subset_sizes(bought(frame)))


def as_sets(rows: np.ndarray, frame: Frame) -> Sets:
    """Return values of the rows of a table as the sets of its sessions; floats in single precision."""
    # A writable copy: tensors share memory with arrays, and those of a frame may be read-only.
    values = torch.from_numpy(np.array(rows))
    return Sets.from_lengths(values.float() if values.is_floating_point() else values, session_sizes(frame))


def bought(frame: Frame) -> Sets:
    """Return the chosen subsets."""
    return as_sets(frame[BOUGHT].to_numpy(bool), frame)


def _fit_rival(name: str, table: Frame, seed: int) -> Predict:
    train, validation = split_sessions(table, float(SubsetSelector().validation_fraction), seed)
    return _with_sizes(RIVALS[name](train, validation, seed), validation, table)


def _with_sizes(score: Score, validation: Frame, table: Frame) -> Predict:
    """Return a method that takes the best scores, with own sizes by the rules of a selector."""
    least = int(true_sizes(table).min())
    rule, _ = calibrate(_logits(score, validation), bought(validation), least)
    return lambda frame, sizes: _pick(_logits(score, frame), frame, sizes, rule, least)


def _pick(logits: torch.Tensor, frame: Frame, sizes: np.ndarray | None, rule: SizeRule, least: int) -> np.ndarray:
    sets = as_sets(np.zeros(len(frame)), frame)
    wanted = rule.sizes_from(least, logits, sets) if sizes is None else sizes
    return pick_top(logits, sets, wanted).values.numpy()


def _logits(score: Score, frame: Frame) -> torch.Tensor:
    return torch.from_numpy(np.array(score(frame), np.float64))
