"""Models of earlier format versions, converted to the current one in memory.

Version 2 (setgrad 0.1 before the names of options were revised) had the options under "params", the configuration of
the model under "model", and the columns of the table in a second file, `table.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from setgrad._files import from_json
from setgrad.errors import FileFormatError
from setgrad.functions._neural import relation_unit
from setgrad.selector._table_schema import TableSchema

TABLE_FILE = "table.json"
# Old names of options and of encoders.
_OPTIONS = {"width": "dim"}
_PHIS = {"picture": "pixel-cnn", "picture+context": "pixel-cnn+context"}
_HISTORY = {"settled": "converged"}
# What the configuration of the model had beside options.
_MODEL_ONLY = ("item_shape", "slots")


def migrate_version_2(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a `config.json` of version 2 as one of version 3.

    Args:
        config: The content.
        folder: The folder of the model, which may hold a `table.json`.

    Raises:
        FileFormatError: If `table.json` is damaged.
        LookupError: If an entry is missing.
    """
    # The first models of version 2 had no relation.
    options, model = _rename_options(config["params"]), _rename_options({"relation": 0, **config["model"]})
    in_use = {**options, **{name: value for name, value in model.items() if name not in _MODEL_ONLY}}
    in_use["predict_samples"] = in_use["predict_samples"] or 4 * in_use["samples"]
    history = config["history"]
    if isinstance(history, list):
        history = [_rename(record, _HISTORY) for record in history]
    kept = {name: value for name, value in config.items() if name not in ("params", "model")}
    return {
        **kept,
        "version": 3,
        "options": options,
        "options_in_use": in_use,
        **{name: model[name] for name in _MODEL_ONLY},
        "table": _read_table(folder / TABLE_FILE),
        "history": history,
    }


def migrate_weights_of_version_2(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of version 2 as those of version 3, in which a relation scales down many features."""
    return {
        name: tensor / relation_unit(tensor.shape[1]) if ".relation." in name else tensor
        for name, tensor in tensors.items()
    }


def _rename(entries: Any, names: dict[str, str]) -> Any:
    return {names.get(name, name): value for name, value in entries.items()} if isinstance(entries, dict) else entries


def _rename_options(options: dict[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = _rename(options, _OPTIONS)
    return {**renamed, "phi": _PHIS.get(renamed["phi"], renamed["phi"])}


def _read_table(path: Path) -> dict[str, Any] | None:
    """Return the content of `table.json` without its header; None if there is no such file."""
    if not path.is_file():
        return None
    remedy = "delete it, and name the columns by options of the command line"
    try:
        content = from_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise FileFormatError(f"{path} is damaged ({error}); {remedy}") from None
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != ("setgrad.table", 1):
        raise FileFormatError(f"{path} was not written by this setgrad; {remedy}")
    try:
        return TableSchema.from_json(content, str(path)).to_json()
    except FileFormatError as error:
        raise error.with_context(after=f"; {remedy}") from None
