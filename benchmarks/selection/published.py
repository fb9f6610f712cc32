"""Numbers printed in "Learning Set Functions with Implicit Differentiation" (arXiv:2412.11239), for comparison."""

from __future__ import annotations

# The published algorithms, by the names of their presets here.
ALGORITHMS = ("equivset-ind", "equivset-copula", "diffmf", "idiffmf-2", "idiffmf-nuclear")

# What each preset is called there. The published code computes the free copula.
ALGORITHM_OF: dict[str, str] = {
    **{name: name for name in (*ALGORITHMS, "idiffmf-c")},
    "equivset-copula-free": "equivset-copula",
    "diffmf-5": "diffmf",
    **{f"idiffmf-{v}-{way}": f"idiffmf-{v}" for v in ("c", "2", "nuclear") for way in ("pathwise", "differences")},
}

# Table 2: test Jaccard in percent with the true size, mean and standard deviation over five folds, by algorithm.
# The Amazon rows use BERT vectors and, in the published code, the protocol that is called "farthest" here.
TABLE_2: dict[str, tuple[tuple[float, float], ...]] = {
    "celeba": ((55.02, 0.20), (56.16, 0.81), (54.42, 0.70), (56.30, 0.58), (56.55, 0.49)),
    "gaussian": ((90.55, 0.06), (90.94, 0.09), (90.96, 0.05), (90.95, 0.18), (91.03, 0.09)),
    "moons": ((57.76, 0.11), (58.67, 0.18), (58.45, 0.15), (58.48, 0.15), (58.97, 0.04)),
    "apparel": ((68.45, 0.96), (78.19, 0.89), (70.60, 1.35), (76.13, 4.65), (73.80, 5.71)),
    "bath": ((67.51, 1.19), (77.72, 1.98), (71.87, 0.27), (77.68, 0.98), (76.43, 0.81)),
    "bedding": ((66.20, 1.10), (77.26, 1.24), (67.66, 0.39), (77.88, 0.80), (76.94, 1.05)),
    "carseats": ((19.99, 1.01), (20.03, 0.15), (20.15, 0.65), (21.94, 1.43), (22.42, 1.04)),
    "diaper": ((74.26, 0.73), (83.66, 0.69), (81.74, 1.18), (82.76, 0.62), (82.07, 0.90)),
    "feeding": ((71.46, 0.43), (82.47, 0.19), (77.44, 0.46), (81.93, 1.00), (81.52, 1.84)),
    "furniture": ((17.28, 0.88), (17.95, 0.80), (16.84, 0.05), (19.93, 2.68), (18.69, 0.93)),
    "gear": ((65.35, 0.91), (77.33, 0.90), (66.06, 2.86), (73.90, 10.29), (73.57, 6.74)),
    "health": ((63.04, 0.41), (72.03, 0.77), (59.64, 0.81), (72.55, 1.10), (72.32, 1.03)),
    "media": ((56.60, 0.56), (55.73, 1.18), (51.32, 1.11), (56.39, 2.68), (55.58, 1.75)),
    "safety": ((21.99, 1.85), (22.09, 3.30), (24.66, 5.56), (26.02, 1.68), (25.38, 1.88)),
    "toys": ((62.36, 1.31), (69.08, 1.04), (64.39, 1.64), (68.53, 1.35), (68.91, 1.00)),
    "bindingdb": ((73.59, 0.75), (73.57, 2.05), (73.22, 1.08), (76.83, 0.50), (77.48, 1.04)),
}

# Table 6: the same for idiffmf-c, the scale c chosen for each data set.
TABLE_6: dict[str, tuple[float, float]] = {
    "celeba": (53.93, 0.63),
    "gaussian": (90.94, 0.08),
    "moons": (58.37, 0.32),
    "apparel": (48.08, 0.95),
    "bath": (50.17, 0.97),
    "bedding": (47.93, 1.29),
    "carseats": (20.60, 1.39),
    "diaper": (57.13, 5.37),
    "feeding": (49.15, 7.20),
    "furniture": (17.65, 0.70),
    "gear": (42.39, 1.00),
    "health": (39.82, 0.34),
    "media": (41.32, 1.35),
    "safety": (20.50, 2.00),
    "toys": (40.87, 2.96),
    "bindingdb": (74.72, 1.73),
}

# Table 7: idiffmf-2 and idiffmf-nuclear with converged inference in the test.
TABLE_7: dict[str, tuple[tuple[float, float], ...]] = {
    "celeba": ((55.18, 0.77), (56.33, 0.73)),
    "gaussian": ((91.00, 0.02), (90.95, 0.06)),
    "moons": ((58.45, 0.32), (58.95, 0.10)),
    "apparel": ((76.06, 4.56), (73.73, 5.91)),
    "bath": ((77.49, 1.19), (75.51, 0.45)),
    "bedding": ((77.07, 2.02), (76.93, 1.05)),
    "carseats": ((22.24, 1.44), (22.42, 1.04)),
    "diaper": ((82.75, 0.63), (81.65, 0.74)),
    "feeding": ((81.54, 1.80), (81.52, 1.84)),
    "furniture": ((20.29, 2.50), (18.69, 0.93)),
    "gear": ((73.91, 10.30), (73.47, 10.81)),
    "health": ((72.14, 1.39), (72.31, 1.04)),
    "media": ((56.41, 2.63), (55.20, 1.62)),
    "safety": ((25.98, 1.73), (25.73, 2.33)),
    "toys": ((68.55, 1.13), (68.70, 1.01)),
    "bindingdb": ((76.97, 0.74), (77.42, 0.64)),
}

# Seconds of training on an A100, mean over folds: those of table 2, then idiffmf-c (table 6).
SECONDS: dict[str, tuple[float, ...]] = {
    "celeba": (1151, 1195, 1299, 1881, 1828, 2212),
    "gaussian": (31, 39, 86, 39, 46, 61),
    "moons": (67, 62, 58, 70, 54, 88),
    "apparel": (38, 77, 63, 111, 98, 78),
    "bath": (34, 53, 62, 71, 80, 42),
    "bedding": (41, 67, 73, 104, 89, 133),
    "carseats": (12, 12, 11, 41, 45, 38),
    "diaper": (61, 194, 95, 127, 144, 100),
    "feeding": (68, 95, 93, 145, 180, 125),
    "furniture": (11, 10, 9, 34, 34, 31),
    "gear": (41, 69, 61, 92, 132, 52),
    "health": (34, 60, 52, 79, 89, 57),
    "media": (37, 45, 41, 65, 68, 46),
    "safety": (10, 13, 9, 48, 45, 37),
    "toys": (34, 48, 44, 68, 80, 40),
    "bindingdb": (9934, 13984, 21472, 10888, 10613, 11121),
}

# Table 1: how many pairs (V, S*) each Amazon category has.
AMAZON_PAIRS: dict[str, int] = {
    "apparel": 4675,
    "bath": 3195,
    "bedding": 4524,
    "carseats": 483,
    "diaper": 6108,
    "feeding": 8202,
    "furniture": 280,
    "gear": 4277,
    "health": 2995,
    "media": 1485,
    "safety": 267,
    "toys": 2421,
}

# Categories with under 500 pairs, whose folds are small.
SMALL_CATEGORIES = ("carseats", "furniture", "safety")


def published(task: str) -> dict[str, tuple[float, float]]:
    """Return mean and deviation of each published algorithm by preset; empty for a task without published scores.

    Examples:
        >>> published("amazon:toys:farthest")["idiffmf-c"]
        (40.87, 2.96)
        >>> published("amazon:toys:random")
        {}
    """
    name = row_of(task)
    if name is None:
        return {}
    printed = dict(zip((*ALGORITHMS, "idiffmf-c"), (*TABLE_2[name], TABLE_6[name]), strict=True))
    return {model: printed[algorithm] for model, algorithm in ALGORITHM_OF.items()}


def published_converged(task: str) -> dict[str, tuple[float, float]]:
    """Return the published scores with converged inference (table 7), where there are any."""
    name = row_of(task)
    return {} if name is None else dict(zip(ALGORITHMS[3:], TABLE_7[name], strict=True))


def published_seconds(task: str) -> dict[str, float]:
    """Return the seconds of training of each published algorithm."""
    name = row_of(task)
    return {} if name is None else dict(zip((*ALGORITHMS, "idiffmf-c"), SECONDS[name], strict=True))


def best_published(task: str) -> tuple[float, float, str] | None:
    """Return mean, deviation and algorithm of the best published score; None for a task without one.

    Examples:
        >>> best_published("amazon:toys:farthest")
        (69.08, 1.04, 'equivset-copula')
        >>> best_published("amazon:toys:random") is None
        True
    """
    values = published(task)
    if not values:
        return None
    name = max(values, key=lambda algorithm: values[algorithm])
    return (*values[name], name)


def row_of(task: str) -> str | None:
    """Return the row of the tables that a task belongs to."""
    name, _, rest = task.partition(":")
    if name == "amazon":
        name, _, protocol = rest.partition(":")
        if protocol == "random":
            return None
    return name if name in TABLE_2 else None
