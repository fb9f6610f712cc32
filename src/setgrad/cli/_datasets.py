"""`setgrad datasets`: what can be learned from without data of one's own, and how to get it as tables."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from setgrad._files import check_writable
from setgrad.cli._command import Answer, Command
from setgrad.cli._export import columns_of_task, write_split
from setgrad.cli._words import in_words
from setgrad.datasets import LOADERS, Task, load_task, task_names
from setgrad.errors import OptionError
from setgrad.report._grid import Grid
from setgrad.sets import subset_sizes

_SPLITS = ("train", "validation", "test")


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="one data set to describe [all]")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, help="write train, validation and test.parquet of NAME there"
    )
    parser.add_argument("--random-state", metavar="N", type=int, default=0, help="seed of everything that is drawn [0]")
    parser.add_argument(
        "--data-dir", metavar="FOLDER", type=Path, help="where data files are [the environment variable SETGRAD_DATA]"
    )


def _run(args: Namespace) -> Answer:
    if args.name is not None:
        for split in _SPLITS if args.output is not None else ():
            check_writable(_table_of(args.output, split))
        with in_words({"pass data_dir": "give --data-dir FOLDER"}):
            task = load_task(args.name, random_state=args.random_state, data_dir=args.data_dir)
        return _one(task, args.output)
    if args.output is not None:
        raise OptionError("say which data set to write: setgrad datasets NAME -o FOLDER")
    return _all()


def _all() -> Answer:
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
    grid = Grid("", ("name", "what is to be found", "needs"), tuple(rows))
    hint = "more on one of them: setgrad datasets NAME"
    return Answer({"datasets": entries, "names": task_names()}, (grid, *families, hint))


def _one(task: Task, folder: Path | None) -> Answer:
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
    grid = Grid("", ("split", "sets", "items", "items of a set", "chosen of a set"), rows)
    parts = (task.description, grid, f"source: {task.source}")
    if folder is None:
        return Answer(data, parts)
    columns = columns_of_task(task)
    written = [write_split(_table_of(folder, split), choices, columns) for split, choices in splits.items()]
    hint = (
        f"next: setgrad fit {written[0]} --validation {written[1]} --set-id {columns.set_id} "
        f"--item-id {columns.item_id} --chosen {columns.chosen} -o model/"
    )
    tables = [str(path) for path in written]
    return Answer({**data, "tables": tables}, (*parts, f"written: {', '.join(tables)}", hint))


def _table_of(folder: Path, split: str) -> Path:
    return folder / f"{split}.parquet"


def _range(sizes: object) -> str:
    found = sorted(set(sizes.tolist()))  # type: ignore[attr-defined]
    if not found:
        return "-"
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


DATASETS = Command(
    name="datasets",
    summary="list the data sets that come along, or write one as tables",
    usage="setgrad datasets [NAME] [-o FOLDER] [options]",
    description="List the data sets by name, say more about one of them, or write its splits as Parquet tables.",
    examples=(
        "setgrad datasets",
        "setgrad datasets digits",
        "setgrad datasets moons -o moons/",
    ),
    declare=_declare,
    run=_run,
)
