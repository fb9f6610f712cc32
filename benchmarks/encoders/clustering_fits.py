"""Fits of the clustering experiment: one is trained, judged, kept; a file of results that a killed run goes on from.

Models are kept beside the results, in a folder of the same name, so that the experiments share them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.encoders.clustering_models import CONTENDERS, Clusterer, Sizes, as_sets, make, unit_weights
from benchmarks.encoders.mixtures import DEVIATIONS, Draw, Mixture, draw
from benchmarks.lib.device import resolve_device
from benchmarks.lib.machine import describe, forget_peak, memory_peak, wait
from benchmarks.lib.parallel import outcomes
from benchmarks.lib.records import Record, append_record, current_commit, read_records
from benchmarks.lib.trials import command_line
from setgrad.encoders import MergeableEncoder, State
from setgrad.errors import OptionError

USUAL = Path("benchmarks/results/clustering.jsonl")
GRADIENTS = ("full", "sample", "unweighted", "subset")
TEST_SEED, TEST_BATCH = 10**6, 100
# Points of a set that is judged, and how many of them the model gets to read.
LARGEST, READS = 1024, (8, 32, 128, 512, 1024)


@final
@dataclass(frozen=True)
class Fit:
    """One fit. All of it shapes the result.

    `gradient` is "full"; "sample": all points are read, `piece` of them with a graph, weighted so that the mean is the
    full gradient; "unweighted": the same without weights; or "subset": sets have `piece` points and no more.
    """

    model: str
    seed: int
    gradient: str = "full"
    piece: int = 8
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
        """Widths of the model."""
        return Sizes(2, self.dim, self.slots)

    @property
    def name(self) -> str:
        """A name for files: what is compared, and a sum of all the rest."""
        rest = sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.model}-{self.activation}-{self.gradient}{self.piece}-{self.seed}-{rest}"


def add_options(parser: argparse.ArgumentParser, *, seeds: int) -> None:
    """Add what every experiment on these models can be told."""
    parser.add_argument("--steps", type=int, default=Fit.steps, help=f"training steps (default: {Fit.steps})")
    parser.add_argument("--batch", type=int, default=Fit.batch, help=f"sets in a step (default: {Fit.batch})")
    parser.add_argument("--points", type=int, default=Fit.points, help=f"points of a set (default: {Fit.points})")
    parser.add_argument("--rate", type=float, default=Fit.rate, help=f"learning rate (default: {Fit.rate})")
    parser.add_argument("--dim", type=int, default=Fit.dim, help=f"dimension of codes (default: {Fit.dim})")
    parser.add_argument("--slots", type=int, default=Fit.slots, help=f"slots (default: {Fit.slots})")
    parser.add_argument("--tests", type=int, default=Fit.tests, help=f"sets to judge on (default: {Fit.tests})")
    parser.add_argument(
        "--deviations",
        choices=tuple(DEVIATIONS),
        default="code",
        help="of the Gaussians: 0.1 to 0.6 as in the published code, or 0.3 to 0.6 as in its text (default: code)",
    )
    parser.add_argument("--seeds", type=int, default=seeds, help=f"seeds 0, 1, ... (default: {seeds})")
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time, each with one thread (default: 1)")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"file to go on from (default: {USUAL})")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="start no new fit after this time")


def base_fit(options: argparse.Namespace) -> Fit:
    """A fit with the sizes that were asked for."""
    fit = Fit(
        "umbc-st",
        0,
        steps=options.steps,
        batch=options.batch,
        points=options.points,
        dim=options.dim,
        slots=options.slots,
        rate=options.rate,
        deviations=options.deviations,
        tests=options.tests,
    )
    if min(fit.steps, fit.batch, fit.dim, fit.slots, fit.tests) < 1 or fit.points % fit.piece:
        raise OptionError(f"sizes must be at least 1, and --points a multiple of {fit.piece}, not {fit.points}")
    if options.quick:
        return replace(fit, steps=min(fit.steps, 30), batch=8, points=64, dim=32, slots=8, tests=20)
    return fit


def sampled_code(model: Clusterer, points: Tensor, first: int, piece: int, *, weighted: bool = True) -> Tensor:
    """Codes of whole sets, of which only points `first` to `first + piece` have a graph.

    The sums of the piece are read twice, and what is added is 0, but for its derivative: that of the piece, weighted by
    the inverse of its share.
    """
    encoder = model.encoder
    if not isinstance(encoder, MergeableEncoder):
        raise OptionError("only encoders with a state can be differentiated in part; use gradient='full' or 'subset'")
    weight = points.shape[1] / piece if weighted else 1.0
    queries, chosen = encoder.queries(), as_sets(points[:, first : first + piece])
    with torch.no_grad():
        sets = as_sets(points)
        whole = encoder.read(sets, unit_weights(sets), queries, None)
    part = encoder.read(chosen, unit_weights(chosen), queries, whole.level)
    sums = tuple(a + weight * (b - b.detach()) for a, b in zip(whole.sums, part.sums, strict=True))
    return encoder.finish(State(sums, whole.level, whole.count, queries))


def loss_of(model: Clusterer, fit: Fit, points: Tensor, first: int) -> Tensor:
    """Mean negative log-likelihood of a batch, with the gradient that the fit asks for."""
    if fit.gradient in ("full", "subset"):
        code = model.code(as_sets(points))
    else:
        code = sampled_code(model, points, first, fit.piece, weighted=fit.gradient == "sample")
    return model.mixture(code).nll(points).mean()


def train(fit: Fit, device: torch.device) -> tuple[Clusterer, list[float]]:
    """Train a model; return it with the mean loss of each tenth of the steps."""
    model = make(fit.model, fit.sizes, activation=fit.activation, seed=fit.seed).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=fit.rate, fused=device.type == "cuda")
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_rate, steps=fit.steps))
    generator = torch.Generator(device).manual_seed(fit.seed)
    chooser = torch.Generator().manual_seed(fit.seed)
    size = fit.piece if fit.gradient == "subset" else fit.points
    losses = torch.zeros(fit.steps, device=device)
    for step in range(fit.steps):
        points = draw(fit.batch, size, generator, DEVIATIONS[fit.deviations]).points
        first = fit.piece * int(torch.randint(max(1, size // fit.piece), (), generator=chooser))
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
    """Up in a straight line over the first fiftieth, then down to 0 along half a cosine."""
    return min(1.0, 50 * (step + 1) / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


def code_of(model: Clusterer, points: Tensor, piece: int | None) -> Tensor:
    """Codes of sets `(b, n, 2)`: whole, or as the mean of the codes of pieces."""
    if piece is None or piece >= points.shape[1]:
        return model.code(as_sets(points))
    batch, count, dim = points.shape
    return model.code(as_sets(points.reshape(batch * count // piece, piece, dim))).unflatten(0, (batch, -1)).mean(1)


def judged_sets(fit: Fit, device: torch.device) -> Iterator[Draw]:
    """The sets that all are judged on, the same on every device, in batches."""
    for found in _drawn(fit.tests, fit.deviations):
        truth = Mixture(*(t.to(device) for t in (found.truth.log_weights, found.truth.means, found.truth.deviations)))
        yield Draw(found.points.to(device), found.labels.to(device), truth)


@lru_cache(maxsize=1)
def _drawn(tests: int, deviations: str) -> list[Draw]:
    generator = torch.Generator().manual_seed(TEST_SEED)
    sizes = [min(TEST_BATCH, tests - start) for start in range(0, tests, TEST_BATCH)]
    return [draw(count, LARGEST, generator, DEVIATIONS[deviations]) for count in sizes]


@torch.no_grad()
def judge(model: Clusterer, fit: Fit, device: torch.device) -> dict[str, float]:
    """Negative log-likelihood of sets of 1,024 points, by how many of them the model read.

    An encoder without a state that was trained on pieces reads pieces; all others read the points at once.
    """
    pieces = fit.gradient == "subset" and not CONTENDERS[fit.model].consistent
    totals = dict.fromkeys(READS, 0.0)
    for sets in judged_sets(fit, device):
        for count in READS:
            code = code_of(model, sets.points[:, :count], fit.piece if pieces else None)
            totals[count] += float(model.mixture(code).nll(sets.points).sum())
    return {str(count): total / fit.tests for count, total in totals.items()}


def perform(fit: Fit, device_name: str | None, folder: str, origin: Record) -> Record | str:
    """Train, judge, keep the model of the first seed; a record, or what went wrong."""
    try:
        device = resolve_device(device_name)
        if device.type == "cuda":
            torch.cuda.init()
        forget_peak(device)
        started = time.perf_counter()
        model, losses = train(fit, device)
        wait(device)
        seconds, peak = time.perf_counter() - started, memory_peak(device)
        record = {
            **asdict(fit),
            "nll": judge(model, fit, device),
            "losses": losses,
            "seconds": round(seconds, 2),
            "peak_memory": peak,
            "parameters": sum(p.numel() for p in model.parameters()),
            **origin,
        }
        if fit.seed == 0:
            save(model, Path(folder) / f"{fit.name}.safetensors")
        return record
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def save(model: Clusterer, path: Path) -> None:
    """Write the weights, all or nothing."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.draft")
    save_file({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}, draft)
    draft.replace(path)


def load(fit: Fit, results: Path) -> Clusterer:
    """The kept model of a fit, on the CPU."""
    from safetensors.torch import load_file

    model = make(fit.model, fit.sizes, activation=fit.activation)
    model.load_state_dict(load_file(model_file(fit, results)))
    return model.eval()


def model_file(fit: Fit, results: Path) -> Path:
    """Where the model of a fit is kept."""
    return results.with_suffix("") / f"{fit.name}.safetensors"


@contextmanager
def results_file(options: argparse.Namespace) -> Iterator[Path]:
    """The file of results: a passing one for quick runs that name none."""
    if options.quick and options.results is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / USUAL.name
    else:
        yield options.results or USUAL


def read_found(path: Path) -> dict[str, Any]:
    """What `--json` wrote."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {error}; --shown takes a file that --json wrote") from None


def origin_of(options: argparse.Namespace) -> Record:
    """The command, the commit and the device, for results that are kept."""
    machine = describe(resolve_device(options.device))
    return {
        "commit": current_commit(),
        "command": command_line(options),
        "device": machine["device"],
        "torch": machine["torch"],
    }


def records_of(fits: Sequence[Fit], records: Sequence[Record]) -> dict[Fit, Record]:
    """The latest record of each fit that has one."""
    fields = tuple(asdict(fits[0])) if fits else ()
    latest = {tuple(record.get(field) for field in fields): record for record in records}
    found = {fit: latest.get(tuple(asdict(fit).values())) for fit in fits}
    return {fit: record for fit, record in found.items() if record is not None}


def run_missing(
    fits: Sequence[Fit], options: argparse.Namespace, results: Path, *, models: bool = False
) -> tuple[dict[Fit, Record], int]:
    """Do the fits that the file lacks (or whose models are not there, if needed), longest first.

    Returns the records of all fits, and how many failed.
    """
    known = records_of(fits, read_records(results))
    missing = [fit for fit in fits if fit not in known or (models and not model_file(fit, results).is_file())]
    missing.sort(key=lambda fit: -_cost(fit))
    print(f"{len(fits) - len(missing)} of {len(fits)} fits are in {results}; {len(missing)} to go", flush=True)
    work = partial(perform, device_name=options.device, folder=str(results.with_suffix("")), origin=origin_of(options))
    ends = math.inf if options.time_limit is None else time.monotonic() + options.time_limit
    failed = 0
    for number, (fit, outcome) in enumerate(outcomes(missing, work, workers=options.jobs, ends=ends), 1):
        if isinstance(outcome, str):
            failed += 1
            print(f"{fit.name} failed: {outcome}", file=sys.stderr, flush=True)
            continue
        append_record(results, outcome)
        scores = ", ".join(f"{value:.3f}" for value in outcome["nll"].values())
        print(f"[{number}/{len(missing)}] {fit.name}: {scores}, {outcome['seconds']:.0f} s", flush=True)
    return records_of(fits, read_records(results)), failed


def _cost(fit: Fit) -> float:
    share = {"full": 1.0, "sample": 0.6, "unweighted": 0.6, "subset": 0.4}[fit.gradient]
    return share * CONTENDERS[fit.model].cost * fit.steps
