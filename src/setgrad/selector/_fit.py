"""From options and data to a fitted model: choose what the options leave open, build, train, calibrate the sizes."""

from __future__ import annotations

import copy
import math
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from setgrad._progress import progress_bar
from setgrad.errors import OptionError, parameter
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector._batched_inference import CONVERGED_SHARE, check_finite, infer_logits
from setgrad.selector._checkpoint import read_checkpoint, resume_from_checkpoint
from setgrad.selector._constrained_choice import choose_allowed
from setgrad.selector._data import TrainingData
from setgrad.selector._device import isolated_torch_rng, resolve_device, seed_torch
from setgrad.selector._draws import fit_stop_logit
from setgrad.selector._model import ChoiceModel, ModelConfig, resolved
from setgrad.selector._options import SelectorOptions
from setgrad.selector._partial_validation import calibrate_completion, calibrate_from_nothing
from setgrad.selector._recall import RecallCalibration
from setgrad.selector._separate_members import SeparateMembers
from setgrad.selector._stacked_weights import STACKABLE_METHODS
from setgrad.selector._tables import CONDITIONAL, CONTEXT
from setgrad.selector._trainer import Trainer
from setgrad.selector._training import Training
from setgrad.selector.sizes import SizeRule, calibrate
from setgrad.sets import Choices, Sets, subset_sizes

# Sets larger than this get induced attention with attention="auto".
_FULL_ATTENTION_LIMIT = 1024
_SLOTS = 32
# If an epoch has few steps, the score stays the same for many epochs before it improves again.
_EPOCHS, _EPOCH_STEPS = 100, 400
_PATIENCE, _PATIENCE_STEPS = 10, 60
# Chosen by validation on four Amazon categories: 0.3 points above four members, which take hardly less time.
MEMBERS = 8
# With few training sets, comparing an item with the mean of its set helps attention; with many it hurts. By validation:
# on Amazon categories +0.5 on average with 160 to 290 training sets, -0.2 with 2,800 and more; on bundles, with 720 to
# 750, +1.4. The term for pairs alone is the better start with few sets (bundles given one item: +3), the worse one with
# 1,000 and more (digits: -1).
RELATION, _FEW_SETS = 64, 800
# Aligned images are compared pixel by pixel too, unless there are many sets: on faces (2,000 sets) that is worth 15
# points in validation; digits with 6,000 sets need no help.
_ALIGNED_IMAGES, _MANY_IMAGE_SETS = "pixel-cnn+context", 4000
# With few sets, smaller batches are better: by validation, over five splits of digits (1,000 sets) +1.3, on average of
# the small Amazon categories +0.3; with 1,450 sets (toys) -0.2. Other methods gain nothing.
_BATCH, _SMALL_BATCH, _SMALL_BATCH_SETS = 64, 32, 1200
# Encoders of plain vectors have short steps. Networks of images keep a GPU busy, and those of letters have buffers.
_SHORT_STEP_PHIS = ("context", "mlp", "paper")
# Largest number of steps of the implicit method, which stops when it has converged; rarely reached.
_MAX_STEPS = 50


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
            # A choice under a constraint has no useful gradient where all logits are equal.
            if len(train) < _FEW_SETS and data.constraints is None:
                model.start_as_pairs()
        else:
            _load_weights(model, start)
        trainer = _make_training(model, train, held_out, data)
        save = resume_from_checkpoint(trainer, None if start is None else start.state_dict())
        with progress_bar("fitting", trainer.max_epochs, enabled=options.verbose > 0) as update:

            def report(record: dict[str, float]) -> None:
                text = f"loss {record['loss']:.4f}  Jaccard {100 * record['validation_jaccard']:.2f}"
                update(int(record["epoch"]), text)

            trainer.run(report, save)
    _warn_unconverged(trainer.history)
    model.eval()
    # In float64, as in prediction: a cut may lie between two scores that float32 confuses.
    exact = copy.deepcopy(model).double()
    samples = config.options.resolved_predict_samples
    logits = check_finite(infer_logits(exact, held_out.sets, samples=samples), held_out.sets, data.validation_name)
    min_size = min(_smallest_size(train.subsets), _smallest_size(held_out.subsets))
    limit = None if data.constraints is None else partial(_limit, data.constraints[1])
    recall = RecallCalibration.of(logits, held_out.subsets)
    if config.options.method == CONDITIONAL:
        rule, scores = calibrate_from_nothing(exact, held_out, logits, min_size, limit)
        # A constraint is for sets from which nothing is chosen yet.
        completion_rule = rule if limit is not None else calibrate_completion(exact, held_out, min_size, seed)
        stop_logit = fit_stop_logit(exact, held_out, seed)
    else:
        rule, scores = calibrate(logits, held_out.subsets, min_size, limit)
        completion_rule, stop_logit = rule, 0.0
    return FitResult(
        model, rule, completion_rule, scores, min_size, recall, stop_logit, trainer.history, trainer.best_epoch
    )


def _make_training(model: ChoiceModel, train: Choices, held_out: Choices, data: TrainingData) -> Training:
    """Return the training run: of all members together, or of each by itself."""
    seed = resolved(model.config.options.random_state)

    def make(model: ChoiceModel, seed: int) -> Trainer:
        return Trainer(
            model, train, held_out, data.weights, data.constraints, data.validation_name, data.gradient, seed=seed
        )

    # Members that share batches and stop together err together, and with few sets a fit depends on chance most: on ten
    # folds of small Amazon categories (160 sets) those by themselves gain 1.4 +- 0.7 points in test. More sets were not
    # tried. Under a constraint members share the state of the gradient.
    is_separate = (
        model.config.options.method == CONDITIONAL
        and model.config.members > 1
        and len(train) < _FEW_SETS
        and data.constraints is None
    )
    return SeparateMembers(model, seed, make) if is_separate else make(model, seed)


def _limit(constraint: BatchConstraint, free: Sets, scores: Tensor, rule: SizeRule) -> Sets:
    return choose_allowed(constraint, free, scores=scores, free=free, cut=rule.level)


def resolve_model(
    options: SelectorOptions,
    sets: Sets,
    start: ModelConfig | None,
    *,
    device: torch.device,
    seed: int,
    constrained: bool,
) -> ModelConfig:
    """Return the configuration of the model that is fitted.

    Args:
        options: The options of the user.
        sets: The training sets, on the device.
        start: Configuration of the model whose weights training starts from.
        device: The device.
        seed: The seed.
        constrained: Whether training has a constraint.
    """
    is_large = sets.layout.longest > _FULL_ATTENTION_LIMIT
    is_induced = options.attention == "induced" or (options.attention == "auto" and is_large)
    batch_size = options.batch_size or default_batch_size(options, len(sets))
    steps_per_epoch = max(1, math.ceil(len(sets) / batch_size))
    in_use = replace(
        options,
        members=_members(options, sets, start, constrained),
        relation=_relation(options, start, len(sets)),
        pairs=_pairs(options, start, len(sets)),
        half=default_half(options, len(sets)) if options.half is None else bool(options.half),
        samples=options.resolved_samples,
        loss=options.resolved_loss,
        **_mean_field(options),
        batch_size=batch_size,
        max_epochs=options.max_epochs or max(_EPOCHS, math.ceil(_EPOCH_STEPS / steps_per_epoch)),
        patience=options.patience or max(_PATIENCE, math.ceil(_PATIENCE_STEPS / steps_per_epoch)),
        device=str(device),
        random_state=seed,
    )
    return ModelConfig(in_use, tuple(sets.item_shape), _SLOTS if is_induced else None)


def _mean_field(options: SelectorOptions) -> dict[str, Any]:
    """Return the options of mean field that are in use; none for the method without it."""
    if options.method == CONDITIONAL:
        return {}
    return {
        "estimator": options.resolved_estimator,
        "steps": options.steps or (_MAX_STEPS if options.method == "implicit" else 1),
        "predict_samples": options.resolved_predict_samples,
    }


def default_batch_size(options: SelectorOptions, count: int) -> int:
    """Return the sets of a batch for `batch_size=None` and this number of training sets."""
    return _SMALL_BATCH if options.method == CONDITIONAL and count < _SMALL_BATCH_SETS else _BATCH


def default_members(options: SelectorOptions, sets: Sets) -> int:
    """Return the number of members for `members=None`: several where one step trains all of them."""
    is_short = options.method in STACKABLE_METHODS and options.phi in _SHORT_STEP_PHIS
    is_small = sets.layout.longest <= _FULL_ATTENTION_LIMIT
    return MEMBERS if is_short and is_small and sets.device.type == "cuda" else 1


def default_relation(options: SelectorOptions, count: int) -> int:
    """Return the rank for `relation=None` and this number of training sets."""
    if options.method == "direct" or options.function != "deepset":
        return 0
    if options.method == CONDITIONAL:
        return RELATION if _compares_features(options, count) else 0
    return RELATION if options.phi == CONTEXT and count < _FEW_SETS else 0


def default_pairs(options: SelectorOptions, count: int) -> bool:
    """Return whether F has a term for pairs with `pairs=None` and this number of training sets."""
    return options.method == CONDITIONAL and _compares_features(options, count)


def _compares_features(options: SelectorOptions, count: int) -> bool:
    return options.phi == CONTEXT or (options.phi == _ALIGNED_IMAGES and count < _MANY_IMAGE_SETS)


def default_half(options: SelectorOptions, count: int) -> bool:
    """Return whether `half=None` trains at a random half of V, for this number of training sets."""
    return options.method == CONDITIONAL and options.resolved_samples >= 3 and count < _FEW_SETS


def _members(options: SelectorOptions, sets: Sets, start: ModelConfig | None, constrained: bool) -> int:
    # A run that is continued keeps its members, even on another device.
    if options.members is not None:
        return int(options.members)
    if start is not None:
        return start.members
    if options.checkpoint is not None and Path(options.checkpoint).exists():
        return int(read_checkpoint(Path(options.checkpoint))[1].get("members", 1))
    return 1 if constrained else default_members(options, sets)


def _relation(options: SelectorOptions, start: ModelConfig | None, count: int) -> int:
    if options.relation is not None:
        return int(options.relation)
    return default_relation(options, count) if start is None else start.relation


def _pairs(options: SelectorOptions, start: ModelConfig | None, count: int) -> bool:
    if options.pairs is not None:
        return bool(options.pairs)
    return default_pairs(options, count) if start is None else start.pairs


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
    names = ("method", "function", "dim", "layers", "heads", "relation", "pairs", "members", "standardize", "scale")
    ours, theirs = (
        {name: getattr(config.options, name) for name in names}
        | {"item_shape": config.item_shape, "phi": config.phi, "slots": config.slots, "hidden": config.options.hidden}
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
