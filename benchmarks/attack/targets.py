"""Every kind of file that setgrad reads, with its reader: it uses what was read, as a user would."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, feather, parquet
from torch import nn

import setgrad as sg
from benchmarks.attack.mutations import mutate_value
from benchmarks.attack.verdicts import digest
from setgrad._files import from_tensor_bytes, tensor_bytes, write_folder
from setgrad.encoders import UMBC, MaxPool, State
from setgrad.encoders._max_state import MaxState
from setgrad.report._curve import learning_curve
from setgrad.report._scores import size_rule_table
from setgrad.sets._read import read_columns

OPTIONS: dict[str, Any] = {
    "dim": 8, "layers": 1, "heads": 2, "hidden": (8,), "members": 1, "random_state": 0, "verbose": 0, "device": "cpu",
}  # fmt: skip
_DIM = 3


@final
@dataclass(frozen=True)
class Target:
    """One kind of file.

    Attributes:
        name: What is attacked.
        write: Writes it to an empty folder.
        read: Reads it and returns a digest of the result.
        has_checksum: Whether every change must be noticed.
        forge: Changes it on purpose, with checksums that agree; None where there are none.
    """

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], str]
    has_checksum: bool
    forge: Callable[[Path, random.Random], None] | None = None


def make_choices(count: int = 16, seed: int = 0) -> sg.Choices:
    """Return sets of numbers whose larger items were chosen."""
    values = torch.randn(count * 6, 2, generator=torch.Generator().manual_seed(seed))
    sets = sg.Sets.from_lengths(values, [6] * count)
    return sg.Choices(sets, sets.with_values(values[:, 0] > 0.5))


def fit(**options: Any) -> sg.SubsetSelector:
    """Return a small selector."""
    return sg.SubsetSelector(**{**OPTIONS, "max_epochs": 1, **options}).fit(make_choices())


def _write_model(folder: Path) -> None:
    fit().save(folder / "model")


def _read_model(folder: Path) -> str:
    selector, choices = sg.load(folder / "model", device="cpu"), make_choices(4, seed=1)
    result = digest(
        selector.predict_proba(choices.sets).values,
        selector.predict(choices.sets).values,
        selector.get_params(),
        (selector.table_, selector.history_, selector.best_epoch_, selector.size_scores_, selector.min_size_),
        selector.completion_rule_,
    )
    size_rule_table(selector)
    learning_curve(selector.history_, selector.best_epoch_, selector.validation_score_)
    return result


def _forge_model(folder: Path, draw: random.Random) -> None:
    model = folder / "model"
    config = mutate_value(json.loads((model / "config.json").read_bytes()), draw)
    weights = (model / "weights.safetensors").read_bytes()
    if draw.random() < 0.2:
        weights = tensor_bytes(_forge_tensors(from_tensor_bytes(weights)[0], draw))
    write_folder(model, {"config.json": json.dumps(config).encode(), "weights.safetensors": weights})


def _forge_tensors(tensors: dict[str, torch.Tensor], draw: random.Random) -> dict[str, torch.Tensor]:
    name = draw.choice(list(tensors))
    tensor, changed = tensors[name], dict(tensors)
    kind = draw.randrange(6)
    if kind == 0:
        del changed[name]
    elif kind == 1:
        changed[f"{name}x"] = changed.pop(name)
    elif kind == 2:
        changed[name] = tensor.reshape(-1)[: tensor.numel() // 2].clone()
    elif kind == 3:
        changed[name] = tensor.to(draw.choice((torch.float16, torch.int8, torch.bool, torch.float64, torch.uint8)))
    elif kind == 4:
        changed[name] = tensor[None].clone()
    else:
        changed[name] = torch.full_like(tensor, draw.choice((-1, 0, 1, 100)))
    return changed


def _write_checkpoint(folder: Path) -> None:
    fit(checkpoint=folder / "run.ckpt")


def _read_checkpoint(folder: Path) -> str:
    return digest(*fit(checkpoint=folder / "run.ckpt", max_epochs=2).model_.state_dict().values())


def _forge_checkpoint(folder: Path, draw: random.Random) -> None:
    path = folder / "run.ckpt"
    tensors, metadata = from_tensor_bytes(path.read_bytes())
    del metadata["format"], metadata["sha256"]
    if draw.random() < 0.5:
        tensors = _forge_tensors(tensors, draw)
    else:
        metadata["numbers"] = json.dumps(mutate_value(json.loads(metadata["numbers"]), draw))
    path.write_bytes(tensor_bytes(tensors, "setgrad.checkpoint", **metadata))


def _encoder(kind: str) -> UMBC | MaxPool:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return UMBC(_DIM, dim=8, slots=2).eval() if kind == "sums" else MaxPool(_DIM, nn.Linear(_DIM, 4)).eval()


def _chunk(seed: int) -> sg.Sets:
    return sg.Sets.from_list([torch.randn(5, _DIM, generator=torch.Generator().manual_seed(seed))])


def _state_target(kind: str) -> Target:
    def write(folder: Path) -> None:
        encoder: Any = _encoder(kind)
        encoder.update(encoder.begin(), _chunk(0)).detach().save(folder / "state")

    def read(folder: Path) -> str:
        encoder: Any = _encoder(kind)
        state = (State if kind == "sums" else MaxState).load(folder / "state")
        return digest(encoder.finish(encoder.update(state, _chunk(1))))

    def forge(folder: Path, draw: random.Random) -> None:
        path = folder / "state"
        tensors, metadata = from_tensor_bytes(path.read_bytes())
        form = metadata.pop("format")
        del metadata["sha256"]
        path.write_bytes(tensor_bytes(_forge_tensors(tensors, draw), form, **metadata))

    return Target(f"encoder state ({kind})", write, read, True, forge)


def _table() -> pa.Table:
    rows = 40
    numbers = np.random.default_rng(0).normal(size=(rows, 2))
    return pa.table(
        {
            "set": np.repeat([f"s{i}" for i in range(rows // 5)], 5),
            "item": [f"item {i}" for i in range(rows)],
            "chosen": np.arange(rows) % 3 == 0,
            "x": numbers[:, 0],
            "y": numbers[:, 1],
        }
    )


def _table_target(name: str, ending: str, write: Callable[[pa.Table, str], Any], *, has_checksum: bool) -> Target:
    def read(folder: Path) -> str:
        path = folder / f"t{ending}"
        choices = sg.read_table(path, set_id="set", item_id="item", chosen="chosen", features=["x", "y"])
        parts = choices.sets.values, choices.sets.lengths, choices.subsets.values
        return digest(*parts, choices.set_ids, choices.item_ids, read_columns(path, labels=["item"]))

    return Target(name, lambda folder: write(_table(), str(folder / f"t{ending}")), read, has_checksum)


TARGETS = (
    Target("model folder", _write_model, _read_model, True, _forge_model),
    Target("checkpoint", _write_checkpoint, _read_checkpoint, True, _forge_checkpoint),
    _state_target("sums"),
    _state_target("maximum"),
    _table_target("CSV", ".csv", csv.write_csv, has_checksum=False),
    _table_target(
        "Parquet, with checksums of pages",
        ".parquet",
        lambda table, path: parquet.write_table(table, path, write_page_checksum=True),
        has_checksum=False,
    ),
    _table_target("Parquet, without", ".parquet", parquet.write_table, has_checksum=False),
    _table_target(
        "Feather",
        ".feather",
        lambda table, path: feather.write_feather(table, path, compression="uncompressed"),
        has_checksum=False,
    ),
    _table_target("Feather, compressed", ".feather", feather.write_feather, has_checksum=False),
    _table_target(
        "JSON lines",
        ".jsonl",
        lambda table, path: Path(path).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist())),
        has_checksum=False,
    ),
)
