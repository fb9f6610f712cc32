"""How noisy the sampled gradient of a set is, for each activation of UMBC and size of the chunk.

Claims checked: the gradient of 8 of 512 points is enough to train UMBC, and softmax is the best activation for it
(Willette et al., 2023, arXiv:2208.12401, figures 4c and 7). `clustering` and `activations` find that this depends on
the learning rate; this says how much noise there is.

The task and the networks are those of `clustering`. A model is trained with the full gradient, so that all activations
are compared on the way of a training that works. Then one batch is drawn, and its full gradient is compared with that
of each of 32 random chunks: the root mean square of the difference, relative to the full gradient. Only the encoder is
compared: behind the state the gradient of a sample is exact. clipped: sampled gradients whose norm, with the head, is
above 1, where `clustering` cuts them off.

Results: noise: root mean square of the difference between the sampled and the full gradient of the encoder, in units of
the full gradient. It grows as the loss falls. Softmax is the noisiest after 300 steps, when its loss is also among the
lowest, and less noisy than sigmoid after 1,000: noise alone does not say why only softmax diverges in `clustering`. The
norm is above 1 for every chunk of every size, so that clipping leaves only the direction of a gradient.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.encoders.clustering_fits import Fit, loss_of, train
from benchmarks.encoders.clustering_models import Clusterer
from benchmarks.encoders.mixtures import DEVIATIONS, draw
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

CHUNKS = (8, 32, 128)


@final
@dataclass(frozen=True)
class Trial:
    """A model after some steps with the full gradient."""

    activation: str
    seed: int
    steps: int
    points: int = 512
    batch: int = 16
    dim: int = 128
    slots: int = 64
    rate: float = 1e-3
    draws: int = 32

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.activation}, {self.steps} steps, seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    names = ",".join(ACTIVATIONS)
    parser.add_argument("--activations", default=names, help=f"default: all: {names}")
    parser.add_argument("--steps", type=int, nargs="+", default=(300, 1000), help="of training (default: 300 1000)")
    add_trial_options(parser, seeds=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options."""
    if min(options.steps) < 1:
        raise OptionError(f"--steps must be at least 1, not {min(options.steps)}")
    names = parse_names(options.activations, ACTIVATIONS, "activation")
    if options.quick:
        return [Trial(name, 0, min(*options.steps, 3), points=128, batch=4, dim=16, slots=4, draws=2) for name in names]
    return [Trial(name, seed, steps) for seed in range(options.seeds) for steps in options.steps for name in names]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train, then compare gradients."""
    device = resolve_device(context.device)
    fit = Fit("umbc-st", trial.seed, activation=trial.activation, steps=trial.steps, batch=trial.batch)
    sizes = {"points": trial.points, "dim": trial.dim, "slots": trial.slots, "rate": trial.rate}
    fit = Fit(**{**vars(fit), **sizes})
    model, losses = train(fit, device)
    generator = torch.Generator(device).manual_seed(10**6 + trial.seed)
    points = draw(trial.batch, trial.points, generator, DEVIATIONS[fit.deviations]).points
    noise, clipped = {}, {}
    for chunk in CHUNKS:
        noise[str(chunk)], clipped[str(chunk)] = compare(model, fit, points, chunk, trial.draws)
    summary = ", ".join(f"{chunk}: {value:.2f}" for chunk, value in noise.items())
    return {"noise": noise, "clipped": clipped, "loss": losses[-1], "summary": summary}


def compare(model: Clusterer, fit: Fit, points: Tensor, chunk: int, draws: int) -> tuple[float, float]:
    """Return the relative noise of the encoder's gradient, and the share of gradients with a norm above 1."""
    full, _ = encoder_gradient(model, fit, points, 0)
    sampled = Fit(**{**vars(fit), "gradient": "sample", "chunk": chunk})
    count = points.shape[1] // chunk
    starts = torch.randint(count, (draws,), generator=torch.Generator().manual_seed(0)).tolist()
    drawn = [encoder_gradient(model, sampled, points, chunk * start) for start in starts]
    errors = torch.stack([(grad - full).square().sum() for grad, _ in drawn])
    return float((errors.mean() / full.square().sum()).sqrt()), sum(norm > 1 for _, norm in drawn) / draws


def encoder_gradient(model: Clusterer, fit: Fit, points: Tensor, first: int) -> tuple[Tensor, float]:
    """Return the gradient of phi and attention as one vector, and the norm of the gradient of all parameters."""
    inside = [p for name, p in model.encoder.named_parameters() if not name.startswith(("head.", "norm."))]
    parameters = [*inside, *(p for p in model.parameters() if all(p is not q for q in inside))]
    grads = torch.autograd.grad(loss_of(model, fit, points, first), parameters)
    flat = torch.cat([grad.flatten() for grad in grads[: len(inside)]])
    return flat, float(torch.stack([grad.norm() for grad in grads]).norm())


def show(records: Sequence[Record]) -> str:
    """Return a table with one row for each activation and number of steps."""
    rows = []
    for steps in sorted({record["steps"] for record in records}):
        for name in ACTIVATIONS:
            runs = [record for record in records if (record["activation"], record["steps"]) == (name, steps)]
            if runs:
                noise = [mean_cell([r["noise"][str(chunk)] for r in runs], ".2f") for chunk in CHUNKS]
                clipped = [mean_cell([100 * r["clipped"][str(chunk)] for r in runs], ".0f") for chunk in CHUNKS]
                loss = mean_cell([r["loss"] for r in runs], ".2f")
                rows.append([name, str(steps), loss, *noise, *clipped])
    heads = [*(f"noise, {chunk} points" for chunk in CHUNKS), *(f"clipped, {chunk} (%)" for chunk in CHUNKS)]
    return table(["activation", "steps", "loss", *heads], rows)


REPORT = Report.of_module(__doc__, "Noise of sampled gradients", show, "gradient-noise --device cpu")
