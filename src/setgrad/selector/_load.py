"""Reading a selector back from the folder that it was saved to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from setgrad.errors import FileFormatError
from setgrad.selector import _files
from setgrad.selector._check import check_options
from setgrad.selector._fit import own_phi, resolve_device
from setgrad.selector._member import ModelConfig, make_solver
from setgrad.selector._model import ChoiceModel
from setgrad.selector._train import torch_draws
from setgrad.selector.selector import SubsetSelector
from setgrad.selector.sizes import rule_from_json

# What a report tells of an epoch.
_EPOCH = {"epoch", "loss", "validation_jaccard"}


def load(folder: str | Path, *, phi: nn.Module | None = None, device: str | None = None) -> SubsetSelector:
    """Read a selector that `save` wrote. A selector with a phi of your own needs that module again.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        setgrad.errors.FileFormatError: nowhere is not a folder; give the folder that save() or `setgrad fit -o` wrote
    """
    tensors, config = _files.read_model(folder)
    place = resolve_device(device)
    try:
        model_config = ModelConfig.from_json(config["model"])
        if model_config.phi is None and phi is None:
            raise FileFormatError(f"{folder} was fitted with a phi of your own; pass the module: load(folder, phi=...)")
        if phi is not None and (model_config.phi is not None or not isinstance(phi, nn.Module)):
            kept = "a module" if model_config.phi is None else repr(model_config.phi)
            raise FileFormatError(
                f"{folder} was fitted with {kept} as phi, not {phi!r:.80}; a name is kept: leave phi out"
            )
        params = {**config["params"], "hidden": tuple(config["params"]["hidden"]), "device": device}
        selector = SubsetSelector(**{**params, "phi": phi if model_config.phi is None else params["phi"]})
        _check(config, selector, model_config)
        _compare_shapes(tensors, model_config)
        # The weights are overwritten at once, so the random start must not advance the caller's generator.
        with torch_draws():
            model = ChoiceModel(model_config, own_phi(phi))
        model.load_state_dict(tensors)
        selector.model_ = model.to(place).eval()
        selector.size_rule_ = rule_from_json(config["size_rule"])
        selector.size_scores_, selector.min_size_ = config["size_scores"], config["min_size"]
        selector.history_, selector.best_epoch_ = config["history"], config["best_epoch"]
        selector.n_features_in_ = int(np.prod(model_config.item_shape))
        selector._exact_model = None
    except FileFormatError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        remedy = "save it again" if phi is None else "give it the phi that it was fitted with, or save it again"
        raise FileFormatError(f"the model in {folder} does not fit together ({error}); {remedy}") from None
    return selector


def _compare_shapes(tensors: dict[str, Tensor], model_config: ModelConfig) -> None:
    """Refuse weights of other sizes before a model is made, which may not fit into memory."""
    if model_config.members > len(tensors):
        raise ValueError(f"there are {model_config.members} members and {len(tensors)} tensors")
    if model_config.phi is None:
        return
    with torch.device("meta"):
        wanted = ChoiceModel(model_config).state_dict()
    for name in wanted.keys() & tensors.keys():
        if wanted[name].shape != tensors[name].shape:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(wanted[name].shape)}")


def _check(config: dict[str, Any], selector: SubsetSelector, model_config: ModelConfig) -> None:
    """Refuse words and numbers of a config that would show themselves as wrong only later, in prediction."""
    options = selector.get_params()
    check_options(options)
    # A model is described by some of the options, made definite.
    check_options({**options, **model_config.to_json(), "phi": options["phi"]})
    make_solver(model_config)
    smallest, rows, scores = config["min_size"], config["history"], config["size_scores"]
    if not isinstance(smallest, int) or isinstance(smallest, bool) or not 0 <= smallest < 2**31:
        raise ValueError(f"min_size is {smallest!r}")
    told = isinstance(rows, list) and all(isinstance(row, dict) and row.keys() >= _EPOCH for row in rows)
    if not told or not rows:
        raise ValueError("history is not a list of epochs")
    if not isinstance(scores, dict) or not all(isinstance(score, (int, float)) for score in scores.values()):
        raise ValueError("size_scores are not numbers")
