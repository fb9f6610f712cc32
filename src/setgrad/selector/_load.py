"""Loading a selector from the folder that it was saved to."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from setgrad.encoders import ContextItems, UMBCItems
from setgrad.errors import FileFormatError, parameter
from setgrad.selector._device import isolated_torch_rng, resolve_device
from setgrad.selector._fit import FitResult, copy_module
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_config import ModelConfig
from setgrad.selector._model_files import read_model
from setgrad.selector._options import SelectorOptions
from setgrad.selector._origin import Origin
from setgrad.selector._recall import RecallCalibration
from setgrad.selector._records import check_history, is_finite, is_number, validation_score
from setgrad.selector._start_weight import START_WEIGHTS
from setgrad.selector._table_schema import TableSchema
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.selector import SubsetSelector
from setgrad.selector.sizes import SIZE_RULES, rule_from_json

# Types of weights that a fit never gives: the precision of a result would change silently.
_HALF = (torch.float16, torch.bfloat16)
_USUAL_LAYERS, _USUAL_SIZE = 64, 4096


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
        _check_records(config)
        selector = SubsetSelector.from_options(_options(config["options"], phi, device))
        # Models of earlier versions had no term for pairs, no features relative to the set, and no trees.
        absent = {"pairs": False, "relative": False, "trees": False}
        in_use = _options({**absent, **config["options_in_use"]}, phi, str(place))
        _check_resolved(in_use)
        schema = None
        if config["table"] is not None:
            schema = TableSchema.from_json(config["table"], f"the table in {folder}")
        parts = None if schema is None or schema.columns is None else schema.columns.parts
        shape, is_function_used = _item_shape(config["item_shape"]), config["best_epoch"] > 0
        model_config = ModelConfig(in_use, shape, config["slots"], parts, is_function_used)
        recall = RecallCalibration.pop(tensors)
        # Models of earlier versions scaled all features by their standard deviation.
        tensors.setdefault("compressed", torch.zeros(model_config.item_shape, dtype=torch.bool))
        model = _build_model(model_config, tensors, phi).to(place).eval()
        if model.trees is not None and not model.trees.is_sound:
            raise ValueError("the trees ask for features that items do not have")
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
            # Models of earlier versions choose by F alone.
            float(config.get("start_weight", 0.0)),
            config["history"],
            config["best_epoch"],
            validation_score(config),
            # Models of earlier versions do not tell.
            origin=None if config.get("origin") is None else Origin.from_json(config["origin"]),
        )
        selector._set_fitted(fitted)
        selector.table_ = schema
    except FileFormatError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
        remedy = "save it again" if phi is None else "pass the phi that it was fitted with, or save it again"
        cause = shorten(str(error) or type(error).__name__, 500)
        raise FileFormatError(f"the parts of the model in {folder} do not fit together ({cause}); {remedy}") from None
    return selector


def _options(values: dict[str, Any], phi: nn.Module | None, device: str | torch.device | None) -> SelectorOptions:
    # A path that a file names would be written to by the next fit.
    own = {"phi": values["phi"] if phi is None else phi, "device": device, "checkpoint": None}
    return SelectorOptions(**{**values, **own})


def _check_resolved(options: SelectorOptions) -> None:
    """Raise a ValueError if an option that prediction reads was left open."""
    names = ["members", "relation", "pairs", "samples", "hidden", "trees"]
    names += [] if options.method in (CONDITIONAL, "direct") else ["steps", "estimator"]
    for name in names:
        if getattr(options, name) is None:
            raise ValueError(f"{name} has no value")


def _check_phi(name: str | None, phi: nn.Module | None, folder: str | Path) -> None:
    if name is None and not isinstance(phi, nn.Module):
        raise FileFormatError(
            f"{folder} was fitted with a module as phi; pass the module: load(folder, {parameter('phi')}=...)"
        )
    if name is not None and phi is not None:
        raise FileFormatError(f"{folder} was fitted with phi={name!r}, not {phi!r:.80}; leave out {parameter('phi')}")


def _build_model(config: ModelConfig, tensors: dict[str, Tensor], phi: nn.Module | None) -> ChoiceModel:
    _check_sizes(config, tensors)
    if phi is None:
        # Without memory for the weights, because those of a damaged configuration may not fit into it.
        with torch.device("meta"):
            model = ChoiceModel(config)
        _complete(model, tensors)
        model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
        if not any(buffer.is_meta for buffer in model.buffers()):
            return model
    # A module of the user, or buffers that are not saved: the constructor computes what the file does not hold.
    with isolated_torch_rng():
        model = ChoiceModel(config, copy_module(phi))
    _complete(model, tensors)
    model.load_state_dict(tensors)
    return model


def _complete(model: ChoiceModel, tensors: dict[str, Tensor]) -> None:
    """Add what earlier versions did not have, and check the shapes and types of the weights."""
    expected = model.state_dict()
    # In earlier versions only features of these two had a linear score. A score of 0 changes nothing.
    if not all(isinstance(member.function.phi, ContextItems | UMBCItems) for member in model.each()):
        for name, weight in expected.items():
            if ".function.skip." in name:
                tensors.setdefault(name, torch.zeros(weight.shape, dtype=weight.dtype))
    _check_weights(expected, tensors)


def _check_sizes(config: ModelConfig, tensors: dict[str, Tensor]) -> None:
    """Check the sizes of the configuration against the weights, before even a model without memory is built."""
    options = config.options
    hidden = options.hidden or ()
    tensor_count, weight_count = len(tensors), sum(tensor.numel() for tensor in tensors.values())
    # Some options have no effect on some models, and may have any usual value there.
    many, most = max(tensor_count, _USUAL_LAYERS), max(weight_count, _USUAL_SIZE)
    if config.members > tensor_count or options.layers > many or len(hidden) > many:
        raise ValueError(
            f"there are {config.members} members, {options.layers} layers, {len(hidden)} hidden layers and "
            f"{tensor_count} tensors"
        )
    largest = max(options.dim, config.relation, config.slots or 0, *hidden, *config.item_shape)
    if largest > most:
        raise ValueError(f"a size is {largest}, and there are {weight_count} weights")


def _check_weights(expected: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    for name in expected.keys() & tensors.keys():
        wanted, found = expected[name], tensors[name]
        if wanted.shape != found.shape:
            raise ValueError(f"{name} has shape {tuple(found.shape)}, not {tuple(wanted.shape)}")
        if wanted.is_floating_point() != found.is_floating_point() or found.dtype in _HALF:
            raise ValueError(f"{name} holds {found.dtype}, not {wanted.dtype}")


def _item_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"item_shape is {shape!r:.80}")
    return tuple(shape)


def _check_records(config: dict[str, Any]) -> None:
    """Check values that would cause an error only later, in prediction or in a report."""
    min_size, scores, slots = config["min_size"], config["size_scores"], config["slots"]
    if type(min_size) is not int or not 0 <= min_size < 2**31:
        raise ValueError(f"min_size is {min_size!r:.80}")
    if slots is not None and (type(slots) is not int or slots < 1):
        raise ValueError(f"slots is {slots!r:.80}")
    check_history(config["history"])
    best = config["best_epoch"]
    if type(best) is not int or not 0 <= best <= len(config["history"]):
        raise ValueError(f"best_epoch is {best!r:.80}, and history has {len(config['history'])} epochs")
    if best == 0 and not config["options_in_use"].get("trees"):
        raise ValueError("best_epoch is 0, and there are no trees")
    if not is_number(validation_score(config)):
        raise ValueError("validation_score is not a number")
    if (
        not isinstance(scores, dict)
        or not scores.keys() <= SIZE_RULES.keys()
        or not all(map(is_number, scores.values()))
    ):
        raise ValueError(f"size_scores are not numbers by name: {', '.join(SIZE_RULES)}")
    if not is_finite(config.get("stop_logit", 0.0)):
        raise ValueError("stop_logit is not a number")
    if config.get("start_weight", 0.0) not in START_WEIGHTS:
        raise ValueError(f"start_weight is not one of: {', '.join(map(str, START_WEIGHTS))}")
