"""What is fuzzed: how bytes become a file of each kind, and what reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pyarrow as pa

import setgrad as sg
from benchmarks.attack.targets import OPTIONS, TARGETS, Target, fit
from setgrad._files import from_tensor_bytes, tensor_bytes, write_folder

_CHECKPOINT = "setgrad.checkpoint"


@final
@dataclass(frozen=True)
class Input:
    """One kind of input.

    Attributes:
        prepare: Writes what the input needs into a folder; returns what reads one input.
        seeds: Yields valid inputs, after `prepare`.
        is_json: Whether values of JSON are changed too, not only bytes.
    """

    prepare: Callable[[Path], Callable[[bytes], object]]
    seeds: Callable[[Path], Iterator[bytes]]
    is_json: bool = False


def _mixed_table() -> pa.Table:
    rows = 24
    return pa.table(
        {
            "set": [f"s{i // 4}" for i in range(rows)],
            "chosen": [i % 4 == 1 for i in range(rows)],
            "price": [i * 0.5 for i in range(rows)],
            "brand": ["abc"[i % 3] for i in range(rows)],
            "new": [i % 2 == 0 for i in range(rows)],
            "day": [f"2024-01-{i + 1:02}" for i in range(rows)],
            "title": [f"red chair number {i} for the garden and the house" for i in range(rows)],
        }
    )


def _model_input(of_table: bool) -> Input:
    """Return the configuration of a model, or the columns of its table, with checksums that agree."""

    def prepare(place: Path) -> Callable[[bytes], object]:
        table = _mixed_table()
        if of_table:
            sg.SubsetSelector(**OPTIONS, max_epochs=1).fit(table, set_id="set", chosen="chosen").save(place / "model")
        else:
            fit().save(place / "model")
        weights = (place / "model" / "weights.safetensors").read_bytes()
        config = json.loads((place / "model" / "config.json").read_bytes())
        (place / "seed").write_text(json.dumps(config["table"] if of_table else config))
        read_model = next(target for target in TARGETS if target.name == "model folder").read

        def read(content: bytes) -> object:
            data = content
            if of_table:
                # Bytes between bytes: the schema need not be valid JSON.
                data = json.dumps({**config, "table": "HERE"}).encode().replace(b'"HERE"', content)
            write_folder(place / "model", {"config.json": data, "weights.safetensors": weights})
            return sg.load(place / "model", device="cpu").predict(table) if of_table else read_model(place)

        return read

    return Input(prepare, lambda place: iter([(place / "seed").read_bytes()]), is_json=True)


def _checkpoint_input() -> Input:
    target = next(target for target in TARGETS if target.name == "checkpoint")

    def prepare(place: Path) -> Callable[[bytes], object]:
        target.write(place)
        path = place / "run.ckpt"
        tensors, metadata = from_tensor_bytes(path.read_bytes())
        (place / "seed").write_text(metadata["numbers"])
        del metadata["format"], metadata["sha256"]

        def read(content: bytes) -> object:
            text = content.decode(errors="replace")
            # It would take the place of a damaged one.
            (place / "run.ckpt.previous").unlink(missing_ok=True)
            path.write_bytes(tensor_bytes(tensors, _CHECKPOINT, **{**metadata, "numbers": text}))
            return target.read(place)

        return read

    return Input(prepare, lambda place: iter([(place / "seed").read_bytes()]), is_json=True)


def _table_input(target: Target) -> Input:
    def prepare(place: Path) -> Callable[[bytes], object]:
        target.write(place)
        path = next(path for path in place.iterdir() if path.stem == "t")
        shutil.copy(path, place / "seed")

        def read(content: bytes) -> object:
            path.write_bytes(content)
            # Both read the file: one as numbers, the other as whatever the columns look like.
            sg.describe(path, set_id="set", chosen="chosen")
            return target.read(place)

        return read

    return Input(prepare, lambda place: iter([(place / "seed").read_bytes()]))


INPUTS: dict[str, Input] = {
    "config": _model_input(of_table=False),
    "schema": _model_input(of_table=True),
    "checkpoint": _checkpoint_input(),
    "csv": _table_input(next(target for target in TARGETS if target.name == "CSV")),
    "jsonl": _table_input(next(target for target in TARGETS if target.name == "JSON lines")),
    "parquet": _table_input(next(target for target in TARGETS if target.name == "Parquet, without")),
    "feather": _table_input(next(target for target in TARGETS if target.name == "Feather")),
    "feather-compressed": _table_input(next(target for target in TARGETS if target.name == "Feather, compressed")),
}
