"""Retrieval: measures are right, every loss improves them, classes of the parts are different, runs resume."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main, make_parser
from benchmarks.discrete import ranking_training
from benchmarks.discrete.ranking import plan
from benchmarks.discrete.ranking_methods import ALL, MODELS, PLAIN, option_values_of
from setgrad.discrete import Ranking
from tests.benchmarks.helpers import Seeded, generator


@pytest.fixture
def digits_dir(tmp_path: Path) -> Path:
    """Instead of MNIST: the lower half depends on the digit, weakly; the upper half only on the image, strongly."""
    (tmp_path / "mnist").mkdir()
    rng = np.random.default_rng(0)
    digits = np.arange(400) % 10
    upper, lower = rng.normal(size=(2, 3, 392))
    known = np.concatenate([30 * rng.normal(size=(400, 3)) @ upper, 6 * rng.normal(size=(10, 3))[digits] @ lower], 1)
    images = (128 + known + 6 * rng.normal(size=known.shape)).clip(0, 255).reshape(400, 28, 28)
    images, digits = images.astype(np.uint8), digits.astype(np.uint8)
    path = tmp_path / "mnist" / "mnist.npz"
    np.savez(path, x_train=images, y_train=digits, x_test=images[:200], y_test=digits[:200])
    return tmp_path


def test_average_precision_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    similarities = torch.randn(6, 30, generator=generator())
    relevant = torch.rand(6, 30, generator=generator(1)) < 0.3
    found = ranking_training.average_precision(Ranking()(similarities), relevant)
    expected = [metrics.average_precision_score(r, s) for r, s in zip(relevant, similarities, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype))


def test_a_query_is_not_in_its_own_list() -> None:
    similarities = torch.arange(16.0).reshape(1, 4, 4)
    others, relevant = ranking_training.without_self(similarities, torch.tensor([0, 0, 1, 1]))
    assert others[0].tolist() == [[1, 2, 3], [4, 6, 7], [8, 9, 11], [12, 13, 14]]
    assert relevant.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]
    codes = torch.nn.functional.one_hot(torch.tensor([[0, 0, 1, 1]])).float()
    assert [value.tolist() for value in ranking_training.score(codes, torch.tensor([0, 0, 1, 1]))] == [[100.0], [100.0]]


@pytest.mark.parametrize("name", list(MODELS))
def test_every_loss_brings_relevant_items_forward(name: str, seeded: Seeded) -> None:
    labels = torch.arange(24) % 3
    start, relevant = ranking_training.without_self(torch.rand(1, 24, 24, generator=generator()) - 0.5, labels)
    before = ranking_training.average_precision(Ranking()(start), relevant.expand_as(start)).mean()
    loss = MODELS[name].make(option_values_of(name)[-2] if len(option_values_of(name)) > 1 else 0.0)
    similarities = start.clone().requires_grad_()
    for _ in range(60):
        with seeded(0):
            (slope,) = torch.autograd.grad(loss(similarities, relevant).sum(), similarities)
        similarities = (similarities - 0.3 * slope / slope.norm().clamp(min=1e-6)).detach().requires_grad_()
    after = ranking_training.average_precision(Ranking()(similarities), relevant.expand_as(similarities)).mean()
    # Blackbox with a short step stops where gaps are longer than the step, so a small gain is enough here.
    assert float(after) > float(before) + (0.01 if "blackbox" in name else 0.15), (before, after)


def test_classes_of_the_parts_are_different(digits_dir: Path) -> None:
    first, second = (
        ranking_training.read_split("mnist", digits_dir, seed, torch.device("cpu"), asked=400) for seed in (0, 1)
    )
    digits = np.concatenate([np.arange(400) % 10, np.arange(200) % 10])
    kinds = [sorted({int(digits[i]) for i in part.flatten()}) for part in first.parts]
    assert tuple(map(len, kinds)) == ranking_training.IMAGES["mnist"].classes and sorted(
        kinds[0] + kinds[1] + kinds[2]
    ) == list(range(10))
    # A row has one class, and queries are from the test half.
    assert all(len({int(digits[i]) for i in row}) == 1 for part in first.parts for row in part)
    assert int(first.parts[2].min()) >= 400 > int(first.parts[1].max())
    assert not torch.equal(first.parts[0], second.parts[0])


@pytest.mark.parametrize("model", ["blackbox loglog", "identity std loglog", "classifier", "lda"])
def test_training_helps_with_new_classes(model: str, digits_dir: Path, seeded: Seeded) -> None:
    from benchmarks.lib.records import RunContext

    def found(name: str, option: float, steps: int) -> list[float]:
        trial = ranking_training.Trial("mnist", name, option, 2e-3, steps, 2, hidden=64, dim=16, asked=20)
        with seeded(0):
            values: list[float] = ranking_training.attempt(trial, RunContext("cpu", str(digits_dir)))["map"]
        return values

    if model == "lda":
        pytest.importorskip("sklearn")
    plain = found("random network", 0.0, 0)
    learnt = found(model, option_values_of(model)[-2 if len(option_values_of(model)) > 1 else 0], 40)
    assert len(learnt) == 2 and sum(learnt) > sum(plain) + 20, (learnt, plain)


def test_plan_tries_every_option_value() -> None:
    trials = plan(make_parser().parse_args(["ranking", "--seeds", "2", "--images", "olivetti"]))
    assert len(set(trials)) == len(trials) and {t.model for t in trials} == set(ALL)
    assert sum(t.model == "triplet" for t in trials) == 2 * len(option_values_of("triplet"))
    assert all(t.steps == 0 for t in trials if t.model in PLAIN)


def test_command_resumes(digits_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "ranking.jsonl", tmp_path / "out.json"
    arguments = ["ranking", "--quick", "--device", "cpu", "--images", "mnist", "--data-dir", str(digits_dir)]
    arguments += ["--results", str(file), "--json", str(out)]
    assert main([*arguments, "--models", "triplet,pixels"]) == 0
    assert main([*arguments, "--models", "triplet,pixels,identity std loglog"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 3 trials are in ranking.jsonl; 1 to run" in shown and "| identity std loglog " in shown
    records = {r["model"]: r for r in json.loads(out.read_text())["records"]}
    assert records["pixels"]["recall"][0] > 20 and len(records["triplet"]["curve"]) == 2
    assert str(tmp_path) not in file.read_text(), "records have no folder of this machine"
