"""What a section of the page shows. What cannot be known from the data is None or empty, and is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from setgrad._text_table import TextTable
from setgrad.columns._describe import TableDescription
from setgrad.report._calibration import calibration_of
from setgrad.report._charts import calibration_chart, size_caption, size_chart
from setgrad.report._compare import compare
from setgrad.report._curve import curve_note, learning_curve
from setgrad.report._drawings import IMAGES, MARKS, Drawing, Mark, drawing_for
from setgrad.report._facts import column_table, columns_read, data_table, options_table
from setgrad.report._reasons import Importances, Waterfall, importances, pair_tables, waterfalls
from setgrad.report._scores import Evaluation, score_table, size_rule_table
from setgrad.report._set_view import SetView, extreme_sets, has_names, views_of
from setgrad.report._svg import Picture, to_picture
from setgrad.selector import SubsetSelector
from setgrad.selector._tables import CONDITIONAL
from setgrad.sets import Choices, subset_sizes

# How many items of a set are listed.
_LISTED = 12


@final
@dataclass(frozen=True)
class Chart:
    """A picture and the sentence below it."""

    picture: Picture
    caption: str


@final
@dataclass(frozen=True)
class ListedItem:
    """An item of a set: its kind, as a key of `MARKS`, its name and its probability."""

    state: str
    name: str
    probability: float


@final
@dataclass(frozen=True, eq=False)
class Card:
    """A set: as a picture, or as a list of its first items and the number of the others."""

    caption: str
    picture: Picture | None
    items: tuple[ListedItem, ...]
    more: int


@final
@dataclass(frozen=True, eq=False)
class ShownSets:
    """Some of the worst and of the best sets, the marks of their items, and how to read them."""

    worst: list[Card]
    best: list[Card]
    marks: dict[str, Mark]
    swatch: str
    note: str


@final
@dataclass(frozen=True, eq=False)
class Results:
    """What is known if a selector was evaluated."""

    scores: TextTable
    data: list[TextTable]
    warnings: tuple[str, ...]
    comparison: TextTable | None
    comparison_note: str
    charts: list[Chart]
    importances: Importances | None
    shown: ShownSets | None
    waterfalls: list[Waterfall]
    pairs: list[TextTable]


@final
@dataclass(frozen=True, eq=False)
class Contents:
    """All that a section shows."""

    title: str
    note: str
    results: Results | None
    size_rules: TextTable
    curves: list[Picture]
    curve_note: str
    options: TextTable


def contents_of(
    selector: SubsetSelector,
    evaluation: Evaluation | None,
    *,
    title: str,
    note: str,
    training: Choices | None,
    table: TableDescription | None,
    sets: int,
) -> Contents:
    """Return what the section about a selector shows."""
    return Contents(
        title,
        note,
        None if evaluation is None else _results(selector, evaluation, training, table, sets),
        size_rule_table(selector),
        learning_curve(selector.history_, selector.best_epoch_, selector.validation_score_),
        curve_note(
            selector.best_epoch_,
            selector.validation_score_,
            is_conditional=selector.options_.method == CONDITIONAL,
        ),
        options_table(selector),
    )


def _results(
    selector: SubsetSelector,
    evaluation: Evaluation,
    training: Choices | None,
    table: TableDescription | None,
    count: int,
) -> Results:
    choices, read = evaluation.choices, columns_read(selector, table)
    compared = compare(selector, evaluation, training)
    extremes = extreme_sets(evaluation, count)
    worst, best = (views_of(evaluation, numbers) for numbers in (extremes.worst, extremes.best))
    drawing = drawing_for(choices.sets, named=has_names(choices), mixed=_is_mixed(selector))
    is_image = drawing is IMAGES
    return Results(
        scores=score_table(evaluation.scores),
        data=[data_table(choices, read), *([] if table is None else [column_table(table, read)])],
        warnings=() if table is None else table.warnings,
        comparison=None if compared is None else compared.table(evaluation),
        comparison_note="" if compared is None else compared.note,
        charts=_charts(evaluation),
        # A pixel alone has no meaning, and the number of an image no name.
        importances=None if is_image else importances(selector, evaluation),
        shown=_shown(worst, best, drawing) if worst else None,
        waterfalls=[] if is_image else waterfalls(selector, evaluation, extremes),
        pairs=[] if is_image else pair_tables(selector, evaluation),
    )


def _is_mixed(selector: SubsetSelector) -> bool:
    """Return whether the columns of a table became numbers of different kinds."""
    schema = selector.table_
    parts = () if schema is None or schema.columns is None else schema.columns.parts
    return any(part.codes or part.context for part in parts)


def _charts(evaluation: Evaluation) -> list[Chart]:
    choices, picks = evaluation.choices, evaluation.picks
    if not choices.sets.layout.total:
        return []
    chosen, true = (subset_sizes(part) for part in (picks, choices.subsets))
    sizes = Chart(size_chart(chosen, true), f"{size_caption(chosen, true)} A larger point stands for more sets.")
    if evaluation.scores.found is not None:
        return [sizes]
    found = calibration_of(evaluation.probability.values.cpu().numpy(), choices.subsets.values.cpu().numpy())
    caption = (
        "Of the items with a probability near p, a share near p should be right: on the dotted line. The mean distance "
        f"is {found.gap:.4f}. Lines at the points are two standard errors."
    )
    return [Chart(calibration_chart(found), caption), sizes]


def _shown(worst: Sequence[SetView], best: Sequence[SetView], drawing: Drawing | None) -> ShownSets:
    swatch = "dot" if drawing is None else drawing.swatch
    note = f"The most probable items; at most {_LISTED} are listed." if drawing is None else drawing.note
    low, high = ([_card(view, drawing) for view in views] for views in (worst, best))
    return ShownSets(low, high, MARKS, swatch, note)


def _card(view: SetView, drawing: Drawing | None) -> Card:
    if drawing is not None:
        return Card(view.caption, to_picture(drawing.draw(view), view.caption), (), 0)
    top, states = view.top(_LISTED), view.top(_LISTED).states
    items = tuple(
        ListedItem(next(state for state, mask in states.items() if mask[place]), name, float(top.probability[place]))
        for place, name in enumerate(top.labels)
    )
    return Card(view.caption, None, items, len(view.items) - len(items))
