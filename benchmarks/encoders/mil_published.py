"""Published accuracies on the classical sets of bags, in percent: mean and spread."""

from __future__ import annotations

# M. Ilse, J. Tomczak and M. Welling, ICML 2018, table 1: ten folds, five times; ± is a standard error of the mean. The
# first three rows are for methods of other authors. Their folds are not ours.
_SETS = ("musk1", "musk2", "elephant", "fox", "tiger")
_ROWS: dict[str, list[tuple[float, float | None]]] = {
    "mi-SVM": [(87.4, None), (83.6, None), (82.2, None), (58.2, None), (78.4, None)],
    "mi-Graph": [(88.9, 3.3), (90.3, 3.9), (86.9, 3.5), (62.0, 4.4), (86.0, 3.7)],
    "MI-Net with DS": [(89.4, 4.2), (87.4, 4.3), (87.2, 3.2), (63.0, 3.7), (84.5, 3.9)],
    "attention": [(89.2, 4.0), (85.8, 4.8), (86.8, 2.2), (61.5, 4.3), (83.9, 2.2)],
    "gated attention": [(90.0, 5.0), (86.3, 4.2), (85.7, 2.7), (60.3, 2.9), (84.5, 1.8)],
}
ILSE = {method: dict(zip(_SETS, row, strict=True)) for method, row in _ROWS.items()}
# The meaning of their ±, for the page.
SPREAD = "Published rows: ten other folds, five times; their ± is a standard error of the mean."


def published_cell(method: str, data: str) -> str:
    """Return one cell of the table; a dash where nothing was published."""
    value = ILSE[method].get(data)
    if value is None:
        return "-"
    mean, spread = value
    return f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"
