"""`setgrad demo`: fit, score and show on data that come along."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from setgrad._files import check_writable
from setgrad.cli._command import Answer, Command
from setgrad.cli._export import columns_of_task
from setgrad.cli._options import declare_selector, make_selector
from setgrad.cli._places import check_checkpoint
from setgrad.cli._words import in_words
from setgrad.datasets import Task, bayes_jaccard, load_task
from setgrad.errors import OptionError
from setgrad.report import Evaluation, Section, evaluate, write_report
from setgrad.report._grid import Grid, percent
from setgrad.report._write import check_matplotlib
from setgrad.selector import SubsetSelector, check_model_folder
from setgrad.sets import Choices


@final
@dataclass(frozen=True)
class Known:
    """What is known of a task from elsewhere: the best published score with the true size, and the limit for anyone."""

    paper: float
    limit: Callable[[Choices], float]


# Table 2 of arXiv:2412.11239, best column. The moons do not overlap enough to matter, the Gaussians do.
KNOWN = {"moons": Known(0.5897, lambda _: 1.0), "gaussian": Known(0.9103, bayes_jaccard)}


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """A task with what became of it."""

    task: Task
    selector: SubsetSelector
    evaluation: Evaluation
    seconds: float
    folder: Path

    @property
    def data(self) -> dict[str, Any]:
        """All numbers, for machines."""
        known = KNOWN.get(self.task.name)
        return {
            "task": self.task.name,
            **asdict(self.evaluation.scores),
            "paper_jaccard_true_size": known.paper if known else None,
            "limit": known.limit(self.task.test) if known else None,
            "epochs": len(self.selector.history_),
            "seconds": self.seconds,
            "model": str(self.folder),
        }


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FOLDER", type=Path, default=Path("demo"), help="where results go [demo]")
    parser.add_argument(
        "--tasks",
        metavar="NAME,...",
        default="moons,digits",
        help="data sets to fit on, see `setgrad datasets` [moons,digits]",
    )
    parser.add_argument(
        "--sets",
        metavar="TRAIN,VALIDATION,TEST",
        type=_counts,
        default=(None, None, None),
        help="how many sets of each split to use, for a quick look [the usual numbers]",
    )
    declare_selector(parser)


def _counts(text: str) -> tuple[int, int, int]:
    try:
        train, validation, test = (int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not three whole numbers separated by commas") from None
    if min(train, validation, test) < 1:
        raise ArgumentTypeError(f"{text!r} leaves a split without sets; give each at least 1")
    return train, validation, test


def _run(args: Namespace) -> Answer:
    # All that can go wrong early goes wrong before the first minute of training.
    check_matplotlib()
    names = list(dict.fromkeys(name.strip() for name in args.tasks.split(",") if name.strip()))
    if not names:
        raise OptionError("name at least one data set, e.g. --tasks moons")
    train, validation, test = args.sets
    # There is no option for the folder of the data here.
    with in_words({", or pass data_dir": ""}):
        tasks = [load_task(name, n_train=train, n_validation=validation, n_test=test) for name in names]
    folders = [args.output / task.name.replace(":", "-") for task in tasks]
    selectors = [make_selector(args, random_state=0) for _ in tasks]
    report = args.output / "report.html"
    check_writable(report)
    for folder, selector in zip(folders, selectors, strict=True):
        if selector.checkpoint is not None and len(tasks) > 1:
            selector.checkpoint = _checkpoint_of(Path(selector.checkpoint), folder.name)
        check_checkpoint(selector.checkpoint, {"where the report goes": report})
        check_model_folder(folder, checkpoint=selector.checkpoint)
    outcomes = [_fit(*parts) for parts in zip(tasks, selectors, folders, strict=True)]
    grid = _grid(outcomes)
    sections = [Section(o.task.name, o.selector, o.evaluation, o.task.description) for o in outcomes]
    write_report(report, sections, title="setgrad demo", summary=grid)
    parts: tuple[Grid | str, ...] = (grid, *(f"model: {o.folder}" for o in outcomes), f"report: {report}")
    return Answer({"tasks": [o.data for o in outcomes], "report": str(report)}, parts)


def _checkpoint_of(path: Path, task: str) -> Path:
    """A file for each task, because a checkpoint holds the state of one fit."""
    check_writable(path)
    return path.with_name(f"{path.stem}-{task}{path.suffix}")


def _fit(task: Task, selector: SubsetSelector, folder: Path) -> Outcome:
    print(f"{task.name}: {len(task.train)} sets to learn from, {len(task.test)} to test on", file=sys.stderr)
    started = time.perf_counter()
    selector.fit(*task.train, validation=task.validation)
    seconds = time.perf_counter() - started
    selector.save(folder)
    columns_of_task(task).save(folder)
    return Outcome(task, selector, evaluate(selector, task.test), seconds, folder)


def _grid(outcomes: list[Outcome]) -> Grid:
    columns = ("task", "true size given", "size by the model", "paper, true size", "best possible", "chance", "fit")
    rows = tuple(
        (
            str(found["task"]),
            *(
                percent(found[key])
                for key in ("jaccard_true_size", "jaccard", "paper_jaccard_true_size", "limit", "chance")
            ),
            f"{found['seconds']:.0f} s",
        )
        for found in (outcome.data for outcome in outcomes)
    )
    return Grid("Jaccard score (%) on the test sets", columns, rows)


DEMO = Command(
    name="demo",
    summary="fit on data that come along, print the scores, write a report",
    usage="setgrad demo [--output FOLDER] [--tasks NAME,...] [options]",
    description=(
        "Fit the selector on Moons (find the rarer of two classes of points) and on digits (find the odd ones out "
        "among handwritten digits), score it on test sets, and write the models and a report. Takes minutes on a CPU."
    ),
    examples=(
        "setgrad demo",
        "setgrad demo --tasks moons --preset paper --output paper/",
        "setgrad demo --sets 200,100,100 --max-epochs 5   # a quick look",
    ),
    declare=_declare,
    run=_run,
)
