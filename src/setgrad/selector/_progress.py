"""The progress bar of training: epoch, loss and Jaccard score."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def training_display(verbose: int, max_epochs: int) -> Iterator[Callable[[dict[str, float]], None]]:
    """Give a function that shows the record of an epoch; silent if `verbose` is 0."""
    if not verbose:
        yield lambda record: None
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield _print_record
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("fitting", total=max_epochs, figures="")

        def show(record: dict[str, float]) -> None:
            figures = f"loss {record['loss']:.4f}  Jaccard {100 * record['validation_jaccard']:.2f}"
            bar.update(task, completed=record["epoch"], figures=figures)

        yield show


def _print_record(record: dict[str, float]) -> None:
    print(f"epoch {record['epoch']:.0f}  loss {record['loss']:.4f}  Jaccard {100 * record['validation_jaccard']:.2f}")
