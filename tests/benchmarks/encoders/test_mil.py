"""The benchmark of bags: nothing leaks from test bags, gradients agree, a killed run resumes."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main, make_parser
from benchmarks.encoders.mil import BAGS, SMALL, plan, show_activations, show_folds, show_large
from benchmarks.encoders.mil_digits import DIGITS, NINE, SHAPE, Images, draw_shares, shares_of, small_bags
from benchmarks.encoders.mil_folds import PLAIN, predict_fold, standardised, statistics
from benchmarks.encoders.mil_large import LARGE, WAYS, code, make_encoder, network
from benchmarks.encoders.mil_memory import measure
from benchmarks.encoders.mil_models import POOLS
from benchmarks.lib.records import RunContext
from setgrad.datasets import Bags
from setgrad.sets import Sets
from tests.benchmarks.helpers import Seeded
from tests.encoders.helpers import generator_drawing


def noise(count: int = 300) -> Images:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (count, *SHAPE[1:]), dtype=np.uint8))
    return Images(pixels, np.arange(count) % DIGITS)


def easy_bags(count: int = 80) -> tuple[Sets, torch.Tensor]:
    """Positive bags hold one instance whose first feature is large."""
    rng = np.random.default_rng(1)
    bags = [rng.normal(size=(rng.integers(2, 6), 4)).astype(np.float32) for _ in range(count)]
    for bag in bags[::2]:
        bag[rng.integers(len(bag)), 0] += 6
    return Sets.from_list([torch.from_numpy(bag) for bag in bags]), torch.arange(count) % 2 == 0


def test_scales_come_from_training_bags_alone() -> None:
    sets, labels = easy_bags(6)
    changed = sets.with_values(torch.where(sets.layout.ids[:, None] == 5, 100 * sets.values, sets.values))
    train = np.array([0, 1, 2, 3])
    one, other = (standardised(Bags("x", s, labels, np.arange(6), ""), train) for s in (sets, changed))
    values = one.take(train).values
    torch.testing.assert_close(one[4], other[4])
    assert not torch.allclose(one[5], other[5])
    torch.testing.assert_close(values.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(values.std(0, correction=0), torch.ones(4))


def test_statistics_of_a_bag() -> None:
    (row,) = statistics(Sets.from_list([torch.tensor([[1.0, -2.0], [3.0, 6.0]])]))
    np.testing.assert_allclose(row, [2, 2, 1, -2, 3, 6, np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("model", [*POOLS, *PLAIN])
def test_models_learn_an_easy_task(model: str, seeded: Seeded) -> None:
    sets, labels = easy_bags()
    train, test = np.arange(60), np.arange(60, 80)
    with seeded(0):
        found = predict_fold(model, sets, labels, train, test, 0, 100)
    # With the mean over a bag, one instance of many may have too little effect.
    assert ((found > 0.5) == labels[60:].numpy()).mean() >= 0.85


def test_small_bags_have_the_right_label() -> None:
    images = noise()
    # The first pixel is the digit.
    images.pixels[:, 0, 0] = torch.from_numpy(images.digits)
    sets, labels = small_bags(images, 50, np.random.default_rng(0))
    held = [bool(((bag[:, 0, 0, 0] * 255).round() == NINE).any()) for bag in sets.to_list()]
    assert held == labels.tolist()


def test_shares_are_those_of_the_drawn_images() -> None:
    images = noise()
    pool = np.arange(100)
    bags = draw_shares(images, pool, [40, 60], np.random.default_rng(0))
    assert [len(bag) for bag in bags] == [40, 60] and max(bag.max() for bag in bags) < 100
    shares = shares_of(images, bags)
    assert float(shares[1, 3]) == pytest.approx((bags[1] % 10 == 3).mean())
    torch.testing.assert_close(shares.sum(1), torch.ones(2))


@pytest.mark.parametrize("pool", ["mean", "umbc"])
def test_ways_to_the_gradient(pool: str, seeded: Seeded) -> None:
    images, bags = noise(), [np.arange(0, 50), np.arange(50, 120)]
    with seeded(0):
        encoder = make_encoder(pool, SHAPE, network()).eval()

    def gradient(way: str, rng: Any, generator: torch.Generator | None = None) -> torch.Tensor:
        encoder.zero_grad()
        code(encoder, images, bags, way, 30, rng, generator).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in encoder.phi.parameters() if p.grad is not None])

    def difference(found: torch.Tensor) -> float:
        return float((found - full).norm() / full.norm())

    full = gradient("full", None)
    assert float(full.norm()) > 0
    assert difference(gradient("exact", None)) < 1e-4
    # The bags have three chunks, the last one with nothing of the first bag.
    drawn = [gradient("sample", None, generator_drawing([order])) for order in itertools.permutations(range(3))]
    assert difference(torch.stack(drawn).mean(0)) < 1e-4
    assert min(map(difference, drawn)) > 0.01
    assert difference(gradient("subset", np.random.default_rng(0))) > 0.01


def test_the_whole_graph_takes_more_memory_than_two_passes() -> None:
    full, exact = (measure(3000, way, RunContext(device="cpu"))["bytes"] for way in ("full", "exact"))
    # The two convolutions: at least 16 * 14 * 14 + 32 * 7 * 7 numbers for an image.
    assert full > 3000 * 4 * (3136 + 1568)
    assert exact < full / 2


def test_plan_has_every_set_and_way() -> None:
    trials = plan(make_parser().parse_args(["mil", "--seeds", "2"]))
    assert len(set(trials)) == len(trials)
    folds = [t for t in trials if t.part == "folds"]
    assert len(folds) == 2 * len(BAGS) * (len(POOLS) + len(PLAIN)) and {t.data for t in folds} == set(BAGS)
    assert {t.model for t in trials if t.part == "large"} == set(LARGE)
    assert sum(t.part == "activations" for t in trials) == 2 * len(BAGS) * 5
    assert sum(t.part == "small" for t in trials) == 2 * len(SMALL) * len(POOLS)


def cells(page: str, row: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {row} ")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_spreads_are_those_of_the_folds_of_all_seeds() -> None:
    folds = {0: [80.0, 90.0], 1: [100.0, 90.0]}
    records = [
        {"data": "musk1", "model": "abmil", "seed": seed, "auroc": 90.0 + seed, "fold_accuracies": found}
        for seed, found in folds.items()
    ]
    accuracy, area = show_folds(records).split("## AUROC")
    # The squares of the distances from 90 sum to 200, over three.
    assert cells(accuracy, "abmil") == ["90.0 ± 8.2"] and cells(area, "abmil") == ["90.5 ± 0.7"]
    assert "2 folds, drawn again for each of 2 seeds" in accuracy
    assert "1 folds, cut" not in accuracy and "cut once" in show_folds(records[:1])


def test_activations_have_a_mean_over_complete_seeds() -> None:
    found = {("softmax", 0): (80.0, 90.0), ("softmax", 1): (84.0,), ("slot-exp", 0): (70.0, 60.0)}
    records = [
        {"data": data, "model": f"umbc transformer {name}".removesuffix(" softmax"), "seed": seed, "auroc": area}
        for (name, seed), areas in found.items()
        for data, area in zip(("musk1", "musk2"), areas, strict=False)
    ]
    page = show_activations(records)
    assert cells(page, "softmax") == ["82.0 ± 2.8", "90.0", "85.0"]
    assert cells(page, "slot-exp") == ["70.0", "60.0", "65.0"]


def test_ways_are_compared_on_the_seeds_that_all_have() -> None:
    """A seed that only one way has is left out of its row; poolings are compared separately."""
    errors = {"mean frozen": [1.0, 1.2, 9.0], "mean exact": [0.7, 0.8], "umbc frozen": [1.5], "umbc exact": [1.4]}
    records = [
        {"model": model, "seed": seed, "error": error, "auroc": 99.0, "before": 80.0, "after": 85.0, "peak": None}
        for model, found in errors.items()
        for seed, error in enumerate(found)
    ]
    page = show_large(records)
    assert cells(page, "mean frozen")[:3] == ["2", "1.10 ± 0.14", ""]
    assert cells(page, "mean exact")[:3] == ["2", "0.75 ± 0.07", "-0.35 ± 0.07"]
    assert cells(page, "umbc exact")[:3] == ["1", "1.40", "-0.10"]
    assert "mean sample" not in page


def test_command_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "mil").mkdir()
    (tmp_path / "mnist").mkdir()
    rows = [[bag % 2, bag, *rng.normal(2 * (bag % 2), 1, 166)] for bag in range(24) for _ in range(2)]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / "mil" / "musk1.csv.gz").write_bytes(gzip.compress(text.encode()))
    train, test = (rng.integers(0, 256, (400, 28, 28), dtype=np.uint8) for _ in range(2))
    digits = (np.arange(400) % 10).astype(np.uint8)
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=train, x_test=test, y_train=digits, y_test=digits)
    file, out = tmp_path / "mil.jsonl", tmp_path / "out.json"
    arguments = ["mil", "--quick", "--device", "cpu", "--data-dir", str(tmp_path), "--results", str(file)]
    models = ["--models", "abmil,statistics-logistic", "--json", str(out)]
    assert main([*arguments, "--parts", "folds,small", *models]) == 0
    assert main([*arguments, "--parts", "folds,activations,large", *models]) == 0
    shown = capsys.readouterr().out
    assert "2 of 9 trials are in mil.jsonl; 7 to run" in shown, shown
    assert "gated attention, published" in shown and "| mean exact " in shown and "| sigmoid " in shown
    records = json.loads(out.read_text())["records"]
    assert [r["model"] for r in records if r["part"] == "large"] == list(LARGE[: len(WAYS)])
    tested = [r["probabilities"] for r in records if r["part"] == "folds"]
    # One fold of ten was tested.
    assert all(sum(p is not None for p in row) in (2, 3) and len(row) == 24 for row in tested)
