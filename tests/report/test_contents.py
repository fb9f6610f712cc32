"""The figures of a page are those of the library, and what the data do not tell is left out."""

import platform
from pathlib import Path

import numpy as np
import pytest
import torch

from setgrad import Choices, Sets, SubsetSelector
from setgrad.explain import gain_steps, second_differences
from setgrad.explain._texts import signed
from setgrad.report import Evaluation, Section, evaluate
from setgrad.report._set_view import extreme_sets
from tests.report.conftest import TINY, Shop, shop_table
from tests.report.pages import Page, written

TABLE_HEADINGS = [
    "Scores",
    "Data",
    "Probabilities and sizes",
    "Importance of columns",
    "Worst and best sets",
    "Worst",
    "Best",
    "How the gains add up",
    "Pairs of chosen items",
    "Learning curve",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> Page:
    section = Section("Shop", shop.selector, shop.evaluation, training=shop.training, table=shop.table)
    return written(tmp_path_factory.mktemp("page") / "r.html", section, sets=4)


def test_a_table_has_all_sections(page: Page) -> None:
    assert page.headings == ["Shop", *TABLE_HEADINGS]


def test_images_have_no_columns_and_no_names(tmp_path: Path, digits: tuple[SubsetSelector, Evaluation]) -> None:
    page = written(tmp_path / "r.html", Section("Digits", *digits), sets=4)
    left_out = {"Importance of columns", "How the gains add up", "Pairs of chosen items"}
    assert page.headings == ["Digits", *(text for text in TABLE_HEADINGS if text not in left_out)]
    # Two curves, two charts, four sets.
    assert len(page.attributes("img")) == 8
    assert len([row for row in page.rows if row[0] == "columns that the model reads"]) == 0


def test_images_that_are_not_shown_are_images_still(tmp_path: Path, digits: tuple[SubsetSelector, Evaluation]) -> None:
    page = written(tmp_path / "r.html", Section("Digits", *digits), sets=0)
    assert page.headings == ["Digits", "Scores", "Data", "Probabilities and sizes", "Learning curve"]


def test_sets_without_items(tmp_path: Path, shop: Shop) -> None:
    sets, subsets = (Sets.from_lengths(part.values[:0], [0, 0]) for part in shop.evaluation.choices)
    evaluation = evaluate(shop.selector, Choices(sets, subsets, item_ids=[]))
    page = written(tmp_path / "r.html", Section("Empty", shop.selector, evaluation))
    assert page.headings == ["Empty", "Scores", "Data", "Learning curve"]
    assert page.row("share of items that are right (%)") == ["-"]


def test_items_that_do_not_interact_are_no_pairs(tmp_path: Path, shop: Shop) -> None:
    sets, subsets = shop.training
    direct = SubsetSelector(method="direct", **TINY | {"max_epochs": 1}).fit(sets[:12], subsets[:12])
    page = written(tmp_path / "r.html", Section("Direct", direct, evaluate(direct, shop.evaluation.choices)))
    assert "How the gains add up" in page.headings
    assert "Pairs of chosen items" not in page.headings
    # Sets have columns without names.
    assert "Importance of columns" not in page.headings


def test_without_sets_to_show_there_is_no_heading(tmp_path: Path, shop: Shop) -> None:
    page = written(tmp_path / "r.html", Section("Shop", shop.selector, shop.evaluation), sets=0)
    assert not {"Worst and best sets", "Worst", "Best", "How the gains add up"} & set(page.headings)


def test_facts_about_the_data(page: Page, shop: Shop) -> None:
    right = shop.evaluation.choices.subsets
    sizes = [int(mask.sum()) for mask in right]
    assert page.row("items of a set: mean, least, most") == ["6.00, 6, 6"]
    assert page.row("right items of a set: mean, least, most") == [f"{np.mean(sizes):.2f}, {min(sizes)}, {max(sizes)}"]
    assert page.row("share of items that are right (%)") == [f"{100 * sum(sizes) / 120:.2f}"]
    assert page.row("sets with nothing right") == [str(sizes.count(0))]
    columns = {column.name: column for column in shop.table.columns}
    (weight,) = (name for name in columns if name.startswith("weight"))
    gaps = columns[weight].missing
    assert gaps > 0
    assert page.row("columns that the model reads") == ["3"]
    assert page.row("gaps in them") == [f"{gaps} ({100 * gaps / 360:.2f}\u00a0%)"]
    rows = {row[0]: row[1:] for row in page.rows if len(row) == 5}
    assert rows[weight] == ["number", str(gaps), str(columns[weight].distinct), "yes"]
    assert rows["product"][-1] == ""


def test_scores_of_the_selector_and_chance(page: Page, shop: Shop) -> None:
    scores = shop.evaluation.scores
    assert page.row("this selector") == [f"{100 * scores.jaccard:.2f}", f"{100 * scores.jaccard_true_size:.2f}", "-"]
    assert page.row("random subset") == ["-", f"{100 * scores.chance:.2f}", "-"]
    assert "The baselines learn from 40 training sets." in page.text


def test_training_may_be_a_table(tmp_path: Path, page: Page, shop: Shop) -> None:
    section = Section("Shop", shop.selector, shop.evaluation, training=shop_table(0, 40))
    found = written(tmp_path / "r.html", section, sets=0)
    (expected,) = (row for row in page.rows if row[0].startswith("gradient boosting"))
    assert expected in found.rows


def test_importance_is_that_of_the_selector(page: Page, shop: Shop) -> None:
    found = shop.selector.importance(*shop.evaluation.choices, repeats=3)
    for name, drop, error in zip(found.columns, found.drops, found.errors, strict=True):
        bars = [row for row in page.rows if row[0] == name and len(row) == 3]
        assert bars == [[name, "", f"{100 * drop:+.2f} ± {100 * error:.2f}"]]


def test_waterfall_is_that_of_the_gains(page: Page, shop: Shop) -> None:
    evaluation, choices = shop.evaluation, shop.evaluation.choices
    found = extreme_sets(evaluation, 4)
    number = next(number for number in found.best if bool(evaluation.picks[number].any()))
    sets, picks = choices.sets.take([number]), evaluation.picks.take([number])
    steps = gain_steps(shop.selector.function_, sets.with_values(sets.values.double()), picks)
    order = steps.steps.values.argsort()[-int(picks.values.sum()) :]
    names = [choices.item_ids[6 * number + item] for item in order.tolist()]
    rows = [[row[0], row[-1]] for row in page.rows if len(row) == 3 and row[1] == ""]
    expected = [[name, signed(gain)] for name, gain in zip(names, steps.gains.values[order].tolist(), strict=True)]
    start = rows.index(expected[0])
    assert rows[start : start + len(expected)] == expected
    total = shop.selector.function_.bind(sets.with_values(sets.values.double()))
    whole = total.value(torch.stack([picks.values, torch.zeros_like(picks.values)]))[:, 0].detach()
    assert float(rows[start + len(expected)][1]) == pytest.approx(float(whole[0] - whole[1]), rel=5e-3)


def test_pairs_are_second_differences(page: Page, shop: Shop) -> None:
    choices, picks = shop.evaluation.choices, shop.evaluation.picks
    sets = choices.sets.with_values(choices.sets.values.double())
    found = second_differences(shop.selector.function_, sets, picks, picks)
    values: dict[tuple[str, str], list[float]] = {}
    for first, second, value in zip(*(part.tolist() for part in vars(found).values()), strict=True):
        one, other = sorted((choices.item_ids[first], choices.item_ids[second]))
        values.setdefault((one, other), []).append(value)
    shown = [row for row in page.rows if len(row) == 4 and (row[0], row[1]) in values]
    assert shown
    for one, other, mean, sets_of_pair in shown:
        assert (mean, sets_of_pair) == (signed(float(np.mean(values[one, other]))), str(len(values[one, other])))
    means = [float(np.mean(part)) for part in values.values()]
    assert signed(max(means)) in [row[2] for row in shown]


def test_sizes_in_words(page: Page, shop: Shop) -> None:
    chosen, right = (
        [int(mask.sum()) for mask in part] for part in (shop.evaluation.picks, shop.evaluation.choices.subsets)
    )
    off = np.subtract(chosen, right)
    assert f"The size is right in {100 * np.mean(off == 0):.2f} % of the sets" in page.text
    assert f"off by {np.abs(off).mean():.2f} items on average" in page.text


def test_items_of_a_set_with_their_names(page: Page, shop: Shop) -> None:
    number = extreme_sets(shop.evaluation, 4).worst[0]
    probability = shop.selector.predict_proba(shop.evaluation.choices.sets)[number]
    best = int(probability.argmax())
    name = shop.evaluation.choices.item_ids[6 * number + best]
    place = page.words.index(name)
    assert page.words[place + 1].startswith((", right", ", wrong", ", missed", ", rest"))
    assert f"{float(probability[best]):.2f}" in page.words[place + 2 : place + 5]


def test_options_in_use_and_versions(page: Page, shop: Shop) -> None:
    for name, value in shop.selector.options_.get_params().items():
        (row,) = (row for row in page.rows if row[0] == name and len(row) == 3)
        assert row[1] == ("-" if value is None else str(value))
    assert page.row("Python") == [platform.python_version()]
    assert page.row("torch") == [torch.__version__]


def test_options_of_the_implicit_solver_are_named(tmp_path: Path, shop: Shop) -> None:
    sets, subsets = shop.training
    fitted = SubsetSelector(method="implicit", tol=1e-2, **TINY | {"max_epochs": 1}).fit(sets[:12], subsets[:12])
    page = written(tmp_path / "r.html", Section("Implicit", fitted))
    found = [page.row(name)[0] for name in ("forward", "backward", "tol", "steps")]
    assert found == ["adaptive-picard", "gmres", "0.01", "50"]


def test_completion_has_no_baselines_and_no_calibration(tmp_path: Path, shop: Shop) -> None:
    choices = shop.evaluation.choices
    evaluation = evaluate(shop.selector, choices, given=choices.subsets)
    page = written(tmp_path / "r.html", Section("Completion", shop.selector, evaluation), sets=0)
    assert "this selector" not in page.text
    assert len(page.attributes("img")) == 3
