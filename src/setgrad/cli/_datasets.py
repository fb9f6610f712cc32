"""`setgrad datasets`: list the data sets, describe one, or write it as tables."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from setgrad._files import atomic_write, check_writable
from setgrad._text_table import TextTable
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._splits import task_schema, write_split
from setgrad.datasets import LOADERS, TABLES, TableTask, Task, load_table, load_task, task_names
from setgrad.errors import OptionError
from setgrad.sets import subset_sizes

_SPLITS = ("train", "validation", "test")


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="data set to describe [all]")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, help="folder for train.parquet, test.parquet, ... of NAME"
    )
    parser.add_argument("--random-state", metavar="N", type=int, default=0, help="seed of all random numbers [0]")
    declare_data_dir(parser)


def declare_data_dir(parser: ArgumentParser) -> None:
    """Add the folder of the data files to a command."""
    parser.add_argument(
        "--data-dir", metavar="FOLDER", type=Path, help="folder of the data files [environment variable SETGRAD_DATA]"
    )


def _run(args: Namespace) -> CommandResult:
    if args.name is None:
        if args.output is not None:
            raise OptionError("name the data set to write: setgrad datasets NAME -o FOLDER")
        return _list_all()
    splits = ("train", "test") if args.name in TABLES else _SPLITS
    paths = {} if args.output is None else {split: args.output / f"{split}.parquet" for split in splits}
    for path in paths.values():
        check_writable(path)
    if args.name in TABLES:
        return _describe_table(load_table(args.name, random_state=args.random_state), paths)
    return _describe(load_task(args.name, random_state=args.random_state, data_dir=args.data_dir), paths)


def _list_all() -> CommandResult:
    rows = [(name, loader.summary, loader.needs or "nothing") for name, loader in TABLES.items()]
    tables = TextTable("tables, with columns of several kinds", ("name", "chosen", "needs"), tuple(rows))
    tabular = [{"name": name, "summary": loader.summary, "needs": loader.needs} for name, loader in TABLES.items()]
    rows, entries = [], []
    for name, loader in LOADERS.items():
        variants = [f"{name}:{variant}" for variant in loader.variants]
        rows.append((f"{name}:..." if variants else name, loader.summary, loader.needs or "nothing"))
        entries.append({"name": name, "summary": loader.summary, "needs": loader.needs, "variants": variants})
    families = [
        f"{name}:... stands for {len(loader.variants)} data sets, {name}:{loader.variants[0]} "
        f"to {name}:{loader.variants[-1]}"
        for name, loader in LOADERS.items()
        if loader.variants
    ]
    tasks = TextTable("tasks, with items as vectors or images", ("name", "chosen", "needs"), tuple(rows))
    hint = "more on one of them: setgrad datasets NAME"
    data = {"tables": tabular, "datasets": entries, "names": task_names()}
    return CommandResult(data, (tables, tasks, *families, hint))


def _describe_table(task: TableTask, paths: dict[str, Path]) -> CommandResult:
    """Describe a table, and write its two parts to the paths if there are any."""
    tables = {"train": task.train, "test": task.test}
    counts = {name: {"sets": len(part[task.set_id].unique()), "items": len(part)} for name, part in tables.items()}
    data = {"name": task.name, "description": task.description, "source": task.source, "splits": counts}
    rows = tuple((name, str(part["sets"]), str(part["items"])) for name, part in counts.items())
    columns = TextTable("", ("column", "type"), tuple((field.name, str(field.type)) for field in task.train.schema))
    parts = (task.description, TextTable("", ("split", "sets", "items"), rows), columns, f"source: {task.source}")
    if not paths:
        return CommandResult(data, parts)
    from setgrad.sets._formats import write_parquet

    for name, path in paths.items():
        with atomic_write(path) as draft:
            write_parquet(tables[name], draft)
    hint = (
        f"next: setgrad fit {paths['train']} --set-id {task.set_id} --item-id {task.item_id} --chosen {task.chosen} "
        "-o model/"
    )
    written = [str(path) for path in paths.values()]
    return CommandResult({**data, "tables": written}, (*parts, f"written: {', '.join(written)}", hint))


def _describe(task: Task, paths: dict[str, Path]) -> CommandResult:
    """Describe a task, and write its splits to the paths if there are any."""
    splits = {split: getattr(task, split) for split in _SPLITS}
    data = {
        "name": task.name,
        "description": task.description,
        "source": task.source,
        "splits": {split: {"sets": len(c), "items": c.sets.layout.total} for split, c in splits.items()},
    }
    rows = tuple(
        (
            split,
            str(len(c)),
            str(c.sets.layout.total),
            _range(c.sets.layout.host_lengths),
            _range(subset_sizes(c.subsets)),
        )
        for split, c in splits.items()
    )
    table = TextTable("", ("split", "sets", "items", "items of a set", "chosen of a set"), rows)
    parts = (task.description, table, f"source: {task.source}")
    if not paths:
        return CommandResult(data, parts)
    schema = task_schema(task)
    for split, path in paths.items():
        write_split(path, splits[split], schema)
    hint = (
        f"next: setgrad fit {paths['train']} --validation {paths['validation']} --set-id {schema.set_id} "
        f"--item-id {schema.item_id} --chosen {schema.chosen} -o model/"
    )
    tables = [str(path) for path in paths.values()]
    return CommandResult({**data, "tables": tables}, (*parts, f"written: {', '.join(tables)}", hint))


def _range(sizes: np.ndarray) -> str:
    if not len(sizes):
        return "-"
    smallest, largest = sizes.min(), sizes.max()
    return str(smallest) if smallest == largest else f"{smallest} to {largest}"


DATASETS = Command(
    name="datasets",
    summary="list the built-in data sets, or write one as tables",
    usage="setgrad datasets [NAME] [-o FOLDER] [options]",
    description="List the data sets by name, describe one of them, or write its splits as Parquet tables.",
    examples=(
        "setgrad datasets",
        "setgrad datasets digits",
        "setgrad datasets shop -o shop/",
    ),
    declare=_declare,
    run=_run,
)
