"""From options and data to a fitted model: check, split, build, train, calibrate the sizes."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from setgrad._progress import progress_bar
from setgrad.discrete import CombinatorialSolver
from setgrad.errors import DataError, FileFormatError, OptionError, ShapeError
from setgrad.selector._allowed import allowed_parts, sample_choices
from setgrad.selector._check import check_options
from setgrad.selector._files import fingerprint, read_checkpoint, write_checkpoint
from setgrad.selector._infer import SETTLED, finite_logits, infer_logits
from setgrad.selector._member import CONTEXT, ModelConfig, make_solver
from setgrad.selector._model import ChoiceModel
from setgrad.selector._rows import PLAIN_METHODS
from setgrad.selector._train import (
    Trainer,
    TrainOptions,
    restore_trainer,
    seed_torch,
    torch_draws,
    trainer_state,
)
from setgrad.selector.constraints import Constraint
from setgrad.selector.sizes import SizeRule, calibrate
from setgrad.sets import Choices, Sets, subset_sizes
from setgrad.sets._arrays import as_tensor

# Sets larger than this get induced attention when attention="auto".
_FULL_ATTENTION_LIMIT = 1024
_SLOTS = 32
_WARMUP_STEPS = 50
# Where an epoch is a few steps, scores rest for many epochs before they rise again.
_EPOCHS, _EPOCH_STEPS = 100, 400
_PATIENCE, _PATIENCE_STEPS = 10, 60
# Chosen by validation on four Amazon categories: 0.3 points above four, which take hardly less time.
MEMBERS = 8
# Where attention has few sets to learn from, comparing an item with the mean of its set helps; with many it is in the
# way. By validation: on Amazon categories +0.5 on average with 160 to 290 training sets, -0.2 with 2,800 and more; on
# bundles, with 720 to 750, +1.4.
RELATION, _FEW_SETS = 64, 800
# What phis of plain vectors do is short. Networks of images keep a GPU busy, and those of letters have buffers.
_SHORT_STEPS = ("context", "mlp", "paper")
# Where inference goes on until it settles: rarely reached.
_MAX_STEPS = 50


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """What fitting leaves behind."""

    model: ChoiceModel
    size_rule: SizeRule
    size_scores: dict[str, float]
    min_size: int
    history: list[dict[str, float]]
    best_epoch: int


# A fit needs gradients, whatever the caller's mode is.
@torch.inference_mode(mode=False)
def fit_selector(
    options: dict[str, Any],
    sets: Any,
    subsets: Any,
    validation: Any,
    sample_weight: Any,
    start: ChoiceModel | None = None,
    constraint: Constraint | CombinatorialSolver | None = None,
) -> Fitted:
    """Do all that `SubsetSelector.fit` promises."""
    check_options(options)
    choices = _apart(Choices.of(sets, subsets))
    if constraint is not None and options["loss"] != "all":
        raise OptionError(
            f"a constraint brings its own loss, which reads all items; leave out loss={options['loss']!r}"
        )
    weights = _item_weights(sample_weight, choices)
    given = options["random_state"]
    seed = int(np.random.SeedSequence().generate_state(1)[0] if given is None else given)
    validation, own = _held_out(validation)
    train, held_out, weights, kept, held = _split(choices, validation, weights, options["validation_fraction"], seed)
    if weights is not None and not bool((weights > 0).any()):
        raise DataError(
            "all sets with a positive sample_weight were held out for validation, and none is left to learn from; "
            "pass validation=, give more sets a weight, or another random_state"
        )
    allowed = None if constraint is None else allowed_parts(constraint, own, choices, held_out, kept, held)
    if constraint is None and own is not None:
        raise OptionError("validation has a constraint, but the training sets have none; give fit constraint= too")
    device = resolve_device(options["device"])
    train, held_out = (Choices(c.sets.to(device), c.subsets.to(device)) for c in (train, held_out))
    config = _model_config(options, train, start, _members(options, train.sets, start, allowed is not None))
    make_solver(config)
    with torch.enable_grad(), ExitStack() as training:
        with ExitStack() as building:
            building.enter_context(torch_draws(device))
            seed_torch(seed, device)
            phi = own_phi(options["phi"])
            model = ChoiceModel(config, phi).to(device)
            if phi is not None:
                check_types(model, train.sets)
                # It may draw in training too.
                training.enter_context(building.pop_all())
        if start is None:
            model.learn_features(train.sets)
        else:
            _begin_with(model, start)
        steering = _train_options(options, seed, len(train))
        names = "validation set {}".format if held is None else lambda number: f"set {held[number]}"
        trainer = Trainer(model, train, held_out, weights, steering, allowed, names)
        save = _resume(trainer, options, start)
        with progress_bar("fitting", steering.max_epochs, enabled=options["verbose"] > 0) as update:
            progress = trainer.run(lambda record: update(int(record["epoch"]), _figures(record)), save)
    _warn_unsettled(progress.history)
    model.eval()
    logits = finite_logits(
        infer_logits(model, held_out.sets, samples=prediction_samples(options)), held_out.sets, names
    )
    smallest = min(_smallest(train.subsets), _smallest(held_out.subsets))
    rule, scores = calibrate(logits, held_out.subsets, smallest)
    return Fitted(model, rule, scores, smallest, progress.history, progress.best_epoch)


def _figures(record: dict[str, float]) -> str:
    return f"loss {record['loss']:.4f}  Jaccard {100 * record['validation_jaccard']:.2f}"


def own_phi(phi: str | nn.Module | None) -> nn.Module | None:
    """A copy of a user's module, in the type of the other weights; None for a name.

    Fitting again starts from the module as it was given, and the caller's stays as it is.
    """
    return copy.deepcopy(phi).cpu().to(torch.get_default_dtype()) if isinstance(phi, nn.Module) else None


def check_types(model: ChoiceModel, sets: Sets) -> None:
    """Refuse a phi of the user's own that does not run in both types, before the work and not after it."""
    first = int(np.flatnonzero(sets.layout.host_lengths)[0])
    one = sets[first : first + 1]
    for kind in (model.dtype, torch.float64):
        try:
            with torch.no_grad():
                bound = copy.deepcopy(model).eval().to(kind).bind(one)
                bound.value(torch.ones(1, one.layout.total, dtype=torch.bool, device=one.device))
        except (RuntimeError, TypeError) as error:
            raise OptionError(
                f"phi must run in {model.dtype}, and in float64, in which predictions are computed: let it take the "
                f"type of its items, and cast nothing inside of forward ({shorten(str(error).splitlines()[0], 200)})"
            ) from error


def _smallest(subsets: Sets) -> int:
    """The size of the smallest subset; sets without items say nothing."""
    return int(subset_sizes(subsets)[subsets.layout.host_lengths > 0].min())


def _warn_unsettled(history: list[dict[str, float]]) -> None:
    """Say that sets were left out of the learning because inference did not settle on them."""
    settled = history[-1]["settled"] if history else 1.0
    if settled < SETTLED:
        warnings.warn(
            f"inference settled on {settled:.0%} of the training sets in the last epoch, and the others taught "
            "nothing; raise steps, lower learning_rate, or use method='unrolled'",
            RuntimeWarning,
            stacklevel=4,
        )


def _members(options: dict[str, Any], sets: Sets, start: ChoiceModel | None, constrained: bool) -> int:
    """How many models learn; where nobody said, as many as there are to go on with, whatever the device."""
    if options["members"] is not None:
        return int(options["members"])
    if start is not None:
        return start.config.members
    path = options["checkpoint"]
    if path is not None and options["random_state"] is not None and Path(path).exists():
        return int(read_checkpoint(Path(path))[1].get("members", 1))
    return 1 if constrained else usual_members(options, sets)


def usual_members(options: dict[str, Any], sets: Sets) -> int:
    """Several where they learn together, in one step."""
    plain = options["method"] in PLAIN_METHODS and options["phi"] in _SHORT_STEPS
    small = sets.layout.longest <= _FULL_ATTENTION_LIMIT
    return MEMBERS if plain and small and sets.device.type == "cuda" else 1


def prediction_samples(options: dict[str, Any]) -> int:
    """Samples for prediction: as asked for, or four times those of training, for a steadier result."""
    return int(options["predict_samples"] or 4 * options["samples"])


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"unknown device {device!r}: {str(error).splitlines()[0]}") from None
    if found.type not in ("cpu", "cuda"):
        raise OptionError(f"setgrad runs on 'cpu' and 'cuda'; {device!r} was asked for, which lacks float64 or tests")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device='cuda' was asked for, but torch sees no GPU; use device='cpu'")
    return found


def _held_out(validation: Any) -> tuple[Choices | None, Any]:
    """The validation sets that a user gave, and their constraint if there is one."""
    if validation is None:
        return None, None
    try:
        held_sets, held_subsets, *own = validation
    except (TypeError, ValueError):
        own = [None, None]
    if len(own) > 1 or (own and not isinstance(own[0], Constraint | CombinatorialSolver)):
        raise ShapeError("validation must be a pair (sets, subsets), or (sets, subsets, constraint)")
    return _apart(Choices.of(held_sets, held_subsets)), own[0] if own else None


def _apart(choices: Choices) -> Choices:
    """Without the graph that items may come with: a selector trains itself, not the network that made them."""
    items = choices.sets.values.detach()
    # What inference mode made cannot be learned from, but a copy can.
    return Choices(choices.sets.with_values(items.clone() if items.is_inference() else items), choices.subsets)


def _split(
    choices: Choices, validation: Choices | None, weights: Tensor | None, fraction: float, seed: int
) -> tuple[Choices, Choices, Tensor | None, np.ndarray, np.ndarray | None]:
    """Training and validation sets, weights of the first, and which of the given sets they are, if they are."""
    if not choices.sets.layout.total:
        raise DataError("there is nothing to learn from: the training sets hold no items at all")
    if validation is not None:
        held_out = validation
        if not held_out.sets.layout.total:
            raise DataError("the validation sets hold no items at all")
        if held_out.sets.item_shape != choices.sets.item_shape:
            raise ShapeError(
                f"training items have shape {tuple(choices.sets.item_shape)}, "
                f"validation items {tuple(held_out.sets.item_shape)}"
            )
        return choices, held_out, weights, np.arange(len(choices)), None
    # Sets without items teach nothing and validate nothing: both parts need some of the others.
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(choices.sets.layout.host_lengths))
    if len(order) < 2:
        raise DataError(
            "fit needs at least 2 sets with items, one to learn from and one to validate on; or pass validation="
        )
    count = min(len(order) - 1, max(1, round(fraction * len(order))))
    held, kept = np.sort(order[:count]), np.sort(order[count:])
    if weights is not None:
        weights = choices.sets.with_values(weights).take(kept).values
    train, held_out = (Choices(choices.sets.take(part), choices.subsets.take(part)) for part in (kept, held))
    return train, held_out, weights, kept, held


def _item_weights(sample_weight: Any, choices: Choices) -> Tensor | None:
    if sample_weight is None:
        return None
    try:
        weights = sample_weight.values if isinstance(sample_weight, Sets) else as_tensor(sample_weight)
        weights = weights.detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"sample_weight must hold one number for each set or each item: {error}") from None
    layout = choices.sets.layout
    if weights.shape == (len(choices),):
        weights = torch.repeat_interleave(weights, torch.as_tensor(layout.host_lengths))
    elif weights.shape != (layout.total,):
        raise ShapeError(
            f"sample_weight has shape {tuple(weights.shape)}; give one number for each of the {len(choices)} sets "
            f"or for each of the {layout.total} items"
        )
    if not bool((weights.isfinite() & (weights >= 0)).all()) or not bool((weights > 0).any()):
        raise DataError("sample_weight must be finite, nowhere negative, and positive somewhere")
    # Only their ratios count: clipped gradients and tiny ones would make something of their size.
    weights = (weights / weights.max()).float()
    return (weights / weights.mean()).to(choices.sets.device)


def _model_config(options: dict[str, Any], train: Choices, start: ChoiceModel | None, members: int) -> ModelConfig:
    attention = options["attention"]
    large = train.sets.layout.longest > _FULL_ATTENTION_LIMIT
    induced = attention == "induced" or (attention == "auto" and large)
    implicit = options["method"] == "implicit"
    return ModelConfig(
        method=options["method"],
        function=options["function"],
        item_shape=tuple(train.sets.item_shape),
        phi=None if isinstance(options["phi"], nn.Module) else options["phi"],
        dim=options["dim"],
        layers=options["layers"],
        heads=options["heads"],
        slots=_SLOTS if induced else None,
        hidden=tuple(options["hidden"]),
        relation=_relation(options, start, len(train)),
        members=members,
        estimator=options["estimator"] or ("gaussian" if implicit else "bernoulli"),
        samples=options["samples"],
        steps=options["steps"] or (_MAX_STEPS if implicit else 1),
        scale=options["scale"],
        standardize=options["standardize"],
    )


def _relation(options: dict[str, Any], start: ChoiceModel | None, sets: int) -> int:
    """The rank asked for; else that of the model to begin with, or the usual one."""
    if options["relation"] is not None:
        return int(options["relation"])
    return usual_relation(options, sets) if start is None else start.config.relation


def usual_relation(options: dict[str, Any], sets: int) -> int:
    """One where F is a set function of items that look at each other, and few training sets teach them how."""
    plain = options["method"] != "direct" and options["function"] == "deepset" and options["phi"] == CONTEXT
    return RELATION if plain and sets < _FEW_SETS else 0


def _train_options(options: dict[str, Any], seed: int, sets: int) -> TrainOptions:
    names = ("loss", "learning_rate", "weight_decay", "batch_size", "clip", "average")
    steps = max(1, math.ceil(sets / options["batch_size"]))
    return TrainOptions(
        **{name: options[name] for name in names},
        max_epochs=options["max_epochs"] or max(_EPOCHS, math.ceil(_EPOCH_STEPS / steps)),
        patience=options["patience"] or max(_PATIENCE, math.ceil(_PATIENCE_STEPS / steps)),
        warmup=_WARMUP_STEPS,
        seed=seed,
    )


def _begin_with(model: ChoiceModel, start: ChoiceModel) -> None:
    """Take the weights of another model, and its scale of the features, on which the weights rest."""
    parts = ("method", "function", "item_shape", "phi", "dim", "layers", "heads", "slots", "hidden", "relation")
    made_of = (*parts, "members", "standardize", "scale")
    other = [name for name in made_of if getattr(model.config, name) != getattr(start.config, name)]
    if other:
        told = "; ".join(f"{n} is {getattr(start.config, n)} there, {getattr(model.config, n)} here" for n in other)
        raise OptionError(f"the selector to start from has other parts or sizes: {told}; make them the same")
    try:
        model.load_state_dict(start.state_dict())
    except RuntimeError as error:
        raise OptionError(
            "the selector to start from has other parts or sizes: give both the same phi "
            f"({shorten(str(error).splitlines()[-1], 200)})"
        ) from None


def _resume(trainer: Trainer, options: dict[str, Any], start: ChoiceModel | None) -> Callable[[Trainer], None] | None:
    if options["checkpoint"] is None:
        return None
    path = Path(options["checkpoint"])
    if options["random_state"] is None:
        raise OptionError("a checkpoint needs random_state, or the same run could not be told from another")
    # What may differ between two sittings of one run: where it runs, how long, and how much it says.
    free = ("checkpoint", "device", "verbose", "max_epochs", "patience", "phi")
    kept = {name: value for name, value in options.items() if name not in free}
    data, held = trainer.train_data, trainer.validation
    tensors = [t for c in (data, held) for t in (c.sets.values, c.subsets.values)]
    weights = [] if trainer.weights is None else [trainer.weights]
    # Flat, because a counter of a normalisation has no axis, and so no bytes to look at.
    weights += [] if start is None else [value.flatten() for value in start.state_dict().values()]
    lengths = [c.sets.layout.host_lengths.tolist() for c in (data, held)]
    # A phi of the user's own has no options to compare, but shapes.
    shapes = {name: list(value.shape) for name, value in trainer.model.state_dict().items()}
    parts = () if trainer.allowed is None else zip(trainer.allowed, (data.sets, held.sets), strict=True)
    rules = [sample_choices(allowed, sets) for allowed, sets in parts]
    mark = fingerprint(kept, trainer.model.config.to_json(), shapes, lengths, *tensors, *weights, *rules)
    if path.exists():
        stored, numbers = read_checkpoint(path)
        if numbers.get("fingerprint") != mark:
            raise FileFormatError(
                f"the checkpoint {path} belongs to other data or other options; delete it or name another file"
            )
        restore_trainer(trainer, stored, numbers)
        if trainer.progress.epoch > trainer.options.max_epochs:
            raise OptionError(
                f"the checkpoint {path} has gone through {trainer.progress.epoch} epochs, more than "
                f"max_epochs={trainer.options.max_epochs}; raise max_epochs, or name another file to start afresh"
            )

    def save(running: Trainer) -> None:
        stored, numbers = trainer_state(running)
        write_checkpoint(path, stored, {**numbers, "members": running.model.config.members, "fingerprint": mark})

    return save
