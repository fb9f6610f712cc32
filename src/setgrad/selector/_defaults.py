"""What the options leave open, chosen from the data: sizes, batches, terms of F, patience."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from setgrad.columns._part import Part
from setgrad.errors import FileFormatError, OptionError, parameter
from setgrad.selector._checkpoint import read_checkpoint
from setgrad.selector._examples import AbstractExamples
from setgrad.selector._model_config import ModelConfig
from setgrad.selector._options import SelectorOptions
from setgrad.selector._stacked_weights import STACKABLE_METHODS
from setgrad.selector._tables import CONDITIONAL, CONTEXT, UMBC
from setgrad.sets import Sets

# Sets larger than this get induced attention with attention="auto".
_FULL_ATTENTION_LIMIT = 1024
_SLOTS = 32
# If an epoch has few steps, the score stays the same for many epochs before it improves again.
_EPOCHS, _EPOCH_STEPS = 100, 400
_PATIENCE, _PATIENCE_STEPS = 10, 60
# Networks of letters stand still until about epoch 15, and still improve at epoch 100 (compounds of Davis).
_LETTERS, _LETTER_EPOCHS, _LETTER_PATIENCE = ("pair", "pair+context"), 200, 20
# With many steps in an epoch the conditional method needs less patience, on vectors; on compounds it stopped too early.
_LEAST_PATIENCE, _MANY_STEPS = 5, 200
# Chosen by validation on four Amazon categories: 0.3 points above four members, which take hardly less time.
MEMBERS = 8
# With few training sets, comparing an item with the mean of its set helps attention; with many it hurts. By validation:
# on Amazon categories +0.5 on average with 160 to 290 training sets, -0.2 with 2,800 and more; on bundles, with 720 to
# 750, +1.4. The term for pairs alone is the better start with few sets (bundles given one item: +3), the worse one with
# 1,000 and more (digits: -1).
RELATION, FEW_SETS = 64, 800
# With few sets, and where the other items come by chance, these two terms learn sets by heart: on small Amazon
# categories with random other products they cost five points, and with the farthest ones they gain one. So many
# validation sets tell which is so.
_ENOUGH_TO_TELL = 30
# Aligned images are compared pixel by pixel too, unless there are many sets: on faces (2,000 sets) that is worth 15
# points in validation; digits with 6,000 sets need no help.
_ALIGNED_IMAGES, _MANY_IMAGE_SETS = "pixel-cnn+context", 4000
# With few sets, smaller batches are better: by validation, over five splits of digits (1,000 sets) +1.3, on average of
# the small Amazon categories +0.3; with 1,450 sets (toys) -0.2. Other methods gain nothing.
_BATCH, _SMALL_BATCH, _SMALL_BATCH_SETS = 64, 32, 1200
# A CPU takes small batches as fast as large ones, and needs fewer epochs with them.
_SMALL_BATCH_SETS_ON_CPU = 10000
# Items of a batch of sets that are read in chunks.
_MOST_ITEMS = 2**16
# Subsets of a step on a CPU, where each costs about as much as the encoder does: with many sets and few features fewer
# are enough, and larger steps. On 5,000 sets of 30 items with 20 features the score is better in a third of the time
# (test 65.5 for 63.3, one seed). On digits (1,000 sets) neither was; with the 384 features of an Amazon category both
# cost a point, and with the pixels of faces five (one to two splits each, by validation).
_FEW_SUBSETS, _MANY_SETS = 2, 2000
_RATE, _LARGE_RATE = 1e-3, 2e-3
# A subset of items with few features needs no wide perceptron: on 20 features the same score for half of the time; on
# the 64 of digits it costs half a point.
_HIDDEN, _NARROW, _FEW_FEATURES = (512, 256), (256, 128), 32
# More numbers than the vectors of language models have, such as pixels: no term for pairs, and more subsets. By
# validation on five splits of faces 81.9 -> 84.5 with one member, 85.0 -> 86.4 with eight.
_MANY_FEATURES, _MORE_SUBSETS = 4096, 8
# Encoders of plain vectors have short steps. Networks of images keep a GPU busy, and those of letters have buffers.
_SHORT_STEP_PHIS = ("context", "mlp", "paper")
# Largest number of steps of the implicit method, which stops when it has converged; rarely reached.
_MAX_STEPS = 50


def resolve_model(
    options: SelectorOptions,
    sets: Sets | AbstractExamples,
    start: ModelConfig | None,
    *,
    device: torch.device,
    seed: int,
    constrained: bool,
    parts: tuple[Part, ...] | None = None,
) -> ModelConfig:
    """Return the configuration of the model that is fitted.

    Args:
        options: The options of the user.
        sets: The training sets, on the device.
        start: Configuration of the model whose weights training starts from.
        device: The device.
        seed: The seed.
        constrained: Whether training has a constraint.
        parts: What the numbers of an item are; None for quantities.
    """
    is_large = sets.layout.longest > _FULL_ATTENTION_LIMIT
    is_induced = options.attention == "induced" or (options.attention == "auto" and is_large)
    batch_size = options.batch_size or default_batch_size(options, sets)
    steps_per_epoch = max(1, math.ceil(len(sets) / batch_size))
    in_use = replace(
        options,
        members=_members(options, sets, start, constrained),
        relation=_relation(options, start, len(sets)),
        pairs=_pairs(options, start, sets),
        relative=_is_relative(options, start, sets, parts),
        trees=_has_trees(options, start, sets, parts, constrained),
        half=default_half(options, len(sets)) if options.half is None else bool(options.half),
        samples=options.samples or default_samples(options, sets),
        learning_rate=options.learning_rate or default_learning_rate(options, sets),
        hidden=options.hidden or (default_hidden(options, sets) if start is None else start.options.hidden),
        loss=options.resolved_loss,
        **_mean_field(options),
        batch_size=batch_size,
        max_epochs=options.max_epochs or default_epochs(options, steps_per_epoch),
        patience=options.patience or default_patience(options, steps_per_epoch),
        device=str(device),
        random_state=seed,
    )
    return ModelConfig(in_use, tuple(sets.item_shape), _SLOTS if is_induced else None, parts)


def _mean_field(options: SelectorOptions) -> dict[str, Any]:
    """Return the options of mean field that are in use; none for the method without it."""
    if options.method == CONDITIONAL:
        return {}
    return {
        "estimator": options.resolved_estimator,
        "steps": options.steps or (_MAX_STEPS if options.method == "implicit" else 1),
        "predict_samples": options.resolved_predict_samples,
    }


def default_batch_size(options: SelectorOptions, sets: Sets | AbstractExamples) -> int:
    """Return the sets of a batch for `batch_size=None`."""
    if options.phi == UMBC and sets.layout.longest > options.chunk_size:
        # A set is read in chunks by itself, or the features of a batch are held in memory.
        return 1 if options.method == CONDITIONAL else max(1, min(_BATCH, _MOST_ITEMS // sets.layout.longest))
    limit = _SMALL_BATCH_SETS_ON_CPU if sets.device.type == "cpu" else _SMALL_BATCH_SETS
    return _SMALL_BATCH if options.method == CONDITIONAL and len(sets) < limit else _BATCH


def default_samples(options: SelectorOptions, sets: Sets | AbstractExamples) -> int:
    """Return the subsets of a step for `samples=None`."""
    if _has_many_features(options, sets):
        return _MORE_SUBSETS
    return _FEW_SUBSETS if _has_many_sets(options, sets) and not options.half else options.resolved_samples


def default_learning_rate(options: SelectorOptions, sets: Sets | AbstractExamples) -> float:
    """Return the learning rate for `learning_rate=None`."""
    return _LARGE_RATE if _has_many_sets(options, sets) else _RATE


def _has_many_sets(options: SelectorOptions, sets: Sets | AbstractExamples) -> bool:
    is_on_cpu = sets.device.type == "cpu"
    return _has_few_features(options, sets) and is_on_cpu and len(sets) >= _MANY_SETS


def _has_few_features(options: SelectorOptions, sets: Sets | AbstractExamples) -> bool:
    is_conditional = options.method == CONDITIONAL and options.phi in (CONTEXT, UMBC)
    return is_conditional and math.prod(sets.item_shape) < _FEW_FEATURES


def _has_many_features(options: SelectorOptions, sets: Sets | AbstractExamples) -> bool:
    is_conditional = options.method == CONDITIONAL and options.phi == CONTEXT
    return is_conditional and math.prod(sets.item_shape) >= _MANY_FEATURES


def default_hidden(options: SelectorOptions, sets: Sets | AbstractExamples) -> tuple[int, ...]:
    """Return the units of the hidden layers for `hidden=None`."""
    return _NARROW if _has_few_features(options, sets) else _HIDDEN


def default_epochs(options: SelectorOptions, steps: int) -> int:
    """Return the largest number of epochs for `max_epochs=None` and this number of steps in an epoch."""
    return max(_LETTER_EPOCHS if _reads_letters(options) else _EPOCHS, math.ceil(_EPOCH_STEPS / steps))


def _reads_letters(options: SelectorOptions) -> bool:
    return options.method == CONDITIONAL and options.phi in _LETTERS


def default_patience(options: SelectorOptions, steps: int) -> int:
    """Return the patience for `patience=None` and this number of steps in an epoch."""
    usual = _LETTER_PATIENCE if _reads_letters(options) else _PATIENCE
    if options.method == CONDITIONAL and options.phi in (CONTEXT, UMBC):
        usual = min(usual, max(_LEAST_PATIENCE, math.ceil(_MANY_STEPS / steps)))
    return max(usual, math.ceil(_PATIENCE_STEPS / steps))


def default_members(options: SelectorOptions, sets: Sets | AbstractExamples) -> int:
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
    return RELATION if options.phi == CONTEXT and count < FEW_SETS else 0


def without_terms(
    options: SelectorOptions, config: ModelConfig, trained: int, held_out: int, constrained: bool
) -> ModelConfig | None:
    """Return the configuration of a second model, without the relation and the term for pairs; None for no second one.

    It is trained too with `relation=None`, and the better one is kept. A term for pairs that the user asked for stays.

    Args:
        options: The options of the user.
        config: The configuration of the model.
        trained: Number of training sets.
        held_out: Number of validation sets.
        constrained: Whether training has a constraint.
    """
    is_open = options.relation is None and config.relation > 0 and options.method == CONDITIONAL
    is_known = config.phi != CONTEXT or config.trees or constrained
    if not is_open or is_known or trained >= FEW_SETS or held_out < _ENOUGH_TO_TELL:
        return None
    return config.with_options(relation=0, pairs=bool(options.pairs))


def trains_apart(options: SelectorOptions, sets: Sets | AbstractExamples) -> bool:
    """Return whether each of several members has its own batches and its own last epoch.

    Members that share them err together, and where a fit is best after few epochs it depends on chance most. On ten
    folds of small Amazon categories (160 sets) members by themselves gain 1.4 +- 0.7 points in test.

    Args:
        options: The options in use.
        sets: The training sets.
    """
    is_soon_best = len(sets) < FEW_SETS or _has_many_features(options, sets)
    return options.method == CONDITIONAL and (options.members or 1) > 1 and is_soon_best


def default_pairs(options: SelectorOptions, sets: Sets | AbstractExamples) -> bool:
    """Return whether F has a term for pairs with `pairs=None`."""
    is_compared = _compares_features(options, len(sets)) and not _has_many_features(options, sets)
    return options.method == CONDITIONAL and is_compared


def _compares_features(options: SelectorOptions, count: int) -> bool:
    return options.phi == CONTEXT or (options.phi == _ALIGNED_IMAGES and count < _MANY_IMAGE_SETS)


def default_half(options: SelectorOptions, count: int) -> bool:
    """Return whether `half=None` trains at a random half of V, for this number of training sets."""
    return options.method == CONDITIONAL and options.resolved_samples >= 3 and count < FEW_SETS


def _members(
    options: SelectorOptions, sets: Sets | AbstractExamples, start: ModelConfig | None, constrained: bool
) -> int:
    # A run that is continued keeps its members, even on another device.
    if options.members is not None:
        return int(options.members)
    if start is not None:
        return start.members
    found = None if options.checkpoint is None else read_checkpoint(Path(options.checkpoint))
    if found is not None:
        members = found.numbers.get("members")
        if not isinstance(members, int) or not 1 <= members <= len(found.tensors):
            raise FileFormatError(
                f"the checkpoint {options.checkpoint} has no whole number of members; delete it or name another file"
            )
        return members
    return 1 if constrained else default_members(options, sets)


def _relation(options: SelectorOptions, start: ModelConfig | None, count: int) -> int:
    if options.relation is not None:
        return int(options.relation)
    return default_relation(options, count) if start is None else start.relation


def _pairs(options: SelectorOptions, start: ModelConfig | None, sets: Sets | AbstractExamples) -> bool:
    if options.pairs is not None:
        return bool(options.pairs)
    return default_pairs(options, sets) if start is None else start.pairs


def _is_relative(
    options: SelectorOptions, start: ModelConfig | None, sets: Sets | AbstractExamples, parts: tuple[Part, ...] | None
) -> bool:
    if options.relative is not None:
        return bool(options.relative)
    if start is not None:
        return bool(start.options.relative)
    if options.method != CONDITIONAL or options.phi != CONTEXT:
        return False
    return parts is not None or (len(sets.item_shape) == 1 and Part.vector(sets.item_shape[0]).compared > 0)


def _has_trees(
    options: SelectorOptions,
    start: ModelConfig | None,
    sets: Sets | AbstractExamples,
    parts: tuple[Part, ...] | None,
    constrained: bool,
) -> bool:
    if options.trees and len(sets.item_shape) != 1:
        raise OptionError(f"{parameter('trees')} read vectors, and these items are not; leave it out")
    if options.trees is not None:
        return bool(options.trees)
    if start is not None:
        return start.trees
    if options.method != CONDITIONAL or options.phi != CONTEXT or constrained:
        return False
    # A table of plain numbers is fitted as the sets that are read from it. On such sets trees gain less: 1.4 points on
    # 200 sets of 30 items with 20 features, nothing on Moons.
    return any(part.codes or part.context for part in parts or ())
