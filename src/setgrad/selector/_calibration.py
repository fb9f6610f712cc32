"""What a model learns from the validation sets after training: how many items to choose, and when a draw ends."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
from torch import Tensor

from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._batched_inference import check_finite, infer_logits
from setgrad.selector._constrained_choice import choose_allowed
from setgrad.selector._data import TrainingData
from setgrad.selector._draws import fit_stop_logit
from setgrad.selector._examples import AbstractExamples
from setgrad.selector._model import ChoiceModel
from setgrad.selector._partial_validation import (
    CALIBRATION_GAINS,
    calibrate_choice_and_completion,
    calibrate_from_nothing,
    sets_to_calibrate,
    take_choices,
)
from setgrad.selector._recall import RecallCalibration
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.sizes import SizeRule, calibrate
from setgrad.sets import Choices, Layout, Sets, subset_sizes

# What calibration evaluates, in passes over its sets.
_PASSES = 4


@final
@dataclass(frozen=True, eq=False)
class Calibration:
    """What is learned from the validation sets; the fields are those of `FitResult`."""

    size_rule: SizeRule
    completion_rule: SizeRule
    size_scores: dict[str, float]
    min_size: int
    recall: RecallCalibration | None
    stop_logit: float
    start_weight: float = 0.0


def calibrate_model(
    model: ChoiceModel, train: AbstractExamples, held_out: Choices, data: TrainingData, seed: int, seconds: float | None
) -> Calibration:
    """Learn the rules from the validation sets.

    Args:
        model: The trained model.
        train: The training sets, on the device.
        held_out: The validation sets, on the device.
        data: The data of the fit.
        seed: Seed of random numbers.
        seconds: About how long it may take; None for no limit but that of `CALIBRATION_GAINS`.
    """
    options, started = model.config.options, time.monotonic()
    # In float64, as in prediction: a cut may lie between two scores that float32 confuses.
    exact = copy.deepcopy(model).eval().double()
    logits = infer_logits(exact, held_out.sets, samples=options.resolved_predict_samples, processes=data.processes)
    check_finite(logits, held_out.sets, data.validation_name)
    min_size = min(
        _smallest_size(train.sizes, train.layout), _smallest_size(subset_sizes(held_out.subsets), held_out.sets.layout)
    )
    recall = RecallCalibration.of(logits, held_out.subsets)
    if options.method != CONDITIONAL:
        limit = None if data.constraints is None else partial(_limit, data.constraints[1])
        rule, scores = calibrate(logits, held_out.subsets, min_size, limit)
        return Calibration(rule, rule, scores, min_size, recall, 0.0)
    if data.constraints is not None:
        limit = partial(_limit, data.constraints[1])
        rule, scores = calibrate_from_nothing(exact, held_out, logits, min_size, limit)
        # A constraint is for sets from which nothing is chosen yet.
        return Calibration(rule, rule, scores, min_size, recall, fit_stop_logit(exact, held_out, seed))
    gains = CALIBRATION_GAINS
    if seconds is not None:
        used = time.monotonic() - started
        gains = int(min(gains, (seconds - used) / _PASSES * held_out.sets.layout.total / max(used, 1e-6)))
    rows = sets_to_calibrate(held_out, gains, seed)
    some, some_logits = take_choices(held_out, rows), held_out.sets.with_values(logits).take(rows).values
    rule, scores, completion_rule, start_weight = calibrate_choice_and_completion(
        exact, some, some_logits, min_size, seed, data.processes
    )
    stop_logit = fit_stop_logit(exact, some, seed, data.processes)
    return Calibration(rule, completion_rule, scores, min_size, recall, stop_logit, start_weight)


def _limit(constraint: BatchConstraint, free: Sets, scores: Tensor, rule: SizeRule) -> Sets:
    return choose_allowed(constraint, free, scores=scores, free=free, cut=rule.level)


def _smallest_size(sizes: np.ndarray, layout: Layout) -> int:
    """Return the size of the smallest subset; sets without items do not count."""
    return int(sizes[layout.host_lengths > 0].min())
