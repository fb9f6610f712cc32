"""`write_report`: a self-contained HTML page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import final

import setgrad
from setgrad._files import atomic_write
from setgrad._text_table import TextTable
from setgrad.errors import MissingDependencyError, NotFittedError, OptionError
from setgrad.report import _page
from setgrad.report._curve import learning_curve
from setgrad.report._drawings import MARKS, draw_legend, drawing_for
from setgrad.report._scores import Evaluation, score_table, size_rule_table
from setgrad.report._set_view import select_views
from setgrad.report._svg import to_picture
from setgrad.selector import SubsetSelector


@final
@dataclass(frozen=True, eq=False)
class Section:
    """One fitted selector in a report, with its evaluation if there is one."""

    title: str
    selector: SubsetSelector
    evaluation: Evaluation | None = None
    note: str = ""


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
) -> None:
    """Write one self-contained HTML page: learning curves, scores, and pictures of a few sets.

    The page loads nothing from outside. The file is written atomically and replaces an older one.

    Args:
        path: The file to write; missing folders are created.
        sections: The fitted selectors to show, in order.
        title: The title of the page.
        summary: A table to put at the top.
        sets: Number of sets to draw in each section, from the worst to the best score in even steps.

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
        4
    """
    check_matplotlib()
    if sets < 0:
        raise OptionError(f"sets says how many sets to draw: 0 or more, not {sets}")
    for section in sections:
        if not section.selector.__sklearn_is_fitted__():
            raise NotFittedError(
                f"the selector of section {section.title!r} is not fitted yet; call fit(sets, subsets) first"
            )
    body = [_page.heading(1, title)]
    if summary is not None:
        body.append(_page.table(summary))
    for section in sections:
        body += _section(section, sets)
    body.append(f"<footer>Written by setgrad {setgrad.__version__}.</footer>")
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(_page.page(title, body), encoding="utf-8")


def _section(section: Section, sets: int) -> Iterator[str]:
    selector, evaluation = section.selector, section.evaluation
    yield _page.heading(2, section.title)
    yield _page.paragraph(section.note)
    grids = [] if evaluation is None else [score_table(evaluation.scores)]
    yield _page.group("tables", [_page.table(grid) for grid in [*grids, size_rule_table(selector)]])
    yield _page.heading(3, "Learning curve")
    yield _page.picture(learning_curve(selector.history_, selector.best_epoch_), kind="curve")
    if evaluation is not None:
        yield from _pictures(selector, evaluation, sets)
    yield _page.collapsible("Options of the selector", [_page.table(_options(selector))])


def _pictures(selector: SubsetSelector, evaluation: Evaluation, count: int) -> Iterator[str]:
    views = select_views(selector, evaluation, count)
    if not views:
        return
    drawing = drawing_for(views)
    legend = "; ".join(f"{mark.text} ({mark.colour})" for mark in MARKS.values())
    yield _page.heading(3, "Picks and right subsets")
    yield _page.paragraph(
        f"{len(views)} of {len(evaluation.choices)} sets, from the worst score to the best in even steps. "
        f"{drawing.note}",
        quiet=True,
    )
    yield _page.picture(to_picture(draw_legend(drawing), f"Legend. {legend}.", tight=True), kind="legend")
    yield _page.group(
        "sets",
        [_page.picture(to_picture(drawing.draw(view), view.caption), caption=view.caption) for view in views],
    )


def _options(selector: SubsetSelector) -> TextTable:
    signature = inspect.signature(SubsetSelector).parameters
    options = selector.options_.get_params()
    rows = tuple((name, _text(value), _text(signature[name].default)) for name, value in options.items())
    return TextTable("", ("option", "value in use", "default"), rows)


def _text(value: object) -> str:
    return type(value).__name__ if hasattr(value, "forward") else str(value)
