"""The learning curve: loss and validation score of every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from setgrad.report._svg import INK, Picture, new_figure, to_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOSS, _SCORE = "#4f86c0", "#009e73"


def learning_curve(history: Sequence[dict[str, float]], best_epoch: int, best_score: float) -> list[Picture]:
    """Draw the loss and the validation score, with what is used: an epoch, or the boosted trees alone.

    Args:
        history: The record of each epoch.
        best_epoch: The epoch whose weights are used; 0 for the trees alone.
        best_score: The validation score of what is used.
    """
    epochs = [record["epoch"] for record in history]
    loss = [record["loss"] for record in history]
    score = [100 * record["validation_jaccard"] for record in history]
    first = f"Training loss over {len(epochs)} epochs: from {loss[0]:.4f} to {loss[-1]:.4f}."
    second = f"Validation Jaccard over {len(epochs)} epochs: from {score[0]:.2f} to {score[-1]:.2f}, " + (
        f"best {100 * best_score:.2f} at epoch {best_epoch}, whose weights are used."
        if best_epoch
        else f"best {max(score):.2f}; boosted trees alone have {100 * best_score:.2f}, and are used."
    )
    trees = None if best_epoch else 100 * best_score
    return [
        _chart(epochs, loss, "training loss", _LOSS, best_epoch, None, first),
        _chart(epochs, score, "validation Jaccard (%)", _SCORE, best_epoch, trees, second),
    ]


def curve_note(best_epoch: int, best_score: float, *, is_conditional: bool) -> str:
    """Return what the dotted lines of the curves tell, and of which choices the validation score is.

    Args:
        best_epoch: The epoch whose weights are used; 0 for the trees alone.
        best_score: The validation score of what is used.
        is_conditional: Whether F was trained at parts of the subsets.
    """
    line = (
        f"The dotted line is at epoch {best_epoch}, whose weights are used."
        if best_epoch
        else f"The dotted line is the score of the boosted trees alone, {100 * best_score:.2f}. They are used without "
        "the rest of F, because training did not raise it by more than three standard errors."
    )
    given = "the true size and, in half of the choices, one right item" if is_conditional else "the true size"
    return f"{line} The validation score is with {given} given; in a fit with limits, within them."


def _chart(
    x: list[float], y: list[float], title: str, colour: str, best: int, trees: float | None, alt: str
) -> Picture:
    figure = new_figure(4.0, 2.7)
    _line(figure.subplots(), x, y, title, colour, best, trees)
    return to_picture(figure, alt)


def _line(axes: Axes, x: list[float], y: list[float], title: str, colour: str, best: int, trees: float | None) -> None:
    from matplotlib.ticker import MaxNLocator

    dotted: dict[str, Any] = {"color": INK, "alpha": 0.4, "linewidth": 1, "linestyle": ":"}
    if trees is not None:
        axes.axhline(trees, **dotted)
    axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=3.5 if len(x) < 40 else 0)
    if best in x:
        axes.axvline(best, **dotted)
        axes.plot([best], [y[x.index(best)]], color=colour, marker="o", markersize=7)
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel("epoch", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if x[0] == x[-1]:
        axes.set_xlim(x[0] - 1, x[0] + 1)
    plain_axes(axes)


def plain_axes(axes: Axes) -> None:
    """Style the axes: two thin lines and small labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.spines[["left", "bottom"]].set_alpha(0.5)
    axes.tick_params(colors=INK, labelsize=8, width=0.6, length=3)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
