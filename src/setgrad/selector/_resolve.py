"""The values that stand for None in the options, chosen from the data and the device."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from setgrad.selector._checkpoint import read_checkpoint
from setgrad.selector._config import ModelConfig
from setgrad.selector._options import SelectorOptions
from setgrad.selector._stacked_weights import STACKABLE_METHODS
from setgrad.selector._tables import CONTEXT
from setgrad.sets import Sets

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
# 750, +1.4.
RELATION, _FEW_SETS = 64, 800
# Encoders of plain vectors have short steps. Networks of images keep a GPU busy, and those of letters have buffers.
_SHORT_STEP_PHIS = ("context", "mlp", "paper")
# Largest number of steps of the implicit method, which stops when it has converged; rarely reached.
_MAX_STEPS = 50


def resolve_seed(options: SelectorOptions) -> int:
    """Return the seed, drawn from the operating system for `random_state=None`."""
    seed = np.random.SeedSequence().generate_state(1)[0] if options.random_state is None else options.random_state
    return int(seed)


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
    steps_per_epoch = max(1, math.ceil(len(sets) / options.batch_size))
    in_use = replace(
        options,
        members=_members(options, sets, start, constrained),
        relation=_relation(options, start, len(sets)),
        estimator=options.resolved_estimator,
        steps=options.steps or (_MAX_STEPS if options.method == "implicit" else 1),
        predict_samples=options.resolved_predict_samples,
        max_epochs=options.max_epochs or max(_EPOCHS, math.ceil(_EPOCH_STEPS / steps_per_epoch)),
        patience=options.patience or max(_PATIENCE, math.ceil(_PATIENCE_STEPS / steps_per_epoch)),
        device=str(device),
        random_state=seed,
    )
    return ModelConfig(in_use, tuple(sets.item_shape), _SLOTS if is_induced else None)


def default_members(options: SelectorOptions, sets: Sets) -> int:
    """Return the number of members for `members=None`: several where one step trains all of them."""
    is_short = options.method in STACKABLE_METHODS and options.phi in _SHORT_STEP_PHIS
    is_small = sets.layout.longest <= _FULL_ATTENTION_LIMIT
    return MEMBERS if is_short and is_small and sets.device.type == "cuda" else 1


def default_relation(options: SelectorOptions, count: int) -> int:
    """Return the rank for `relation=None` and this number of training sets."""
    is_contextual = options.method != "direct" and options.function == "deepset" and options.phi == CONTEXT
    return RELATION if is_contextual and count < _FEW_SETS else 0


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
