"""Ways to draw one set: points in the plane, small images, or bars of probabilities.

To add one, write its two functions and select it in `drawing_for`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from setgrad.report._curve import plain_axes
from setgrad.report._set_view import SetView
from setgrad.report._svg import INK, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Larger pictures would not be useful.
_MOST_IMAGES, _MOST_BARS, _MOST_VECTOR_POINTS = 60, 60, 2000
_LABELLED_BARS = 24
_IMAGES_IN_ROW = 8
# Smaller squares are more likely a few features than the pixels of an image.
_SMALLEST_SIDE = 8


@final
@dataclass(frozen=True)
class Mark:
    """How a kind of item is drawn: kinds differ in colour, shape and line."""

    text: str
    colour: str
    marker: str
    line: Literal["solid"] | tuple[float, tuple[float, float]]


MARKS = {
    "right": Mark("right (chosen)", "#009e73", "o", "solid"),
    "wrong": Mark("wrong (chosen, should not be)", "#d55e00", "X", (0, (1.0, 0.8))),
    "missed": Mark("missed (not chosen, should be)", "#3a86d6", "s", (0, (3.5, 1.5))),
    "rest": Mark("rest (rightly not chosen)", "#8c959f", "o", "solid"),
}


@final
@dataclass(frozen=True)
class Drawing:
    """A way to draw a set, the entries of its legend, and a note on how to read it."""

    draw: Callable[[SetView], Figure]
    handles: Callable[[], list[Any]]
    note: str


def drawing_for(views: Sequence[SetView]) -> Drawing:
    """Return the way to draw items of this shape and these values."""
    shape = views[0].items.shape[1:]
    if shape == (2,):
        return POINTS
    # Pixels are never negative; most tables and embeddings have negative values.
    if _sides(shape) and min(float(view.items.min()) for view in views) >= 0:
        return IMAGES
    return BARS


def draw_legend(drawing: Drawing) -> Figure:
    """Draw the legend alone, once for all sets."""
    figure = new_figure(8.0, 0.4, fill=False)
    figure.legend(handles=drawing.handles(), loc="center", ncols=len(MARKS), frameon=False, labelcolor=INK, fontsize=9)
    return figure


def _sides(shape: tuple[int, ...]) -> tuple[int, int] | None:
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]  # the one channel of a grey image
    if len(shape) == 2:
        return shape[0], shape[1]
    side = math.isqrt(shape[0]) if len(shape) == 1 else 0
    return (side, side) if side >= _SMALLEST_SIDE and side * side == shape[0] else None


def _draw_points(view: SetView) -> Figure:
    figure = new_figure(3.4, 3.0)
    axes = figure.subplots()
    for state, mask in view.states.items():
        mark = MARKS[state]
        axes.scatter(
            view.items[mask, 0],
            view.items[mask, 1],
            s=10 if state == "rest" else 46,
            c=mark.colour,
            marker=mark.marker,
            linewidths=0,
            alpha=0.75 if state == "rest" else 1.0,
            rasterized=len(view.items) > _MOST_VECTOR_POINTS,
        )
    axes.set_aspect("equal", adjustable="datalim")
    plain_axes(axes)
    return figure


def _draw_images(view: SetView) -> Figure:
    from matplotlib.patches import Rectangle

    view = view.top(_MOST_IMAGES)
    sides = _sides(view.items.shape[1:])
    assert sides is not None
    height, width = sides
    count = len(view.items)
    columns = min(count, _IMAGES_IN_ROW)
    rows = math.ceil(count / columns)
    gap = max(2, width // 2)
    step_y, step_x = height + gap, width + gap
    # As wide as a full row, so that images of all sets have the same size.
    canvas = np.full((rows * step_y + gap, _IMAGES_IN_ROW * step_x + gap), np.nan)
    frames = []
    states = view.states
    for place, item in enumerate(view.items):
        top, left = place // columns * step_y + gap, place % columns * step_x + gap
        canvas[top : top + height, left : left + width] = item.reshape(height, width)
        mark = next(MARKS[state] for state, mask in states.items() if mask[place])
        frames.append((left, top, mark))
    figure = new_figure(3.4, 3.4 * canvas.shape[0] / canvas.shape[1], fill=False)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(canvas, cmap="gray_r", interpolation="nearest")
    for left, top, mark in frames:
        thin = mark is MARKS["rest"]
        axes.add_patch(
            Rectangle(
                (left - 0.5 - gap / 4, top - 0.5 - gap / 4),
                width + gap / 2,
                height + gap / 2,
                fill=False,
                edgecolor=mark.colour,
                linewidth=0.5 if thin else 2.0,
                linestyle=mark.line,
            )
        )
    axes.set_axis_off()
    return figure


def _draw_bars(view: SetView) -> Figure:
    view = view.top(_MOST_BARS)
    figure = new_figure(3.4, 2.3)
    axes = figure.subplots()
    places = np.arange(len(view.items))
    for state, mask in view.states.items():
        axes.bar(places[mask], view.probability[mask], color=MARKS[state].colour, width=0.8)
        if state != "rest":
            axes.scatter(
                places[mask],
                view.probability[mask] + 0.05,
                marker=MARKS[state].marker,
                c=MARKS[state].colour,
                s=22,
                linewidths=0,
            )
    axes.set_ylim(0, 1.12)
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylabel("probability", fontsize=8, color=INK)
    plain_axes(axes)
    if len(places) <= _LABELLED_BARS:
        axes.set_xticks(places, [_short(label) for label in view.labels], rotation=60, ha="right")
    else:
        axes.set_xticks([])
        axes.set_xlabel("items, the most probable first", fontsize=8, color=INK)
    return figure


def _short(label: str) -> str:
    # SVG allows no control characters.
    label = "".join(letter for letter in label if letter.isprintable())
    # A dollar sign would start a formula in Matplotlib.
    return (label if len(label) <= 14 else label[:13] + "…").replace("$", r"\$")


def _point_handles() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="", marker=mark.marker, color=mark.colour, markeredgewidth=0, label=mark.text)
        for mark in MARKS.values()
    ]


def _frame_handles() -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(
            fill=False,
            edgecolor=mark.colour,
            linestyle=mark.line,
            label=mark.text,
            linewidth=0.6 if mark is MARKS["rest"] else 2.4,
        )
        for mark in MARKS.values()
    ]


def _bar_handles() -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=mark.colour, label=mark.text) for mark in MARKS.values()]


POINTS = Drawing(_draw_points, _point_handles, "A point is an item.")
IMAGES = Drawing(
    _draw_images, _frame_handles, f"An image is an item, the most probable first; at most {_MOST_IMAGES} are drawn."
)
BARS = Drawing(_draw_bars, _bar_handles, f"A bar is an item, the most probable first; at most {_MOST_BARS} are drawn.")
