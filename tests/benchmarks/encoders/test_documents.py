"""News as sets of words: splits keep copies together, scores are right, chunks have the gradients of whole sets."""

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from benchmarks.__main__ import main
from benchmarks.encoders import documents, documents_fits
from benchmarks.encoders.reuters import cut, near_copies, read_news, vocabulary
from setgrad.sets import Sets
from tests.benchmarks.helpers import Seeded

SUBJECTS = {"grain": "wheat corn barley harvest", "money": "bank dollar rate bond", "ship": "port vessel cargo strike"}


@pytest.fixture
def news_dir(tmp_path: Path) -> Path:
    """A hundred and twenty stories whose words depend on the topic."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "reuters21578"
    folder.mkdir()
    with gzip.open(folder / "reuters_topics.jsonl.gz", "wt", encoding="utf-8") as file:
        for number in range(120):
            topic = list(SUBJECTS)[number % 3]
            words = rng.choice([*SUBJECTS[topic].split(), "said", "1987", "mln"], rng.integers(10, 60))
            file.write(json.dumps({"title": topic.upper(), "body": " ".join(words), "topics": [topic]}) + "\n")
    return tmp_path


def test_near_copies_are_in_one_part() -> None:
    rng = np.random.default_rng(1)
    stories = [[str(n) for n in rng.integers(0, 1000, 40)] for _ in range(60)]
    # Ten stories again with another beginning, and one of them a third time, from the second.
    copies = [["other", "words", *story[10:]] for story in stories[:10]]
    groups = near_copies([*stories, *copies, ["new", *copies[0][12:]]])
    assert groups[:10].tolist() == groups[60:70].tolist() and groups[70] == groups[0]
    assert len(set(groups.tolist())) == 60
    parts = cut(groups, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(71))
    assert not set(groups[parts[0]]) & set(groups[parts[2]]) and not set(groups[parts[1]]) & set(groups[parts[2]])
    assert [len(set(groups[part])) for part in parts] == [42, 6, 12]


def test_scores_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    chosen, truth = rng.random((2, 30, 5)) < 0.4
    assert documents_fits.micro_f1(chosen, truth) == pytest.approx(f1_score(truth, chosen, average="micro"))
    assert documents_fits.macro_f1(chosen, truth) == pytest.approx(f1_score(truth, chosen, average="macro"))
    scores = rng.standard_normal((30, 5))
    best = max(documents_fits.micro_f1(scores > level, truth) for level in np.linspace(-4, 4, 2001))
    assert documents_fits.micro_f1(scores > documents_fits.best_threshold(scores, truth), truth) >= best


def test_words_of_the_test_part_are_unknown(news_dir: Path) -> None:
    news = read_news(str(news_dir))
    assert news.topics == sorted(SUBJECTS) and news.labels.sum() == 120
    assert "#" in news.words[0] and "1987" not in news.words[0]
    assert vocabulary([["a", "b"], ["a", "a"], ["a"]], fewest=2) == {"a": 1}


def test_batches_and_chunks_have_all_items() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 50, 100)
    groups = list(documents_fits.batches(lengths, 4, rng))
    assert sorted(np.concatenate(groups).tolist()) == list(range(100))
    assert np.mean([np.ptp(lengths[batch]) for batch in groups]) < 10, "lengths in a batch are alike"
    sets = Sets.from_lengths(torch.arange(40.0)[:, None], [25, 3, 0, 12])
    parts = documents_fits.random_chunks(sets, 10, rng)
    assert len(parts) == 3 and max(part.layout.longest for part in parts) <= 10
    for number in range(4):
        assert sorted(torch.cat([part[number] for part in parts]).flatten().tolist()) == sets[number].flatten().tolist()
    assert torch.cat([part[0] for part in parts]).flatten().tolist() != sets[0].flatten().tolist(), "shuffled"


@pytest.mark.parametrize("name", ["deepsets", "umbc"])
def test_gradients_of_chunks(name: str, seeded: Seeded) -> None:
    trial = documents_fits.Trial(name, 0, dim=8, slots=3, dropout=0.0)
    with seeded(0):
        network = documents_fits.make_network(name, 12, torch.full((4,), 0.1), trial, places=True).double()
        items = torch.stack([torch.arange(30) % 12, torch.arange(30)], 1).double()
        sets = Sets.from_lengths(items, [16, 4, 10])

        def gradient(way: str, seed: int) -> torch.Tensor:
            network.zero_grad()
            documents_fits.logits(network, sets, way, 4, np.random.default_rng(seed)).sin().sum().backward()
            return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])

        full = gradient("full", 0)
        assert torch.allclose(gradient("exact", 0), full, atol=1e-10)
        sampled = torch.stack([gradient("sample", seed) for seed in range(60)])
        error = (sampled.mean(0) - full).norm() / full.norm()
        noise = sampled.std(0).norm() / full.norm() / 60**0.5
        assert 0 < error < 3 * noise
        subset = torch.stack([gradient("subset", seed) for seed in range(60)])
        assert (subset.mean(0) - full).norm() / full.norm() > error


def test_prediction_has_the_order_of_the_stories(seeded: Seeded) -> None:
    with seeded(0):
        network = documents_fits.make_network(
            "umbc", 12, torch.full((4,), 0.1), documents_fits.Trial("", 0, dim=8, slots=3), places=False
        )
    sets = Sets.from_lengths(torch.ones(20, 2).cumsum(0) % 12, [9, 1, 6, 4])
    together = documents_fits.predict(network, sets, batch=2)
    with torch.no_grad():
        alone = torch.cat([network(sets.take([i])) for i in range(4)])
    np.testing.assert_allclose(together, alone.numpy(), atol=1e-5)


def test_command(news_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, file = tmp_path / "found.jsonl", tmp_path / "found.json"
    models = "umbc sample,transformer 128,tf-idf svm"
    arguments = ["documents", "--quick", "--models", models, "--data-dir", str(news_dir), "--device", "cpu"]
    arguments += ["--results", str(results), "--json", str(file)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "0 of 3 trials" in shown and "| umbc sample" in shown
    found = {record["model"]: record for record in json.loads(file.read_text())["records"]}
    assert found["tf-idf svm"]["micro"] == 100 and 30 < found["umbc sample"]["micro"] <= 100
    assert str(tmp_path) not in results.read_text(), "records have no folder of this machine"
    # A second run resumes from the file, and a page needs no data.
    assert main(arguments) == 0
    assert "3 of 3 trials" in capsys.readouterr().out
    assert main(["documents", "--quick", "--table", str(results)]) == 0
    assert "| transformer 128" in capsys.readouterr().out


def test_plan_has_the_longest_first_and_no_seeds_for_linear_models() -> None:
    parser = argparse.ArgumentParser()
    documents.configure(parser)
    trials = documents.plan(argparse.Namespace(quick=False, **vars(parser.parse_args([]))))
    # Two models have two more sizes of chunks.
    assert len(trials) == len(set(trials)) == 5 * (len(documents.CONTENDERS) + 4) + 2
    assert {trial.chunk for trial in trials if trial.model == "umbc subset"} == {8, 32, 128}
    assert {trial.chunk for trial in trials if trial.model == "umbc full"} == {32}
    assert {trial.model for trial in trials[:2]} == set(documents.LINEAR)
