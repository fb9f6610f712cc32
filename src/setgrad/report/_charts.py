"""Charts of an evaluation: probabilities against shares, and chosen sizes against true ones."""

from __future__ import annotations

import numpy as np

from setgrad.report._calibration import Calibration
from setgrad.report._curve import plain_axes
from setgrad.report._svg import INK, Picture, new_figure, to_picture

_DOT = "#4f86c0"
_WIDTH, _HEIGHT = 4.0, 3.2


def calibration_chart(calibration: Calibration) -> Picture:
    """Draw the share of right items against the mean probability of each bin."""
    figure = new_figure(_WIDTH, _HEIGHT)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.4, linewidth=1, linestyle=":")
    share = calibration.observed
    axes.errorbar(
        calibration.predicted,
        share,
        yerr=np.minimum(2 * calibration.errors, [share, 1 - share]),
        color=_DOT,
        linewidth=1.6,
        elinewidth=1,
        marker="o",
        markersize=5,
    )
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.05, 1.05)
    axes.set_xlabel("probability of the model", fontsize=9, color=INK)
    axes.set_ylabel("share of right items", fontsize=9, color=INK)
    plain_axes(axes)
    points = zip(calibration.predicted, calibration.observed, calibration.counts, strict=True)
    listed = "; ".join(f"{p:.2f}: {share:.2f} of {count} items" for p, share, count in points)
    return to_picture(figure, f"Calibration. Mean probability and share of right items: {listed}.")


def size_chart(chosen: np.ndarray, true: np.ndarray) -> Picture:
    """Draw the number of chosen items of each set against the number of right ones."""
    from matplotlib.ticker import MaxNLocator

    pairs, counts = np.unique(np.stack([true, chosen], 1), axis=0, return_counts=True)
    figure = new_figure(_WIDTH, _HEIGHT)
    axes = figure.subplots()
    most = max(1, int(pairs.max()))
    edge = 0.06 * most + 0.4
    axes.plot([0, most], [0, most], color=INK, alpha=0.4, linewidth=1, linestyle=":")
    axes.scatter(pairs[:, 0], pairs[:, 1], s=12 + 200 * counts / counts.max(), c=_DOT, alpha=0.8, linewidths=0)
    axes.set_xlim(-edge, most + edge)
    axes.set_ylim(-edge, most + edge)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("items of the right subset", fontsize=9, color=INK)
    axes.set_ylabel("items chosen", fontsize=9, color=INK)
    plain_axes(axes)
    return to_picture(figure, f"Sizes chosen against true sizes. {size_caption(chosen, true)}")


def size_caption(chosen: np.ndarray, true: np.ndarray) -> str:
    """Return how far the sizes are apart, in words."""
    return (
        f"The size is right in {100 * np.mean(chosen == true):.2f} % of the sets, too large in "
        f"{100 * np.mean(chosen > true):.2f} %, too small in {100 * np.mean(chosen < true):.2f} %; it is off by "
        f"{np.mean(np.abs(chosen - true)):.2f} items on average."
    )
