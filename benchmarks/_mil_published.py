"""Published accuracies on the classical sets of bags, in percent: mean and what follows ± in the source."""

from __future__ import annotations

# M. Ilse, J. Tomczak and M. Welling, ICML 2018, table 1: ten folds, five times; ± is a standard error of the mean. The
# first three rows are theirs for other people's methods. Their folds are others than ours.
ILSE = {
    "mi-SVM": {"musk1": (87.4, None), "musk2": (83.6, None), "elephant": (82.2, None), "fox": (58.2, None)}
    | {"tiger": (78.4, None)},
    "mi-Graph": {"musk1": (88.9, 3.3), "musk2": (90.3, 3.9), "elephant": (86.9, 3.5), "fox": (62.0, 4.4)}
    | {"tiger": (86.0, 3.7)},
    "MI-Net with DS": {"musk1": (89.4, 4.2), "musk2": (87.4, 4.3), "elephant": (87.2, 3.2), "fox": (63.0, 3.7)}
    | {"tiger": (84.5, 3.9)},
    "attention": {"musk1": (89.2, 4.0), "musk2": (85.8, 4.8), "elephant": (86.8, 2.2), "fox": (61.5, 4.3)}
    | {"tiger": (83.9, 2.2)},
    "gated attention": {"musk1": (90.0, 5.0), "musk2": (86.3, 4.2), "elephant": (85.7, 2.7), "fox": (60.3, 2.9)}
    | {"tiger": (84.5, 1.8)},
}


def published_cell(method: str, data: str) -> str:
    """One cell of the table; a dash where nothing was published."""
    found = ILSE[method].get(data)
    if found is None:
        return "-"
    mean, spread = found
    return f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"
