"""The benchmark of F as a utility: exchanges against a loop, and the whole command at a tiny size."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.__main__ import main
from benchmarks.selection.utility import score_swaps, score_utility, show
from setgrad import SubsetSelector
from setgrad.datasets import load_task
from setgrad.functions import FromCallable, Modular
from setgrad.sets import Choices


def _bent(items: Tensor, masks: Tensor) -> Tensor:
    return torch.sin(3 * masks.to(items.dtype) @ items).sum(1)


def test_swaps_equal_a_loop_over_all_exchanges() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 0, 1, 4, 2] * 9
    items = [torch.rand(n, 2, generator=generator) for n in lengths]
    # Nothing, something or everything is chosen.
    masks = [torch.rand(n, generator=generator) < (i % 4) / 3 for i, n in enumerate(lengths)]
    choices = Choices.of(items, masks)
    lower, best = [], []
    for x, mask in zip(items, masks, strict=True):
        right = _bent(x.double(), mask[None])[0]
        found = []
        for i in mask.nonzero()[:, 0].tolist():
            for j in (~mask).nonzero()[:, 0].tolist():
                other = mask.clone()
                other[i], other[j] = False, True
                found.append(bool(_bent(x.double(), other[None])[0] < right))
        lower += found
        best += [all(found)] if found else []
    scores = score_swaps(FromCallable(_bent), choices)
    assert scores["swaps"] == pytest.approx(100 * sum(lower) / len(lower))
    assert scores["best"] == pytest.approx(100 * sum(best) / len(best))
    assert 5 < scores["best"] < scores["swaps"] < 95


def test_the_best_items_win_every_exchange() -> None:
    items = [[[3.0], [1.0], [2.0]], [[5.0], [7.0]]]
    assert score_swaps(Modular(), Choices.of(items, [[0, 2], [1]])) == {"swaps": 100.0, "best": 100.0}
    # 1 is chosen instead of 2: of the exchanges of the first set one of two is right.
    found = score_swaps(Modular(), Choices.of(items, [[0, 1], [1]]))
    assert found == {"swaps": pytest.approx(100 * 2 / 3), "best": 50.0}
    # Equal values are not larger.
    assert score_swaps(Modular(), Choices.of([[[1.0], [1.0]]], [[0]])) == {"swaps": 0.0, "best": 0.0}


def test_scores_are_those_of_the_selector() -> None:
    task = load_task("moons", n_train=30, n_validation=10, n_test=10)
    selector = SubsetSelector(dim=16, hidden=(16,), max_epochs=2, random_state=0, verbose=0, device="cpu")
    selector.fit(*task.train, validation=task.validation)
    found = score_utility(selector, task.test)
    assert found["true_size"] == pytest.approx(100 * selector.score_true_size(*task.test))
    assert found["own_size"] == pytest.approx(100 * selector.score(*task.test))
    assert all(0 <= found[name] <= 100 for name in ("greedy", "local", "swaps", "best"))


def test_runs_and_renders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "u.jsonl"
    run = ["utility", "--quick", "--device", "cpu", "--results", str(results), "--seeds", "1"]
    assert main([*run, "--models", "conditional-single,implicit"]) == 0
    assert "0 of 2 trials" in capsys.readouterr().out
    page = results.with_suffix(".md").read_text()
    assert page.startswith("# Is the learned function a utility?")
    assert "moons, conditional-single" in page and "moons, implicit" in page
    assert main(["utility", "--table", str(results)]) == 0
    assert capsys.readouterr().out.strip() == page.strip()


def test_search_is_compared_with_predict_by_fold() -> None:
    records = [
        {
            "task": "moons",
            "model": "unrolled-single",
            "seed": seed,
            "splits": "folds",
            "true_size": 90.0,
            "greedy": 30.0 + 2 * seed,
            "local": 90.0,
            "completion": 90.0,
            "own_size": 80.0,
            "swaps": 70.0,
            "best": 10.0,
        }
        for seed in range(2)
    ]
    row = [cell.strip() for cell in show(records).splitlines()[2].strip("|").split("|")]
    # Differences -60 and -58: mean -59, error 1.
    assert row[0] == "moons, unrolled-single" and row[2] == "31.0 ± 1.4"
    assert row[-3:] == ["-59.0 = -59.0 se", "+0.0 = +0.0 se", "+0.0 = +0.0 se"]
