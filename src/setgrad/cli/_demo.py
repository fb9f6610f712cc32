"""`setgrad demo`: fit, score and report on built-in data."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from setgrad._files import check_writable
from setgrad._text_table import TextTable, percent
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._datasets import declare_data_dir
from setgrad.cli._options import declare_selector, make_selector
from setgrad.cli._paths import check_checkpoint
from setgrad.cli._splits import task_schema
from setgrad.datasets import Task, bayes_jaccard, load_task
from setgrad.errors import OptionError
from setgrad.report import Evaluation, Section, evaluate, write_report
from setgrad.report._write import check_matplotlib
from setgrad.selector import SubsetSelector
from setgrad.selector._model_files import check_model_folder
from setgrad.sets import Choices


@final
@dataclass(frozen=True)
class Reference:
    """Known scores of a task: the best published one with the true size, and the best possible one."""

    published: float
    limit: Callable[[Choices], float]


# Table 2 of Özcan et al., 2024 (arXiv:2412.11239), best column. The moons hardly overlap, the Gaussians do.
REFERENCES = {"moons": Reference(0.5897, lambda _: 1.0), "gaussian": Reference(0.9103, bayes_jaccard)}


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """A task with its fitted selector and its scores."""

    task: Task
    selector: SubsetSelector
    evaluation: Evaluation
    seconds: float
    folder: Path

    @property
    def data(self) -> dict[str, Any]:
        """All numbers as plain JSON values."""
        reference = REFERENCES.get(self.task.name)
        return {
            "task": self.task.name,
            **asdict(self.evaluation.scores),
            "paper_jaccard_true_size": reference.published if reference else None,
            "limit": reference.limit(self.task.test) if reference else None,
            "epochs": len(self.selector.history_),
            "seconds": self.seconds,
            "model": str(self.folder),
        }


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, default=Path("demo"), help="folder for models and report [demo]"
    )
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
        help="number of sets of each split, for a quick look [those of the data set]",
    )
    declare_data_dir(parser)
    declare_selector(parser)


def _counts(text: str) -> tuple[int, int, int]:
    try:
        train, validation, test = (int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not three whole numbers separated by commas") from None
    if min(train, validation, test) < 1:
        raise ArgumentTypeError(f"{text!r} leaves a split without sets; give each at least 1")
    return train, validation, test


def _run(args: Namespace) -> CommandResult:
    # Everything that can fail early is checked before the first minute of training.
    check_matplotlib()
    names = list(dict.fromkeys(name.strip() for name in args.tasks.split(",") if name.strip()))
    if not names:
        raise OptionError("name at least one data set, e.g. --tasks moons")
    train, validation, test = args.sets
    tasks = [
        load_task(name, n_train=train, n_validation=validation, n_test=test, data_dir=args.data_dir) for name in names
    ]
    folders = [args.output / task.name.replace(":", "-") for task in tasks]
    selectors = [make_selector(args, random_state=0) for _ in tasks]
    report = args.output / "report.html"
    check_writable(report)
    for folder, selector in zip(folders, selectors, strict=True):
        if selector.checkpoint is not None and len(tasks) > 1:
            selector.checkpoint = _checkpoint_of(Path(selector.checkpoint), folder.name)
        check_checkpoint(selector.checkpoint, {"the file of the report": report})
        check_model_folder(folder, checkpoint=selector.checkpoint)
    outcomes = [_fit(*parts) for parts in zip(tasks, selectors, folders, strict=True)]
    summary = _summary(outcomes)
    sections = [Section(o.task.name, o.selector, o.evaluation, o.task.description, o.task.train) for o in outcomes]
    write_report(report, sections, title="setgrad demo", summary=summary)
    parts: tuple[TextTable | str, ...] = (summary, *(f"model: {o.folder}" for o in outcomes), f"report: {report}")
    return CommandResult({"tasks": [o.data for o in outcomes], "report": str(report)}, parts)


def _checkpoint_of(path: Path, task: str) -> Path:
    """Return the checkpoint of one task, because a checkpoint holds the state of one fit."""
    check_writable(path)
    return path.with_name(f"{path.stem}-{task}{path.suffix}")


def _fit(task: Task, selector: SubsetSelector, folder: Path) -> Outcome:
    print(f"{task.name}: {len(task.train)} sets to learn from, {len(task.test)} to test on", file=sys.stderr)
    started = time.perf_counter()
    selector.fit(*task.train, validation=task.validation)
    seconds = time.perf_counter() - started
    selector.table_ = task_schema(task)
    selector.save(folder)
    return Outcome(task, selector, evaluate(selector, task.test), seconds, folder)


def _summary(outcomes: list[Outcome]) -> TextTable:
    columns = ("task", "true size given", "size by the model", "published, true size", "best possible", "chance", "fit")
    keys = ("jaccard_true_size", "jaccard", "paper_jaccard_true_size", "limit", "chance")
    rows = tuple(
        (str(data["task"]), *(percent(data[key]) for key in keys), f"{data['seconds']:.0f} s")
        for data in (outcome.data for outcome in outcomes)
    )
    return TextTable("Jaccard score (%) on the test sets", columns, rows)


DEMO = Command(
    name="demo",
    summary="fit on built-in data, print the scores, write a report",
    usage="setgrad demo [--output FOLDER] [--tasks NAME,...] [options]",
    description=(
        "Fit the selector on Moons (find the rarer of two classes of points) and on digits (find the odd ones out "
        "among handwritten digits), score it on test sets, and write the models and a report. Takes minutes on a CPU."
    ),
    examples=(
        "setgrad demo",
        "setgrad demo --tasks moons --preset diffmf --output diffmf/",
        "setgrad demo --sets 200,100,100 --max-epochs 5   # a quick look",
    ),
    declare=_declare,
    run=_run,
)
