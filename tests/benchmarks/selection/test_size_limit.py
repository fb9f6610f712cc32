"""The benchmark of the size: draws have the frequencies of the distribution, and scores those of enumeration."""

from itertools import permutations

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.selection.size_limit import draw, jaccard_rows, likeliest_end, score_draws
from setgrad.functions import Modular
from setgrad.sets import Sets

SETS = Sets.from_list([[[0.5], [-0.4], [1.1]], [[0.2], [0.3], [-0.9]]])
TAU, END = 1.5, 0.7


def enumerate_set(worth):
    """Return the probability of each subset, by adding up all orders in which its items may join."""
    odds, end = torch.tensor(worth, dtype=torch.float64).mul(TAU).exp(), torch.tensor(END).double().exp()
    chances: dict[frozenset[int], float] = {}
    for size in range(len(worth) + 1):
        for order in permutations(range(len(worth)), size):
            chance, left = torch.tensor(1.0).double(), set(range(len(worth)))
            for item in order:
                chance = chance * odds[item] / (end + sum(odds[i] for i in left))
                left.remove(item)
            # Nothing is left to join in the whole set.
            chance = chance * (end / (end + sum(odds[i] for i in left)))
            chances[frozenset(order)] = chances.get(frozenset(order), 0.0) + float(chance)
    return chances


def test_draws_have_the_frequencies_of_the_distribution():
    drawn = draw(Modular(), SETS, TAU, END, 4000, torch.Generator().manual_seed(0))
    for number, part in enumerate(drawn.split(3, dim=1)):
        chances = enumerate_set(SETS[number][:, 0].tolist())
        assert sum(chances.values()) == pytest.approx(1)
        for subset, chance in chances.items():
            row = torch.tensor([item in subset for item in range(3)])
            found = float((part == row).all(1).double().mean())
            assert found == pytest.approx(chance, abs=4 * (chance * (1 - chance) / 4000) ** 0.5)


def test_scores_are_those_of_enumeration():
    known, best = score_draws(Modular(), SETS, TAU, END, 4000, torch.Generator().manual_seed(0))
    expected_known, expected_best = [], []
    for items in SETS:
        worth = items[:, 0]
        order = worth.argsort(descending=True).tolist()
        prefixes = [set(order[:size]) for size in range(4)]
        chances = enumerate_set(worth.tolist())
        expected_known.append(sum(chance * score(prefixes[len(subset)], subset) for subset, chance in chances.items()))
        expected_best.append(
            max(sum(chance * score(prefix, subset) for subset, chance in chances.items()) for prefix in prefixes)
        )
    assert known == pytest.approx(50 * sum(expected_known), abs=1.5)
    assert best == pytest.approx(50 * sum(expected_best), abs=1.5)


def score(first, second):
    return len(first & second) / len(first | second) if first | second else 1.0


def test_the_end_is_the_likeliest():
    generator = torch.Generator().manual_seed(0)
    totals, ends = torch.randn(200, generator=generator).double(), torch.rand(200, generator=generator) < 0.3
    grid = torch.linspace(-5, 5, 2001).double()
    chances = torch.sigmoid(grid[:, None] - totals)
    likelihood = torch.where(ends, chances, 1 - chances).log().sum(1)
    assert likeliest_end(totals, ends.double()) == pytest.approx(float(grid[likelihood.argmax()]), abs=0.005)


def test_jaccard_of_rows():
    mask, rows = (
        torch.tensor([True, False, True, False, False, False]),
        torch.tensor([[True, True, True, False] + [False] * 2]),
    )
    assert jaccard_rows(mask, rows, SETS).tolist() == [[pytest.approx(2 / 3), 1.0]]


def test_command(tmp_path, capsys):
    command = ["size-limit", "--quick", "--device", "cpu", "--results", str(tmp_path / "r.jsonl")]
    models = tmp_path / "models"
    assert main([*command, "--models-dir", str(models)]) == 0
    assert "drawn, lost" in capsys.readouterr().out
    # The fitted model is there for other benchmarks.
    (folder,) = models.iterdir()
    assert (folder / "config.json").is_file()
    others = ["recall", "--quick", "--tasks", "digits", "--models", "conditional-single", *command[2:4]]
    assert main([*others, "--results", str(tmp_path / "s.jsonl"), "--models-dir", str(models)]) == 0
    assert list(models.iterdir()) == [folder]
