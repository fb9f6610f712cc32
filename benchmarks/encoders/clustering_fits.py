"""Fits of the clustering experiments: training, evaluation, records, and saved models.

Models are saved beside the records, in a folder of the same name, so that the experiments share them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.encoders.clustering_models import CONTENDERS, Clusterer, Sizes, as_sets, make, unit_weights
from benchmarks.encoders.mixtures import DEVIATIONS, Draw, Mixture, draw
from benchmarks.lib.machine import describe, memory_peak, reset_peak, synchronize
from benchmarks.lib.records import Record, RunContext, current_commit, read_records
from benchmarks.lib.trials import add_trial_options, answers, command_line, run_trials
from setgrad.encoders import MergeableEncoder, State
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

RESULTS = Path("benchmarks/results/clustering.jsonl")
GRADIENTS = ("full", "sample", "unweighted", "subset")
TEST_SEED, TEST_BATCH = 10**6, 100
# Points of a test set, and how many of them the model reads.
LARGEST, READS = 1024, (8, 32, 128, 512, 1024)


@final
@dataclass(frozen=True)
class Fit:
    """One fit. All fields shape the result.

    `gradient` is "full"; "sample": all points are read, `chunk` of them with a graph, weighted so that the mean is the
    full gradient; "unweighted": the same without weights; or "subset": training sets have only `chunk` points.
    """

    model: str
    seed: int
    gradient: str = "full"
    chunk: int = 8
    activation: str = "softmax"
    steps: int = 6000
    batch: int = 16
    points: int = 512
    dim: int = 128
    slots: int = 64
    rate: float = 2e-3
    deviations: str = "code"
    tests: int = 2000

    @property
    def sizes(self) -> Sizes:
        """The sizes of the model."""
        return Sizes(2, self.dim, self.slots)

    @property
    def label(self) -> str:
        """A name for files: the compared settings, and a checksum of all."""
        rest = sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.model}-{self.activation}-{self.gradient}{self.chunk}-{self.seed}-{rest}"


def add_options(parser: argparse.ArgumentParser, *, seeds: int) -> None:
    """Add the options that all experiments on these models share."""
    parser.add_argument("--steps", type=int, default=Fit.steps, help=f"training steps (default: {Fit.steps})")
    parser.add_argument("--batch", type=int, default=Fit.batch, help=f"sets in a step (default: {Fit.batch})")
    parser.add_argument("--points", type=int, default=Fit.points, help=f"points of a set (default: {Fit.points})")
    parser.add_argument("--rate", type=float, default=Fit.rate, help=f"learning rate (default: {Fit.rate})")
    parser.add_argument("--dim", type=int, default=Fit.dim, help=f"dimension of codes (default: {Fit.dim})")
    parser.add_argument("--slots", type=int, default=Fit.slots, help=f"slots (default: {Fit.slots})")
    parser.add_argument("--tests", type=int, default=Fit.tests, help=f"test sets (default: {Fit.tests})")
    parser.add_argument(
        "--deviations",
        choices=tuple(DEVIATIONS),
        default="code",
        help="of the Gaussians: 0.1 to 0.6 as in the published code, or 0.3 to 0.6 as in its text (default: code)",
    )
    add_trial_options(parser, seeds=seeds, unit="fit")


def base_fit(options: argparse.Namespace) -> Fit:
    """Return a fit with the sizes of the options."""
    names = ("steps", "batch", "points", "dim", "slots", "rate", "deviations", "tests")
    fit = Fit("umbc-st", 0, **{name: getattr(options, name) for name in names})
    if min(fit.steps, fit.batch, fit.dim, fit.slots, fit.tests) < 1 or fit.points % fit.chunk:
        raise OptionError(f"sizes must be at least 1, and --points a multiple of {fit.chunk}, not {fit.points}")
    if options.quick:
        return replace(fit, steps=min(fit.steps, 30), batch=8, points=64, dim=32, slots=8, tests=20)
    return fit


def sampled_code(model: Clusterer, points: Tensor, first: int, chunk: int, *, weighted: bool = True) -> Tensor:
    """Return codes of whole sets, of which only points `first` to `first + chunk` have a graph.

    The chunk is read twice, and a term of value 0 is added whose derivative is that of the chunk, weighted by the
    inverse of its share.
    """
    encoder = model.encoder
    if not isinstance(encoder, MergeableEncoder):
        raise OptionError("only encoders with a state can be differentiated in chunks; use gradient='full' or 'subset'")
    weight = points.shape[1] / chunk if weighted else 1.0
    queries, chosen = encoder.queries(), as_sets(points[:, first : first + chunk])
    with torch.no_grad():
        sets = as_sets(points)
        whole = encoder.read(sets, unit_weights(sets), queries, None)
    part = encoder.read(chosen, unit_weights(chosen), queries, whole.level)
    sums = tuple(a + weight * (b - b.detach()) for a, b in zip(whole.sums, part.sums, strict=True))
    return encoder.finish(State(sums, whole.level, whole.count, queries))


def loss_of(model: Clusterer, fit: Fit, points: Tensor, first: int) -> Tensor:
    """Return the mean negative log-likelihood of a batch, with the gradient of the fit."""
    if fit.gradient in ("full", "subset"):
        code = model.code(as_sets(points))
    else:
        code = sampled_code(model, points, first, fit.chunk, weighted=fit.gradient == "sample")
    return model.mixture(code).nll(points).mean()


def train(fit: Fit, device: torch.device) -> tuple[Clusterer, list[float]]:
    """Train a model and return it with the mean loss of each tenth of the steps."""
    model = make(fit.model, fit.sizes, activation=fit.activation, seed=fit.seed).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=fit.rate, fused=device.type == "cuda")
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_rate, steps=fit.steps))
    generator = torch.Generator(device).manual_seed(fit.seed)
    chooser = torch.Generator().manual_seed(fit.seed)
    size = fit.chunk if fit.gradient == "subset" else fit.points
    losses = torch.zeros(fit.steps, device=device)
    for step in range(fit.steps):
        points = draw(fit.batch, size, generator, DEVIATIONS[fit.deviations]).points
        first = fit.chunk * int(torch.randint(max(1, size // fit.chunk), (), generator=chooser))
        loss = loss_of(model, fit, points, first)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        losses[step] = loss.detach()
    tenths = [float(part.mean()) for part in losses.tensor_split(10) if len(part)]
    return model.eval(), tenths


def _rate(step: int, *, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over a fiftieth of the steps, then cosine decay to 0."""
    return min(1.0, 50 * (step + 1) / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


def code_of(model: Clusterer, points: Tensor, chunk: int | None) -> Tensor:
    """Return codes of sets `(b, n, 2)`: of the whole sets, or the mean of the codes of their chunks."""
    if chunk is None or chunk >= points.shape[1]:
        return model.code(as_sets(points))
    batch, count, dim = points.shape
    return model.code(as_sets(points.reshape(batch * count // chunk, chunk, dim))).unflatten(0, (batch, -1)).mean(1)


def evaluation_sets(fit: Fit, device: torch.device) -> Iterator[Draw]:
    """Yield the test sets in batches, the same on every device."""
    for sets in _drawn(fit.tests, fit.deviations):
        truth = Mixture(*(t.to(device) for t in (sets.truth.log_weights, sets.truth.means, sets.truth.deviations)))
        yield Draw(sets.points.to(device), sets.labels.to(device), truth)


@lru_cache(maxsize=1)
def _drawn(tests: int, deviations: str) -> list[Draw]:
    generator = torch.Generator().manual_seed(TEST_SEED)
    sizes = [min(TEST_BATCH, tests - start) for start in range(0, tests, TEST_BATCH)]
    return [draw(count, LARGEST, generator, DEVIATIONS[deviations]) for count in sizes]


@torch.no_grad()
def evaluate(model: Clusterer, fit: Fit, device: torch.device) -> dict[str, float]:
    """Return the negative log-likelihood of sets of 1,024 points, by how many of them the model read.

    An encoder without a state that was trained on chunks reads chunks; all others read the points at once.
    """
    in_chunks = fit.gradient == "subset" and not CONTENDERS[fit.model].consistent
    totals = dict.fromkeys(READS, 0.0)
    for sets in evaluation_sets(fit, device):
        for count in READS:
            code = code_of(model, sets.points[:, :count], fit.chunk if in_chunks else None)
            totals[count] += float(model.mixture(code).nll(sets.points).sum())
    return {str(count): total / fit.tests for count, total in totals.items()}


def attempt(fit: Fit, context: RunContext, folder: str) -> Record:
    """Train and evaluate; save the model of the first seed in the folder."""
    device = resolve_device(context.device)
    if device.type == "cuda":
        torch.cuda.init()
    reset_peak(device)
    started = time.perf_counter()
    model, losses = train(fit, device)
    synchronize(device)
    seconds, peak = time.perf_counter() - started, memory_peak(device)
    nll = evaluate(model, fit, device)
    if fit.seed == 0:
        save(model, Path(folder) / f"{fit.label}.safetensors")
    return {
        "nll": nll,
        "losses": losses,
        "seconds": round(seconds, 2),
        "peak_memory": peak,
        "parameters": sum(p.numel() for p in model.parameters()),
        "summary": ", ".join(f"{value:.3f}" for value in nll.values()),
    }


def save(model: Clusterer, path: Path) -> None:
    """Write the weights; a file is complete or not there."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.draft")
    save_file({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}, draft)
    draft.replace(path)


def load(fit: Fit, results: Path) -> Clusterer:
    """Return the saved model of a fit, on the CPU."""
    from safetensors.torch import load_file

    model = make(fit.model, fit.sizes, activation=fit.activation)
    model.load_state_dict(load_file(model_file(fit, results)))
    return model.eval()


def model_file(fit: Fit, results: Path) -> Path:
    """Return the file of the saved model of a fit."""
    return results.with_suffix("") / f"{fit.label}.safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """Return the results that `--json` wrote."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {error}; --shown takes a file that --json wrote") from None


def origin_of(options: argparse.Namespace) -> Record:
    """Return command, commit, device and torch version."""
    machine = describe(resolve_device(options.device))
    origin = {"commit": current_commit(), "command": command_line(options)}
    return {**origin, "device": machine["device"], "torch": machine["torch"]}


def run_fits(
    fits: Sequence[Fit], options: argparse.Namespace, results: Path, *, models: bool = False
) -> tuple[dict[Fit, Record], int]:
    """Run the fits that have no record (or, with `models`, no saved model), longest first.

    With --table nothing runs, and the records of all fits of the file are returned.

    Returns:
        The record of each fit, and how many fits failed.
    """
    if options.table is not None:
        names = [field.name for field in fields(Fit)]
        records = [record for record in read_records(results) if "model" in record]
        return {Fit(**{name: record[name] for name in names}): record for record in records}, 0
    ordered = sorted(fits, key=lambda fit: -_cost(fit))
    work = partial(attempt, folder=str(results.with_suffix("")))
    is_saved = (lambda fit: model_file(fit, results).is_file()) if models else None
    failed = run_trials(ordered, work, options, results, is_complete=is_saved)
    return answers(fits, read_records(results)), failed


def _cost(fit: Fit) -> float:
    share = {"full": 1.0, "sample": 0.6, "unweighted": 0.6, "subset": 0.4}[fit.gradient]
    return share * CONTENDERS[fit.model].cost * fit.steps
