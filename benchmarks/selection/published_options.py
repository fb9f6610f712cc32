"""The options that Özcan et al. (2024, arXiv:2412.11239) chose by cross-validation: tables 5 and 6."""

from __future__ import annotations

from benchmarks.selection.published import ALGORITHMS, row_of

Point = dict[str, float | int | str]

# The words of the paper for solvers, and those of the selector.
_FORWARD = {"fpi": "picard", "anderson": "anderson"}
_BACKWARD = {"cg": "normal-cg", "gmres": "gmres"}

# Table 5: learning rate and hidden layers of each algorithm, in the order of `ALGORITHMS`, for the two iDiffMF also the
# solvers of both passes.
TABLE_5: dict[str, str] = {
    "celeba": "1e-3 3, 1e-3 3, 1e-3 3, 1e-2 3 fpi cg, 1e-2 3 fpi cg",
    "gaussian": "1e-4 3, 1e-4 3, 1e-4 3, 1e-3 2 fpi cg, 1e-4 2 fpi gmres",
    "moons": "1e-5 2, 1e-5 2, 1e-4 3, 1e-3 3 anderson gmres, 1e-5 2 fpi gmres",
    "apparel": "1e-3 3, 1e-4 3, 1e-4 3, 1e-4 3 anderson cg, 1e-4 3 fpi cg",
    "bath": "1e-4 3, 1e-4 3, 1e-4 3, 1e-4 2 anderson cg, 1e-5 3 fpi cg",
    "bedding": "1e-4 3, 1e-4 3, 1e-4 2, 1e-4 2 anderson cg, 1e-4 2 fpi cg",
    "carseats": "1e-3 2, 1e-4 2, 1e-3 3, 1e-4 3 fpi cg, 1e-4 3 anderson cg",
    "diaper": "1e-3 2, 1e-4 2, 1e-4 2, 1e-4 3 fpi cg, 1e-4 3 fpi cg",
    "feeding": "1e-4 3, 1e-4 3, 1e-4 3, 1e-3 3 anderson cg, 1e-3 3 anderson gmres",
    "furniture": "1e-3 2, 1e-3 2, 1e-3 3, 1e-4 2 fpi gmres, 1e-4 3 fpi cg",
    "gear": "1e-4 2, 1e-4 2, 1e-4 2, 1e-4 3 fpi cg, 1e-4 3 fpi cg",
    "health": "1e-4 2, 1e-4 3, 1e-4 3, 1e-4 3 anderson cg, 1e-4 3 fpi cg",
    "media": "1e-4 3, 1e-4 3, 1e-3 3, 1e-4 3 fpi gmres, 1e-4 3 fpi cg",
    "safety": "1e-4 3, 1e-3 3, 1e-4 3, 1e-4 3 fpi gmres, 1e-4 3 fpi cg",
    "toys": "1e-3 3, 1e-4 3, 1e-4 3, 1e-4 3 anderson cg, 1e-4 3 anderson cg",
    "bindingdb": "1e-4 2, 1e-4 2, 1e-4 2, 1e-4 2 fpi cg, 1e-4 2 fpi cg",
}

# Table 6: the same for idiffmf-c, with its constant.
TABLE_6_OPTIONS: dict[str, str] = {
    "celeba": "1e-3 2 anderson cg 10000",
    "gaussian": "1e-2 2 anderson cg 1000",
    "moons": "1e-3 2 anderson cg 100",
    "apparel": "1e-3 2 fpi cg 100",
    "bath": "1e-5 2 anderson gmres 100",
    "bedding": "1e-3 2 anderson cg 10000",
    "carseats": "1e-2 2 fpi cg 1000",
    "diaper": "1e-4 2 anderson gmres 100",
    "feeding": "1e-4 2 anderson gmres 100",
    "furniture": "1e-2 2 fpi gmres 100",
    "gear": "1e-3 2 anderson cg 100",
    "health": "1e-3 2 fpi cg 1000",
    "media": "1e-2 2 anderson cg 100",
    "safety": "1e-2 2 fpi gmres 100",
    "toys": "1e-2 2 fpi gmres 100",
    "bindingdb": "1e-3 2 anderson cg 100",
}


def published_point(task: str, algorithm: str) -> Point | None:
    """Return the chosen options of a published algorithm; None if the table has none.

    Examples:
        >>> published_point("amazon:safety:farthest", "idiffmf-c")
        {'learning_rate': 0.01, 'rho_layers': 2, 'forward': 'picard', 'backward': 'gmres', 'scale': 100.0}
        >>> published_point("moons", "equivset-ind")
        {'learning_rate': 1e-05, 'rho_layers': 2}
    """
    row = row_of(task)
    if row is None:
        return None
    if algorithm == "idiffmf-c":
        words = TABLE_6_OPTIONS[row].split()
    elif algorithm in ALGORITHMS:
        words = TABLE_5[row].split(", ")[ALGORITHMS.index(algorithm)].split()
    else:
        return None
    point: Point = {"learning_rate": float(words[0]), "rho_layers": int(words[1])}
    if len(words) > 2:
        point |= {"forward": _FORWARD[words[2]], "backward": _BACKWARD[words[3]]}
    return point | ({"scale": float(words[4])} if len(words) > 4 else {})
