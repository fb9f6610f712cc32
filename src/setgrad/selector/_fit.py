"""From options and data to a fitted model: split, build, train, calibrate the sizes."""

from __future__ import annotations

import copy
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from textwrap import shorten
from typing import final

import numpy as np
import torch
from torch import nn

from setgrad._progress import progress_bar
from setgrad.errors import OptionError, parameter
from setgrad.selector._batched_inference import CONVERGED_SHARE, check_finite, infer_logits
from setgrad.selector._checkpoint import resume_from_checkpoint
from setgrad.selector._config import resolved
from setgrad.selector._data import TrainingData
from setgrad.selector._device import resolve_device
from setgrad.selector._model import ChoiceModel
from setgrad.selector._options import SelectorOptions
from setgrad.selector._random import isolated_torch_rng, seed_torch
from setgrad.selector._resolve import resolve_model
from setgrad.selector._trainer import Trainer
from setgrad.selector.sizes import SizeRule, calibrate
from setgrad.sets import Choices, Sets, subset_sizes


@final
@dataclass(frozen=True, eq=False)
class FitResult:
    """The result of a fit; the fields become the fitted attributes of `SubsetSelector`."""

    model: ChoiceModel
    size_rule: SizeRule
    size_scores: dict[str, float]
    min_size: int
    history: list[dict[str, float]]
    best_epoch: int


def fit_selector(options: SelectorOptions, data: TrainingData, seed: int, start: ChoiceModel | None) -> FitResult:
    """Fit a model; see `SubsetSelector.fit`."""
    device = resolve_device(options.device)
    train, held_out = (Choices(c.sets.to(device), c.subsets.to(device)) for c in (data.train, data.validation))
    config = resolve_model(
        options,
        train.sets,
        None if start is None else start.config,
        device=device,
        seed=seed,
        constrained=data.constraints is not None,
    )
    with torch.enable_grad(), ExitStack() as training:
        with ExitStack() as building:
            building.enter_context(isolated_torch_rng(device))
            seed_torch(seed, device)
            phi = copy_module(options.phi)
            model = ChoiceModel(config, phi).to(device)
            if phi is not None:
                _check_dtypes(model, train.sets)
                # The module may draw random numbers in training too.
                training.enter_context(building.pop_all())
        if start is None:
            model.fit_scaler(train.sets)
        else:
            _load_weights(model, start)
        trainer = Trainer(model, train, held_out, data.weights, data.constraints, data.validation_name)
        save = resume_from_checkpoint(trainer, None if start is None else start.state_dict())
        with progress_bar("fitting", trainer.max_epochs, enabled=options.verbose > 0) as update:
            progress = trainer.run(lambda record: update(int(record["epoch"]), _summary(record)), save)
    _warn_unconverged(progress.history)
    model.eval()
    samples = resolved(config.options.predict_samples)
    logits = check_finite(infer_logits(model, held_out.sets, samples=samples), held_out.sets, data.validation_name)
    min_size = min(_smallest_size(train.subsets), _smallest_size(held_out.subsets))
    rule, scores = calibrate(logits, held_out.subsets, min_size)
    return FitResult(model, rule, scores, min_size, progress.history, progress.best_epoch)


def _summary(record: dict[str, float]) -> str:
    return f"loss {record['loss']:.4f}  Jaccard {100 * record['validation_jaccard']:.2f}"


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


def _smallest_size(subsets: Sets) -> int:
    """Return the size of the smallest subset; sets without items do not count."""
    return int(subset_sizes(subsets)[subsets.layout.host_lengths > 0].min())


def _warn_unconverged(history: list[dict[str, float]]) -> None:
    share = history[-1]["converged"] if history else 1.0
    if share < CONVERGED_SHARE:
        warnings.warn(
            f"inference converged on {share:.0%} of the training sets in the last epoch, and the others gave no "
            "gradient; raise steps, lower learning_rate, or use method='unrolled'",
            RuntimeWarning,
            stacklevel=5,
        )


def _load_weights(model: ChoiceModel, start: ChoiceModel) -> None:
    """Load the weights of another model, and the scale of the features that they were trained with."""
    names = ("method", "function", "dim", "layers", "heads", "relation", "members", "standardize", "scale")
    ours, theirs = (
        {name: getattr(config.options, name) for name in names}
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
