"""`write_report`: a self-contained HTML page."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, final

import setgrad
from setgrad._files import atomic_write
from setgrad._text_table import TextTable
from setgrad.columns._describe import TableDescription
from setgrad.errors import MissingDependencyError, NotFittedError, OptionError
from setgrad.report._contents import contents_of
from setgrad.report._facts import versions_table
from setgrad.report._page import render
from setgrad.report._scores import Evaluation, read_choices
from setgrad.selector import SubsetSelector


@final
@dataclass(frozen=True, eq=False)
class Section:
    """One fitted selector in a report.

    Attributes:
        title: What it is called.
        selector: The selector.
        evaluation: Its scores on sets that the fit has not seen; without them only the training is shown.
        note: A sentence below the title.
        training: The sets of the fit as `Choices` or a table, which the baselines then learn from. Without them the
            baselines learn from the sets of the evaluation, each time from four fifths of them.
        table: What `describe` returned for the table of the evaluation.
    """

    title: str
    selector: SubsetSelector
    evaluation: Evaluation | None = None
    note: str = ""
    training: Any = None
    table: TableDescription | None = None


def check_matplotlib() -> None:
    """Raise a MissingDependencyError if Matplotlib is not installed; call it before long work."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError('a report needs Matplotlib to draw: pip install "setgrad[demo]"') from error


def write_report(
    path: str | PathLike[str],
    sections: Sequence[Section],
    *,
    title: str = "What the selector learned",
    summary: TextTable | None = None,
    sets: int = 6,
    date: datetime.date | None = None,
) -> None:
    """Write one self-contained HTML page about fitted selectors.

    For each: scores beside those of a learned baseline, of the most popular items and of random subsets; facts about
    the data; calibration of the probabilities and sizes; importance of columns; the worst and the best sets; gains as
    a waterfall; pairs of items that go together; the learning curve and all options. What the data do not tell, such as
    columns without names, is left out. The page loads nothing from outside. The file is written atomically and replaces
    an older one.

    Args:
        path: The file to write; missing folders are created.
        sections: The fitted selectors to show, in order.
        title: The title of the page.
        summary: A table to put at the top.
        sets: Number of sets to show in each section, half of them with the worst scores, half with the best.
        date: The date on the page; None for today.

    Raises:
        MissingDependencyError: If Matplotlib is not installed.
        NotFittedError: If a selector is not fitted.
        OptionError: If `sets` is negative.
        DataError: If the file cannot be written.

    Examples:
        >>> import pathlib, tempfile
        >>> import setgrad as sg
        >>> task = sg.datasets.load_task("moons", n_train=20, n_validation=10, n_test=10)
        >>> sel = sg.SubsetSelector(dim=8, max_epochs=1, random_state=0, verbose=0).fit(*task.train)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = pathlib.Path(folder, "report.html")
        ...     write_report(page, [Section("Moons", sel, sg.report.evaluate(sel, task.test))], sets=2)
        ...     page.read_text(encoding="utf-8").count("<img")
        6
    """
    check_matplotlib()
    if sets < 0:
        raise OptionError(f"sets says how many sets to draw: 0 or more, not {sets}")
    for section in sections:
        if not section.selector.__sklearn_is_fitted__():
            raise NotFittedError(
                f"the selector of section {section.title!r} is not fitted yet; call fit(sets, subsets) first"
            )
    text = render(
        "page.html",
        title=title,
        summary=summary,
        sections=[
            contents_of(
                section.selector,
                section.evaluation,
                title=section.title,
                note=section.note,
                training=None
                if section.training is None
                else read_choices(section.selector, section.training, "training"),
                table=section.table,
                sets=sets,
            )
            for section in sections
        ],
        versions=versions_table(),
        version=setgrad.__version__,
        date=(date or datetime.date.today()).isoformat(),
    )
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")
