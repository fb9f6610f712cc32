"""From options and data to a fitted model: build, train, calibrate the sizes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from textwrap import shorten
from typing import final

import numpy as np
import torch
from torch import nn

from setgrad._progress import showing
from setgrad.columns._part import Part
from setgrad.errors import OptionError, parameter
from setgrad.selector._batched_inference import CONVERGED_SHARE
from setgrad.selector._beside_trees import all_sets_out_of_fold, drop_useless_training, start_pairs
from setgrad.selector._calibration import calibrate_model
from setgrad.selector._clock import CALIBRATION_SHARE, Clock
from setgrad.selector._data import TrainingData
from setgrad.selector._defaults import FEW_SETS, resolve_model, trains_apart, without_terms
from setgrad.selector._device import isolated_torch_rng, resolve_device, seed_torch
from setgrad.selector._examples import AbstractExamples
from setgrad.selector._fit_together import begin_together, check_together
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_config import resolved
from setgrad.selector._monitor import Callback, Monitor
from setgrad.selector._options import SelectorOptions
from setgrad.selector._origin import Origin
from setgrad.selector._prepared import grow_trees, prepare_sets
from setgrad.selector._recall import RecallCalibration
from setgrad.selector._separate_members import SeparateMembers
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector._trainer import Trainer
from setgrad.selector._training import Training
from setgrad.selector.sizes import SizeRule
from setgrad.sets import Choices, Sets


@final
@dataclass(frozen=True, eq=False)
class FitResult:
    """The result of a fit; the fields become the fitted attributes of `SubsetSelector`."""

    model: ChoiceModel
    size_rule: SizeRule
    completion_rule: SizeRule
    size_scores: dict[str, float]
    min_size: int
    recall: RecallCalibration | None
    stop_logit: float
    start_weight: float
    history: list[dict[str, float]]
    best_epoch: int
    validation_score: float
    stopped: bool = False
    origin: Origin | None = None


def fit_selector(
    options: SelectorOptions,
    data: TrainingData,
    seed: int,
    start: ChoiceModel | None,
    parts: tuple[Part, ...] | None = None,
    names: Sequence[str] | None = None,
    callback: Callback | None = None,
) -> FitResult:
    """Fit a model; see `SubsetSelector.fit`.

    Args:
        options: The options of the user.
        data: The training and the validation sets.
        seed: The seed.
        start: The model whose weights training starts from; None for new weights.
        parts: What the numbers of an item are, if they come from the columns of a table.
        names: The column of each number of an item, if they come from a table.
        callback: Is called with the record of every epoch.
    """
    device = resolve_device(options.device)
    train = data.train.to(device)
    held_out = Choices(data.validation.sets.to(device), data.validation.subsets.to(device))
    config = resolve_model(
        options,
        train,
        None if start is None else start.config,
        device=device,
        seed=seed,
        constrained=data.constraints is not None,
        parts=parts,
    )
    with torch.enable_grad(), ExitStack() as training:
        with ExitStack() as building:
            building.enter_context(isolated_torch_rng(device))
            seed_torch(seed, device)
            phi = copy_module(options.phi)
            model = ChoiceModel(config, phi).to(device)
            if phi is not None:
                _check_dtypes(model, held_out.sets)
                # The module may draw random numbers in training too.
                training.enter_context(building.pop_all())
        if data.processes.count > 1:
            check_together(model, train, data)
        models = [model]
        if start is None:
            other = without_terms(options, config, len(train), len(held_out), data.constraints is not None)
            if other is not None:
                with isolated_torch_rng(device):
                    seed_torch(seed, device)
                    models.append(ChoiceModel(other).to(device))
            (some,) = train.load(train.windows(seed)[:1])
            statistics = train.statistics(model.relative)
            for each in models:
                each.fit_scaler(statistics, some.choices.sets, names)
                if each.trees is not None:
                    each.start_as_trees()
                # A choice under a constraint has no useful gradient where all logits are equal.
                elif len(train) < FEW_SETS and data.constraints is None:
                    each.start_as_pairs()
        else:
            _load_weights(model, start)
        folds, before = None, None
        if model.trees is not None and start is None:
            # Sets that the user holds out, or weighs, are not learned from.
            both = data.validation_indices is not None and not train.is_weighted
            folds = grow_trees(model, train, held_out, learn_from_both=both, seed=seed)
        passed, passed_train = held_out, train
        train, held_out = prepare_sets(model, train, held_out, folds)
        if start is None and data.constraints is None and config.options.method == CONDITIONAL:
            # Tables of numbers are fitted as arrays are.
            if folds is not None or (bool(config.codes.any()) and len(train) < FEW_SETS):
                for each in models:
                    start_pairs(each, held_out, seed)
            before = None if folds is None else copy.deepcopy(model.state_dict())
        processes = data.processes
        monitor = Monitor(
            options.verbose,
            resolved(config.options.max_epochs),
            train.work * config.members * len(models),
            train.unit,
            callback if processes.is_first else None,
            processes.any,
        )
        trainer = _make_training(models, train, held_out, data, monitor)
        weights = None if start is None else start.state_dict()
        save = training.enter_context(begin_together(trainer, weights, passed, processes))
        with monitor.watching(len(trainer.history)):
            trainer.run(save)
    model = trainer.model
    _warn_unconverged(trainer.history)
    model.eval()
    best_epoch, score = trainer.best_epoch, trainer.history[trainer.best_epoch - 1]["validation_jaccard"]
    if folds is not None and before is not None:
        alone = drop_useless_training(model, before, held_out, seed)
        if alone is not None:
            best_epoch, score = 0, alone
            # Sets that trees did not learn from have scores of another kind.
            if folds.held_out is not None:
                held_out = all_sets_out_of_fold(model, passed_train, held_out, folds, seed)
    seconds = None if options.max_time is None else options.max_time * CALIBRATION_SHARE
    with showing("calibrating", options.verbose > 0):
        calibration = calibrate_model(model, train, held_out, data, seed, seconds)
    if monitor.is_interrupted:
        _warn_stopped(trainer)
    return FitResult(
        model,
        **vars(calibration),
        history=trainer.history,
        best_epoch=best_epoch,
        validation_score=score,
        stopped=monitor.is_stopped,
        origin=Origin.of(data),
    )


def _make_training(
    models: Sequence[ChoiceModel], train: AbstractExamples, held_out: Choices, data: TrainingData, monitor: Monitor
) -> Training:
    """Return the training run: of all members together, or of each by itself; of one model, or of two."""
    model = models[0]
    seed, limit = resolved(model.config.options.random_state), model.config.options.max_time
    # Under a constraint members share the state of the gradient.
    is_separate = data.constraints is None and (len(models) > 1 or trains_apart(model.config.options, train))
    shares = model.config.members * len(models) if is_separate else 1

    def make(model: ChoiceModel, seed: int) -> Trainer:
        return Trainer(
            model,
            train,
            held_out,
            data.constraints,
            data.validation_name,
            data.gradient,
            seed=seed,
            clock=Clock(limit, shares=shares),
            monitor=monitor,
            processes=data.processes,
        )

    return SeparateMembers(models, seed, make) if is_separate else make(model, seed)


def copy_module(phi: str | nn.Module | None) -> nn.Module | None:
    """Return a copy of a module on the CPU, in the dtype of the other weights; None for a name.

    With a copy, a second fit starts from the same weights as the first.
    """
    return copy.deepcopy(phi).cpu().to(torch.get_default_dtype()) if isinstance(phi, nn.Module) else None


def _check_dtypes(model: ChoiceModel, sets: Sets) -> None:
    """Check before training that the phi of the user runs in both dtypes."""
    first = int(np.flatnonzero(sets.layout.host_lengths)[0])
    one = sets[first : first + 1]
    for dtype in (model.dtype, torch.float64):
        try:
            with torch.no_grad():
                bound = copy.deepcopy(model).eval().to(dtype).bind(one)
                bound.value(torch.ones(1, one.layout.total, dtype=torch.bool, device=one.device))
        except (RuntimeError, TypeError) as error:
            raise OptionError(
                f"{parameter('phi')} must run in {model.dtype} and in float64, in which predictions are computed; let "
                f"forward keep the dtype of its input ({shorten(str(error).splitlines()[0], 200)})"
            ) from error


def _warn_unconverged(history: list[dict[str, float]]) -> None:
    share = history[-1].get("converged", 1.0) if history else 1.0
    if share < CONVERGED_SHARE:
        warnings.warn(
            f"inference converged on {share:.0%} of the training sets in the last epoch, and the others gave no "
            "gradient; raise steps, lower learning_rate, or use method='unrolled'",
            RuntimeWarning,
            stacklevel=5,
        )


def _warn_stopped(training: Training) -> None:
    warnings.warn(
        f"the fit was stopped in epoch {len(training.history)}: the model is the best one so far, of epoch "
        f"{training.best_epoch}, and more training may make it better",
        RuntimeWarning,
        stacklevel=5,
    )


def _load_weights(model: ChoiceModel, start: ChoiceModel) -> None:
    """Load the weights of another model, and the scale of the features that they were trained with."""
    names = ("method", "function", "dim", "layers", "heads", "relation", "pairs", "relative", "trees", "members")
    ours, theirs = (
        {name: getattr(config.options, name) for name in (*names, "standardize", "scale")}
        | {"item_shape": config.item_shape, "phi": config.phi, "slots": config.slots, "hidden": config.hidden}
        for config in (model.config, start.config)
    )
    differences = [
        f"{name} is {theirs[name]} there, {value} here" for name, value in ours.items() if theirs[name] != value
    ]
    if differences:
        raise OptionError(
            f"the selector in {parameter('start')} has another architecture: {'; '.join(differences)}; make them the "
            "same"
        )
    try:
        model.load_state_dict(start.state_dict())
    except RuntimeError as error:
        raise OptionError(
            f"the selector in {parameter('start')} has another architecture: give both the same phi "
            f"({shorten(str(error).splitlines()[-1], 200)})"
        ) from None
