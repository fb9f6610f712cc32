"""Learning to explain: planted words decide, items are means of words, linear models find them, the command runs."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.discrete.choosers import best_lambda
from benchmarks.discrete.explain_data import LENGTH, plant, read_reviews
from benchmarks.discrete.explain_fit import Trial, fit_linear, fit_network, fixed_choice, scores
from benchmarks.discrete.explain_models import METHODS, Explainer, make_chooser
from tests.benchmarks.helpers import Seeded


@pytest.fixture
def movies(tmp_path: Path) -> Path:
    """Sixty reviews of eight sentences, one of which has the opinion."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "eraser_movies"
    folder.mkdir()
    with gzip.open(folder / "movies_sentences.jsonl.gz", "wt", encoding="utf-8") as file:
        for number in range(60):
            good, place = bool(number % 2), int(rng.integers(8))
            sentences = [" ".join(rng.choice(["the", "film", "plot", "actor"], 3)) for _ in range(8)]
            sentences[place] = "truly great stuff" if good else "truly awful stuff"
            labels = {"split": ("train", "val", "test")[number // 20], "label": "POS" if good else "NEG"}
            marks = {"rationale_sentences": [place], "rationale_token_spans": [[3 * place + 1, 3 * place + 2]]}
            file.write(json.dumps({**labels, **marks, "sentences": sentences, "id": str(number)}) + "\n")
    return tmp_path


def test_planted_words_alone_make_the_target() -> None:
    texts = plant(5, seed=0, sizes=(400, 3, 3)).train
    assert texts.relevant.sum(1).tolist() == [5] * 400 and texts.words.shape == (400, LENGTH)
    assert texts.target.var().item() == pytest.approx(1, abs=0.3)
    # The target is linear in the counts of the planted words, with the same values in all texts.
    columns = torch.zeros(400, 501).scatter_add_(1, texts.words, texts.relevant.float())
    used = columns[:, columns.any(0)].double()
    solution = torch.linalg.lstsq(used, texts.target.double()).solution
    assert used.shape[1] <= 50 and torch.allclose(used @ solution, texts.target.double(), atol=1e-5)


def test_reviews_keep_their_rationales(movies: Path) -> None:
    sentences = read_reviews(str(movies), "sentences").test
    assert len(sentences) == 20 and sentences.count.tolist() == [8] * 20
    place = sentences.relevant.long().argmax(1)
    words = read_reviews(str(movies), "words").test
    assert words.relevant.long().argmax(1).tolist() == (3 * place + 1).tolist()
    assert sentences.owner[0].tolist() == [i // 3 for i in range(24)]


def test_items_are_means_and_only_chosen_ones_are_read(movies: Path, seeded: Seeded) -> None:
    corpus = read_reviews(str(movies), "sentences")
    with seeded(0):
        network = Explainer(corpus.vocabulary, 4, dropout=0.0).eval()
    texts = corpus.test
    items = network._items(network.reading, texts)
    assert torch.allclose(items[0, 2], network.reading(texts.words[0, 6:9]).mean(0))
    z = fixed_choice("first", texts, 2)
    before = network.read(texts)(z)
    other = texts.words.clone()
    other[:, 6:] = 1
    changed = network.read(type(texts)(other, texts.owner, texts.count, texts.target, texts.relevant))
    assert torch.equal(changed(z), before) and not torch.equal(changed(fixed_choice("last", texts, 2)), before)


def test_scores_by_hand() -> None:
    texts = plant(5, 0, sizes=(1, 1, 2)).test
    chosen = texts.relevant.clone()
    chosen[0] = ~chosen[0]
    found = scores(texts.target + 0.5, chosen, texts, regression=True)
    assert found["score"] == pytest.approx(25) and found["precision"] == found["recall"] == 50


# Algorithm 1 of AIMLE starts with steps of length 0.
@pytest.mark.parametrize("method", [method for method in METHODS if not method.endswith("paper")])
def test_every_estimator_increases_the_reward(method: str, seeded: Seeded) -> None:
    """The loss falls if item 3 is chosen: its score must get the most negative gradient."""
    theta = torch.zeros(200, 8, requires_grad=True)
    with seeded(0):
        make_chooser(method, 2, 4, 100.0, theta.device)(theta, lambda z: -z[..., 3] + 0 * z.sum(-1)).mean().backward()
    assert theta.grad is not None
    assert theta.grad.sum(0).argmin() == 3


def test_linear_model_finds_planted_words() -> None:
    corpus = plant(5, 1, sizes=(800, 50, 50))
    found = fit_linear(Trial("planted", 5, "linear strongest", 1), corpus)
    assert found["precision"] > 95 and found["score"] < 1


def test_a_learned_choice_beats_a_random_one(movies: Path, seeded: Seeded) -> None:
    """It may find the sentences of one class only: the other class is then recognised by their absence."""
    corpus, found = read_reviews(str(movies), "sentences"), {}
    for method in ("relaxed", "random"):
        trial = Trial("sentences", 1, method, 0, steps=60, batch=10, dim=8, samples=2, rate=3e-2)
        with seeded(0):
            found[method] = fit_network(trial, corpus, torch.device("cpu"))
    assert found["relaxed"]["score"] > 90 and found["relaxed"]["precision"] >= 50
    assert found["random"]["score"] < 80 and found["random"]["precision"] < 40


def test_best_lambda_is_chosen_by_validation() -> None:
    records = [{"lam": lam, "validation": loss} for lam, loss in [(1, 0.5), (1, 0.7), (10, 0.4), (10, 0.6)]]
    assert [record["lam"] for record in best_lambda(records)] == [10, 10]
    assert best_lambda([]) == []


def test_command(movies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "found.jsonl"
    methods = "aimle c,imle f,rloo,whole text,linear in favour"
    arguments = ["explain", "--quick", "--methods", methods, "--data-dir", str(movies), "--device", "cpu"]
    arguments += ["--results", str(results), "--steps", "3", "--k", "2"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "0 of 14 trials" in shown and "## planted" in shown and "## sentences" in shown and "## words" in shown
    assert main(["explain", "--quick", "--table", str(results)]) == 0
    shown = capsys.readouterr().out
    assert "| linear in favour" in shown and "k=2: accuracy %" in shown
