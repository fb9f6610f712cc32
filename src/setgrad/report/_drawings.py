"""Ways to draw one set: points in the plane, or small images. Other items are listed by the page.

To add one, write its function and select it in `drawing_for`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from setgrad.report._curve import plain_axes
from setgrad.report._set_view import SetView
from setgrad.report._svg import new_figure
from setgrad.sets import Sets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Larger pictures would not be useful.
_MOST_IMAGES, _MOST_VECTOR_POINTS = 60, 2000
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
    width: float = 2.0

    @property
    def dashes(self) -> str:
        """Lengths of the strokes and gaps of the line, as SVG writes them; empty for a solid line."""
        return "" if self.line == "solid" else " ".join(f"{self.width * part:g}" for part in self.line[1])


MARKS = {
    "right": Mark("right (chosen)", "#009e73", "o", "solid"),
    "wrong": Mark("wrong (chosen, should not be)", "#d55e00", "X", (0, (1.0, 0.8))),
    "missed": Mark("missed (not chosen, should be)", "#3a86d6", "s", (0, (3.5, 1.5))),
    "rest": Mark("rest (rightly not chosen)", "#8c959f", "o", "solid", 0.5),
}


@final
@dataclass(frozen=True)
class Drawing:
    """A way to draw a set, how its legend shows the kinds of items, and a note on how to read it."""

    draw: Callable[[SetView], Figure]
    swatch: Literal["dot", "frame"]
    note: str


def drawing_for(sets: Sets, *, named: bool = False, mixed: bool = False) -> Drawing | None:
    """Return the way to draw items of this shape and these values; None if a list tells more.

    Args:
        sets: The sets.
        named: Whether items have names, which a list shows and points do not.
        mixed: Whether numbers of an item are of different kinds, such as codes of categories.
    """
    shape = sets.item_shape
    if mixed or not sets.layout.total:
        return None
    if tuple(shape) == (2,):
        return None if named else POINTS
    # Pixels are never negative; most tables and embeddings have negative values.
    return IMAGES if _sides(tuple(shape)) and float(sets.values.min()) >= 0 else None


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
        axes.add_patch(
            Rectangle(
                (left - 0.5 - gap / 4, top - 0.5 - gap / 4),
                width + gap / 2,
                height + gap / 2,
                fill=False,
                edgecolor=mark.colour,
                linewidth=mark.width,
                linestyle=mark.line,
            )
        )
    axes.set_axis_off()
    return figure


POINTS = Drawing(_draw_points, "dot", "A point is an item.")
IMAGES = Drawing(
    _draw_images, "frame", f"An image is an item, the most probable first; at most {_MOST_IMAGES} are drawn."
)
