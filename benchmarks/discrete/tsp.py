"""Round trips on the globe: from images of flags a network learns the positions of countries, from tours alone.

Claims checked: a noise margin in the first half of training keeps Identity with standardised costs from the collapse of
costs, and then it finds nearly all tours (Sahoo et al., 2023, arXiv:2205.15213, table 6, the figures in italics). How
Identity does without projection, and how Blackbox does with and without noise.

As published: 100 flags, 10,000 sets of k flags with their best tours, a network of two convolutions and two layers from
a flag to a point of the sphere, a matrix of distances, an exact solver, L1 loss. Different: points are centres of
countries, not capitals; the 100 flags are drawn once from 194; distances are straight lines, for truth and model alike,
so the true points have the true tours; batches of 200 at a rate of 1e-3 for 40 epochs instead of 50 at 1e-4 for 100.
Up to 12 cities the solver is exact. Above, it is a local search, from 8 starts in training and from every city for the
true tours and in the test; "search" is the share of 100 true tours that an integer program confirms. Test: 1,000 sets
that are not in training. Lambda is per example (published: 20 on means over batches of 50, that is
0.4). "linear" is the Hamming loss, whose gradient is not 0 at right entries.

Results: tours: every leg is right. entries: right entries of the matrix. spread: standard deviation of the predicted
distances, 0 if costs have collapsed (true points: about 0.5). With noise nearly all methods reach about 98 % of the
tours, except one run of 56 %. TSP(20) has one run of one method, and with noise 93 % of the tours and nearly all
entries. Without noise the costs of Identity without projection collapse, and it still finds more tours than with
projection. Published accuracies for TSP(5), TSP(10) and TSP(20), identity std (Sahoo et al., 2023, arXiv:2205.15213,
table 6): noise 0 91.09 ± 0.07, 85.31 ± 0.15 and 88.45 ± 0.88; noise 0.1 99.67 ± 0.10, 99.72 ± 0.04 and 99.78 ± 0.04;
noise 0.2 99.67 ± 0.10, 99.76 ± 0.07 and 94.50 ± 10.53; noise 0.5 99.68 ± 0.09, 99.76 ± 0.04 and 99.80 ± 0.06.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.discrete import decisions
from benchmarks.discrete.decisions import Criterion, Examples, Method, Training
from benchmarks.discrete.tours import optimal_length
from benchmarks.lib.data import data_folder, read_arrays
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.discrete import TSP, Gumbel, NoiseMargin, Normal, PublishedRule, StdProjection, Tempered
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

FLAGS = 100
CITIES = (5, 10, 20)
# Above, tours are found by local search; so many true tours are then checked by an integer program.
EXACT, CHECKED = 12, 100
_LEARN: dict[str, Callable[..., Criterion]] = {
    "identity std": partial(decisions.identity, projection=StdProjection()),
    "identity": decisions.identity,
}
METHODS: dict[str, Method] = {
    **{
        f"{name} noise {width:g}": partial(way, loss=decisions.l1, margin=NoiseMargin(width))
        for name, way in _LEARN.items()
        for width in (0.0, 0.1, 0.2, 0.5)
    },
    "identity std linear": partial(decisions.identity, loss=decisions.linear_hamming, projection=StdProjection()),
    "blackbox 0.4": partial(decisions.blackbox, loss=decisions.l1, lam=0.4),
    "blackbox 4": partial(decisions.blackbox, loss=decisions.l1, lam=4.0),
    "blackbox 0.4 noise 0.2": partial(decisions.blackbox, loss=decisions.l1, lam=0.4, margin=NoiseMargin(0.2)),
    "blackbox 0.4 linear": partial(decisions.blackbox, loss=decisions.linear_hamming, lam=0.4),
    "imle 0.4": partial(decisions.imle, loss=decisions.l1, noise=Tempered(Gumbel(), 0.1), lam=0.4),
    "aimle": partial(decisions.aimle, loss=decisions.l1, noise=Tempered(Gumbel(), 0.1)),
    "aimle paper": partial(decisions.aimle, loss=decisions.l1, noise=Tempered(Gumbel(), 0.1), rule=PublishedRule()),
    "fenchel-young 0.2": partial(decisions.fenchel_young, noise=Tempered(Normal(), 0.2)),
}


@final
@dataclass(frozen=True)
class Trial:
    """One training run. `sets` has the numbers of training and test sets."""

    method: str
    cities: int
    seed: int
    epochs: int
    sets: tuple[int, int] = (10_000, 1_000)
    batch: int = 200
    rate: float = 1e-3

    @property
    def task(self) -> str:
        """The head of its columns."""
        return f"TSP({self.cities})"

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task} {self.method} seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", default=",".join(METHODS), help=f"default: all: {', '.join(METHODS)}")
    parser.add_argument("--cities", default="5,10", help=f"flags of a tour, 3 to {CITIES[-1]} (default: 5,10)")
    parser.add_argument("--epochs", type=int, default=40, help="of training (default: 40)")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT, folders={"globe_tsp_ingredients": "the flags"})


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, the longest first."""
    words = options.cities.split(",")
    if not all(word.strip().isdigit() and 3 <= int(word) <= CITIES[-1] for word in words):
        raise OptionError(f"--cities takes numbers from 3 to {CITIES[-1]}, not {options.cities!r}")
    sizes = sorted(map(int, words), reverse=True)
    names = parse_names(options.methods, METHODS, "method")
    if options.quick:
        return [Trial(name, sizes[-1], 0, epochs=2, sets=(400, 100)) for name in names]
    return [
        Trial(name, size, seed, options.epochs)
        for size in sizes
        for name in sorted(names, key=lambda name: "imle" not in name)
        for seed in range(options.seeds)
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train on sets of flags with their tours, and test."""
    device = resolve_device(context.device)
    order, noise = decisions.generators(trial.seed, device)
    flags, places = read_globe(context.data_dir)
    sets = draw_sets(sum(trial.sets), trial.cities, trial.seed)
    train, test = (with_tours(part.to(device), places.to(device)) for part in sets.split(trial.sets))
    solver = TSP(on_failure="mask")
    network = Globe(flags).to(device)
    criterion = METHODS[trial.method](solver, noise).to(device)
    training = Training(trial.epochs, trial.batch, trial.rate, drop=0.8, margin=0.5)
    decisions.learn(network, criterion, train, training, order)
    scores = {**measure(decisions.predict(network, test.inputs), test), "search": confirmed(test)}
    return decisions.make_record(scores, solver, trial.task, f"tours {scores['tours']:.1f} %")


def read_globe(data_dir: str | None) -> tuple[Tensor, Tensor]:
    """Return images (100, 3, 20, 40) from 0 to 1, and points on the unit sphere (100, 3)."""
    path = data_folder(data_dir, "globe_tsp_ingredients", "the flags") / "flags40x20_latlng.npz"
    flags, xyz = read_arrays(path, ("flags", "xyz"))
    rows = np.random.default_rng(0).permutation(len(flags))[:FLAGS]
    images = torch.from_numpy(flags[rows]).permute(0, 3, 1, 2).float() / 255
    return images, torch.from_numpy(xyz[rows]).float()


def draw_sets(count: int, cities: int, seed: int) -> Tensor:
    """Return different sets of flags, (count, cities), in random order."""
    rng = np.random.default_rng([seed, cities])
    drawn = np.argpartition(rng.random((2 * count, FLAGS)), cities, axis=1)[:, :cities]
    _, first = np.unique(np.sort(drawn, axis=1), axis=0, return_index=True)
    if len(first) < count:
        raise OptionError(f"there are too few sets of {cities} flags; ask for more cities, or for fewer sets")
    return torch.from_numpy(drawn[np.sort(first)[:count]])


def with_tours(sets: Tensor, places: Tensor) -> Examples:
    """Return sets with their best tours and true distances."""
    true = distances(places[sets])
    solver = TSP(starts=sets.shape[1])
    return Examples(sets, torch.cat([solver(part) for part in true.split(1000)]), true)


def distances(points: Tensor) -> Tensor:
    """Return straight distances between all pairs, (..., k, k); equal points have the gradient 0."""
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


class Globe(nn.Module):
    """Maps sets of flags to distances. All flags are placed at once, which is less work than the flags of a batch."""

    flags: Tensor

    def __init__(self, flags: Tensor) -> None:
        super().__init__()
        self.register_buffer("flags", flags, persistent=False)
        self.place = nn.Sequential(
            nn.Conv2d(3, 20, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(20, 50, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(500),
            nn.ReLU(),
            nn.Linear(500, 3),
        )
        with torch.no_grad():
            self.place(flags)  # initialises the lazy layer before it is moved

    def forward(self, sets: Tensor) -> Tensor:
        """Return distances within each set."""
        points = nn.functional.normalize(self.place(self.flags), dim=-1)
        return distances(points[sets])


def measure(theta: Tensor, test: Examples) -> Record:
    """Return the share of right tours and entries, and the spread of distances."""
    solver = TSP(starts=theta.shape[-1], on_failure="mask")
    right = torch.cat([solver(part) for part in theta.split(1000)]) == test.answers
    cities = theta.shape[-1]
    apart = ~torch.eye(cities, dtype=torch.bool, device=theta.device)
    spread = float(theta[:, apart].std())
    return {
        "tours": float(right.flatten(1).all(-1).float().mean()) * 100,
        "entries": float(right.float().mean()) * 100,
        "spread": spread if np.isfinite(spread) else None,
    }


def confirmed(examples: Examples) -> float | None:
    """Return the percentage of true tours that are optimal by an integer program, None where they are exact anyway."""
    if examples.inputs.shape[1] <= EXACT:
        return None
    checked = examples[:CHECKED]
    lengths = (checked.truth * checked.answers).sum((1, 2)) / 2
    best = torch.tensor([optimal_length(distances) for distances in checked.truth.cpu()])
    return 100 * float((lengths.cpu() <= best + 1e-4).float().mean())


def show(records: Sequence[Record]) -> str:
    """Return the table with one row for each method."""
    tasks = sorted({record["task"] for record in records}, key=lambda task: int(task[4:-1]))
    columns = (("tours", "tours (%)", ".1f"), ("entries", "entries (%)", ".2f"), ("spread", "spread", ".2f"))
    shown = decisions.show_rows(records, tuple(METHODS), tasks, columns)
    found = [
        f"{task}: an integer program confirms {share:.0f} % of {CHECKED} true tours."
        for task, share in {r["task"]: r["search"] for r in records if r.get("search") is not None}.items()
    ]
    return "\n\n".join([shown, *found])


REPORT = Report.of_module(__doc__, "Tours of the globe", show, "tsp --data-dir DATA --device cuda --jobs 15")
