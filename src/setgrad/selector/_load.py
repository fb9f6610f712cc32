"""Loading a selector from the folder that it was saved to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from setgrad.errors import FileFormatError, parameter
from setgrad.selector._device import isolated_torch_rng, resolve_device
from setgrad.selector._fit import FitResult, copy_module
from setgrad.selector._model import ChoiceModel, ModelConfig
from setgrad.selector._model_files import read_model
from setgrad.selector._options import SelectorOptions
from setgrad.selector._recall import RecallCalibration
from setgrad.selector._table_schema import TableSchema
from setgrad.selector.selector import SubsetSelector
from setgrad.selector.sizes import rule_from_json

# What reports read from the record of an epoch.
_RECORD = {"epoch", "loss", "validation_jaccard"}


def load(
    folder: str | Path, *, phi: nn.Module | None = None, device: str | torch.device | None = None
) -> SubsetSelector:
    """Load a selector that `SubsetSelector.save` or `setgrad fit` wrote.

    Args:
        folder: The folder of the model.
        phi: The module that the selector was fitted with as `phi`, if it was a module: only its weights are saved.
        device: "cpu", "cuda" or "cuda:1"; None for a GPU if there is one.

    Returns:
        The fitted selector.

    Raises:
        FileFormatError: If the folder is not a model or is damaged, or `phi` does not fit.
        OptionError: If there is no such device.

    Examples:
        >>> load("nowhere")
        Traceback (most recent call last):
        setgrad.errors.FileFormatError: nowhere is not a folder; give the folder that save() or `setgrad fit -o` wrote
    """
    tensors, config = read_model(folder)
    place = resolve_device(device)
    try:
        _check_phi(config["options_in_use"]["phi"], phi, folder)
        selector = SubsetSelector.from_options(_options(config["options"], phi, device))
        # Models of earlier versions had no term for pairs, and no features relative to the set.
        in_use = _options({"pairs": False, "relative": False, **config["options_in_use"]}, phi, str(place))
        schema = None
        if config["table"] is not None:
            schema = TableSchema.from_json(config["table"], f"the table in {folder}")
        parts = None if schema is None or schema.columns is None else schema.columns.parts
        model_config = ModelConfig(in_use, tuple(config["item_shape"]), config["slots"], parts)
        _check_records(config)
        recall = RecallCalibration.pop(tensors)
        model = _build_model(model_config, tensors, phi).to(place).eval()
        fitted = FitResult(
            model,
            rule_from_json(config["size_rule"]),
            # Models of earlier versions had one rule.
            rule_from_json(config.get("completion_rule", config["size_rule"])),
            config["size_scores"],
            config["min_size"],
            recall,
            # Models of earlier versions draw nothing item by item.
            float(config.get("stop_logit", 0.0)),
            config["history"],
            config["best_epoch"],
        )
        selector._set_fitted(fitted)
        selector.table_ = schema
    except FileFormatError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        remedy = "save it again" if phi is None else "pass the phi that it was fitted with, or save it again"
        raise FileFormatError(f"the parts of the model in {folder} do not fit together ({error}); {remedy}") from None
    return selector


def _options(values: dict[str, Any], phi: nn.Module | None, device: str | torch.device | None) -> SelectorOptions:
    return SelectorOptions(**{**values, "phi": values["phi"] if phi is None else phi, "device": device})


def _check_phi(name: str | None, phi: nn.Module | None, folder: str | Path) -> None:
    if name is None and not isinstance(phi, nn.Module):
        raise FileFormatError(
            f"{folder} was fitted with a module as phi; pass the module: load(folder, {parameter('phi')}=...)"
        )
    if name is not None and phi is not None:
        raise FileFormatError(f"{folder} was fitted with phi={name!r}, not {phi!r:.80}; leave out {parameter('phi')}")


def _build_model(config: ModelConfig, tensors: dict[str, Tensor], phi: nn.Module | None) -> ChoiceModel:
    if config.members > len(tensors):
        raise ValueError(f"there are {config.members} members and {len(tensors)} tensors")
    if phi is None:
        # Without memory for the weights, because those of a damaged configuration may not fit into it.
        with torch.device("meta"):
            model = ChoiceModel(config)
        expected = model.state_dict()
        for name in expected.keys() & tensors.keys():
            if expected[name].shape != tensors[name].shape:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(expected[name].shape)}")
        model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
        if not any(buffer.is_meta for buffer in model.buffers()):
            return model
    # A module of the user, or buffers that are not saved: the constructor computes what the file does not hold.
    with isolated_torch_rng():
        model = ChoiceModel(config, copy_module(phi))
    model.load_state_dict(tensors)
    return model


def _check_records(config: dict[str, Any]) -> None:
    """Check values that would cause an error only later, in prediction or in a report."""
    min_size, history, scores = config["min_size"], config["history"], config["size_scores"]
    if not isinstance(min_size, int) or isinstance(min_size, bool) or not 0 <= min_size < 2**31:
        raise ValueError(f"min_size is {min_size!r}")
    is_list = isinstance(history, list) and all(isinstance(row, dict) and row.keys() >= _RECORD for row in history)
    if not is_list or not history:
        raise ValueError("history is not a list of epochs")
    if not isinstance(scores, dict) or not all(isinstance(score, (int, float)) for score in scores.values()):
        raise ValueError("size_scores are not numbers")
