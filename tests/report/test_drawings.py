"""Each kind of item is drawn in its own way, and what was chosen and right is drawn where it is."""

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from setgrad import Choices, Sets, SubsetSelector
from setgrad.report import Evaluation
from setgrad.report._curve import curve_note, learning_curve
from setgrad.report._drawings import IMAGES, MARKS, POINTS, drawing_for
from setgrad.report._set_view import SetView, extreme_sets, has_names, views_of
from setgrad.report._svg import INK, Picture, to_picture

PICKED = np.array([True, True, False, False, False])
RIGHT = np.array([True, False, True, False, False])


def view(items: np.ndarray) -> SetView:
    n = len(items)
    picked, right = np.resize(PICKED, n), np.resize(RIGHT, n)
    probability = np.linspace(0.2, 0.9, n)
    return SetView("set 7", items, picked, right, probability, tuple(f"i{place}" for place in range(n)), 1 / 3)


def svg(picture: Picture) -> str:
    head, _, data = picture.url.partition(",")
    assert head == "data:image/svg+xml;base64"
    return base64.b64decode(data).decode()


@pytest.mark.parametrize(
    ("items", "drawing"),
    [
        (np.zeros((5, 2)), POINTS),
        (np.zeros((5, 64)), IMAGES),
        (np.zeros((5, 6, 9)), IMAGES),
        (np.zeros((5, 1, 6, 9)), IMAGES),
        # negative numbers are not pixels; 16 numbers are more likely 16 columns; 65 are no square
        (-np.ones((5, 64)), None),
        (np.zeros((5, 16)), None),
        (np.zeros((5, 65)), None),
        (np.zeros((5, 1)), None),
        (np.zeros((5, 2, 2, 2)), None),
    ],
)
def test_drawing_fits_the_items(items: np.ndarray, drawing: object) -> None:
    sets = Sets.from_list([torch.from_numpy(items)])
    assert drawing_for(sets) is drawing
    assert drawing_for(sets, mixed=True) is None
    assert drawing_for(sets[:0]) is None


def test_named_items_are_listed() -> None:
    assert drawing_for(Sets.from_list([torch.zeros(5, 2)]), named=True) is None
    assert drawing_for(Sets.from_list([torch.zeros(5, 64)]), named=True) is IMAGES
    plain = Choices.of([[[0.0], [0.0]], [[0.0]]], [[0], []])
    ids: list[object] = [None, [0, 1, 0], np.array([0, 1, 0])]
    assert [has_names(replace(plain, item_ids=one)) for one in ids] == [False] * 3  # type: ignore[arg-type]
    assert has_names(replace(plain, item_ids=["a", "b", "a"])) and has_names(replace(plain, item_ids=[17, 4, 17]))


def test_points_lie_where_the_items_are() -> None:
    one = view(np.arange(10.0).reshape(5, 2))
    collections = [c for c in POINTS.draw(one).axes[0].collections if isinstance(c, PathCollection)]
    found = {to_hex(tuple(np.asarray(c.get_facecolor())[0])): np.asarray(c.get_offsets()) for c in collections}
    for state, mask in one.states.items():
        np.testing.assert_array_equal(found[MARKS[state].colour], one.items[mask])


def test_images_have_frames_in_the_order_of_probability() -> None:
    one = view(np.random.default_rng(0).uniform(size=(5, 64)))
    axes = IMAGES.draw(one).axes[0]
    frames = [to_hex(patch.get_edgecolor()) for patch in axes.patches]
    # The probability rises with the place, so the last item comes first.
    states = ["rest", "rest", "missed", "wrong", "right"]
    assert frames == [MARKS[state].colour for state in states]
    pixels = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(np.sort(pixels[~np.isnan(pixels)]), np.sort(one.items.ravel()))


def test_large_sets_keep_what_matters() -> None:
    n = 500
    one = view(np.zeros((n, 3))).top(60)
    assert len(one.items) == len(one.labels) == 60
    assert one.probability.tolist() == sorted(one.probability.tolist(), reverse=True)
    # 300 of the items were picked or right, so no other is shown.
    assert (one.picked | one.right).all()
    few = SetView(
        "s", np.zeros((n, 3)), np.arange(n) == 0, np.arange(n) == 1, np.linspace(0, 1, n), ("",) * n, 0.0
    ).top(10)
    assert few.picked.sum() == few.right.sum() == 1
    assert few.probability[:8].min() > 0.98


def test_picture_is_the_same_again_and_needs_nothing() -> None:
    one = view(np.arange(10.0).reshape(5, 2))
    first, second = (to_picture(POINTS.draw(one), one.caption) for _ in range(2))
    assert first == second
    text = svg(first)
    assert INK not in text
    assert "currentColor" in text
    assert "<metadata" not in text
    for piece in text.split("href=")[1:]:
        assert piece[1] == "#" or piece[1:].startswith("data:")


def test_caption_counts() -> None:
    caption = view(np.zeros((5, 2))).caption
    assert caption == "set 7: Jaccard 33.33; 2 of 5 items chosen, 1 right, 1 wrong, 1 missed"


def test_worst_and_best_sets(evaluation: Evaluation) -> None:
    scores = evaluation.jaccard.numpy()
    found = extreme_sets(evaluation, 5)
    assert (len(found.worst), len(found.best)) == (3, 2)
    assert scores[found.worst].tolist() == sorted(scores)[:3]
    assert scores[found.best].tolist() == sorted(scores)[::-1][:2]
    everything = extreme_sets(evaluation, 1000)
    assert sorted(everything.worst + everything.best) == list(range(12))
    assert extreme_sets(evaluation, 0).worst == []


def test_views_hold_what_was_chosen(selector: SubsetSelector, evaluation: Evaluation) -> None:
    (one,) = views_of(evaluation, [7])
    assert one.name == "set 7"
    assert one.jaccard == float(evaluation.jaccard[7])
    np.testing.assert_array_equal(one.items, evaluation.choices.sets[7])
    np.testing.assert_array_equal(one.picked, evaluation.picks[7])
    np.testing.assert_array_equal(one.right, evaluation.choices.subsets[7])
    np.testing.assert_array_equal(one.probability, selector.predict_proba(evaluation.choices.sets)[7])


def test_ids_of_the_table_name_sets_and_items(evaluation: Evaluation) -> None:
    sets, subsets = evaluation.choices
    named = Choices(sets, subsets, [f"basket {i}" for i in range(12)], [f"p{i}" for i in range(1199)] + ["x" * 999])
    third, last = views_of(replace(evaluation, choices=named), [3, 11])
    assert (third.name, third.labels[:2]) == ("set basket 3", ("p300", "p301"))
    # A name may be as long as it likes, the page is not.
    assert last.labels[-1] == "x" * 119 + "…"


def test_curve_is_described(selector: SubsetSelector) -> None:
    loss, score = learning_curve(selector.history_, selector.best_epoch_, selector.validation_score_)
    best = selector.history_[selector.best_epoch_ - 1]["validation_jaccard"]
    assert "3 epochs" in loss.alt
    assert f"best {100 * best:.2f} at epoch {selector.best_epoch_}" in score.alt
    assert "training loss" in svg(loss)
    # A fit under a constraint is not told the size, and the history does not say which kind it was.
    assert "true size" not in svg(score)


def test_curve_tells_that_trees_alone_are_used() -> None:
    history = [{"epoch": epoch, "loss": 1 / epoch, "validation_jaccard": 0.5 - 0.1 * epoch} for epoch in (1, 2)]
    _, score = learning_curve(history, 0, 0.612)
    assert score.alt.endswith("boosted trees alone have 61.20, and are used.")
    assert "61.20" in curve_note(0, 0.612, is_conditional=True)
    note = curve_note(2, 0.3, is_conditional=False)
    assert note.startswith(
        "The dotted line is at epoch 2, whose weights are used. The validation score is with the true"
    )
    assert "one right item" not in note and "one right item" in curve_note(2, 0.3, is_conditional=True)


def test_no_figure_is_left_behind() -> None:
    from matplotlib import _pylab_helpers

    figure = POINTS.draw(view(np.zeros((5, 2))))
    assert isinstance(figure, Figure)
    assert not _pylab_helpers.Gcf.get_all_fig_managers()
