"""`write_report`: one HTML file with everything in it."""

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
from setgrad.report._scores import Evaluation, score_grid, size_rule_grid
from setgrad.report._shown import sets_to_show
from setgrad.report._svg import to_picture
from setgrad.selector import SubsetSelector


@final
@dataclass(frozen=True, eq=False)
class Section:
    """One fitted selector in a report, with its results on sets whose right subsets are known, if there are any."""

    title: str
    selector: SubsetSelector
    evaluation: Evaluation | None = None
    note: str = ""


def require_matplotlib() -> None:
    """Raise, with the remedy, if the package that draws is not installed: better before the work than after it."""
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

    The page loads nothing from anywhere. It appears whole or not at all, and replaces one that was there.

    Args:
        path: The file to write; missing folders are made.
        sections: What to show, one fitted selector after another.
        title: The title of the page.
        summary: A table to put at the top.
        sets: How many sets to draw in each section, spread evenly from the worst to the best score.

    Example:
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
    require_matplotlib()
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
    with atomic_write(Path(path)) as draft:
        draft.write_text(_page.page(title, body), encoding="utf-8")


def _section(section: Section, sets: int) -> Iterator[str]:
    selector, evaluation = section.selector, section.evaluation
    yield _page.heading(2, section.title)
    yield _page.paragraph(section.note)
    grids = [] if evaluation is None else [score_grid(evaluation.scores)]
    yield _page.group("tables", [_page.table(grid) for grid in [*grids, size_rule_grid(selector)]])
    yield _page.heading(3, "Learning curve")
    yield _page.picture(learning_curve(selector.history_, selector.best_epoch_), kind="curve")
    if evaluation is not None:
        yield from _pictures(selector, evaluation, sets)
    yield _page.folded("Options of the selector", [_page.table(_options(selector))])


def _pictures(selector: SubsetSelector, evaluation: Evaluation, count: int) -> Iterator[str]:
    shown = sets_to_show(selector, evaluation, count)
    if not shown:
        return
    drawing = drawing_for(shown)
    legend = "; ".join(f"{mark.text} ({mark.colour})" for mark in MARKS.values())
    yield _page.heading(3, "What was chosen, and what was right")
    yield _page.paragraph(
        f"{len(shown)} of {len(evaluation.choices)} sets, from the worst score to the best in even steps. "
        f"{drawing.note}",
        quiet=True,
    )
    yield _page.picture(to_picture(draw_legend(drawing), f"Legend. {legend}.", tight=True), kind="legend")
    yield _page.group(
        "sets",
        [_page.picture(to_picture(drawing.draw(one), one.caption), caption=one.caption) for one in shown],
    )


def _options(selector: SubsetSelector) -> TextTable:
    usual = inspect.signature(SubsetSelector).parameters
    rows = tuple((name, _text(value), _text(usual[name].default)) for name, value in selector.get_params().items())
    return TextTable("", ("option", "value", "default"), rows)


def _text(value: object) -> str:
    return type(value).__name__ if hasattr(value, "forward") else str(value)
