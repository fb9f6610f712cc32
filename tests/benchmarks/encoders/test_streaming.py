"""Streams, partitions and activations of the clustering experiment."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.encoders.clustering_models import CONTENDERS, Sizes, make
from benchmarks.encoders.mixtures import draw
from benchmarks.encoders.partition_variance import ROUNDING, codes_of_partitions, feature_variance, four_distributions
from benchmarks.encoders.streaming import ORDERS, arrivals, arrive, arriving_chunks, codes, evaluation_steps
from setgrad.sets import Sets

LABELS = np.array([2, 0, 0, 1, 2, 0, 0, 2, 2, 2, 0])


@pytest.mark.parametrize("order", ORDERS)
def test_every_point_arrives_once(order: str) -> None:
    chunks = arrivals(LABELS, order, np.random.default_rng(0))
    assert sorted(np.concatenate(chunks).tolist()) == list(range(len(LABELS)))
    if order == "single":
        assert {len(chunk) for chunk in chunks} == {1}
    if order == "class":
        assert [set(LABELS[chunk]) for chunk in chunks] == [{0}, {1}, {2}]
    if order == "chunk":
        assert [len(chunk) for chunk in chunks] == [8, 3]
    if order == "one each":
        assert [sorted(LABELS[chunk]) for chunk in chunks] == [[0, 1, 2], [0, 2], [0, 2], [0, 2], [0, 2]]


@pytest.mark.parametrize("order", ORDERS)
def test_chunks_of_all_sets_come_together(order: str) -> None:
    sets = draw(3, 20, torch.Generator().manual_seed(0))
    got: list[list[torch.Tensor]] = [[], [], []]
    for chunk in arriving_chunks(sets, order):
        for mine, points in zip(got, chunk.to_list(), strict=True):
            mine.append(points)
    for mine, points in zip(got, sets.points, strict=True):
        torch.testing.assert_close(torch.cat(mine).sort(0).values, points.sort(0).values)


@pytest.mark.parametrize("name", CONTENDERS)
def test_only_a_state_forgets_the_order(name: str) -> None:
    sets = draw(2, 24, torch.Generator().manual_seed(1))
    wide = replace(sets, points=sets.points.double())
    model = make(name, Sizes(2, 16, 4)).double().eval()
    apart = [arrive(model, name, order, wide)[0]["apart"] for order in ORDERS]
    if CONTENDERS[name].consistent:
        assert max(apart) < 1e-12
    else:
        assert min(apart) > 1e-6


def test_means_of_codes_ignore_empty_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.encoders.streaming.GROUP", 2)
    model = make("fspool", Sizes(2, 16, 4)).double().eval()
    a, b, c = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    nothing = a[:0]
    chunks = [Sets.from_list(pair) for pair in ([a, b], [b[:2], nothing], [c, c])]
    with torch.no_grad():
        first, last = codes(model, chunks, {1, 3})
        alone = [model.code(Sets.from_list([x]))[0] for x in (a, b[:2], c, b)]
    torch.testing.assert_close(first, torch.stack([alone[0], alone[3]]))
    torch.testing.assert_close(last, torch.stack([torch.stack(alone[:3]).mean(0), (alone[3] + alone[2]) / 2]))


def test_streams_are_evaluated_until_their_end() -> None:
    assert evaluation_steps(1) == {1} and evaluation_steps(4) == {1, 2, 3, 4}
    steps = evaluation_steps(1024)
    assert (min(steps), max(steps), len(steps)) == (1, 1024, 12)


def test_four_distributions() -> None:
    normal, uniform, exponential, cauchy = four_distributions(8000, 8, torch.Generator().manual_seed(2)).chunk(4)
    assert float(normal.std()) == pytest.approx(1, abs=0.05)
    assert -3 <= float(uniform.min()) < -2.9 and 2.9 < float(uniform.max()) <= 3
    assert float(exponential.min()) >= 0 and float(exponential.mean()) == pytest.approx(1, abs=0.05)
    quartiles = torch.quantile(cauchy.flatten(), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 0, 1], dtype=torch.float64), atol=0.1, rtol=0)


def test_variance_over_partitions() -> None:
    values = four_distributions(32, 6, torch.Generator().manual_seed(3))
    found = {}
    for name in ("umbc-st", "set-transformer"):
        model = make(name, Sizes(6, 16, 4)).double().eval()
        found[name] = [feature_variance(codes_of_partitions(model, values, count, 25)) for count in (1, 4)]
    assert max(found["umbc-st"]) < ROUNDING and found["set-transformer"][0] < ROUNDING
    assert found["set-transformer"][1] > 1e6 * ROUNDING


def test_commands_share_their_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, page = tmp_path / "found.jsonl", tmp_path / "page.json"
    usual = ["--quick", "--steps", "2", "--device", "cpu", "--results", str(results)]
    assert main(["activations", *usual, "--gradient", "full"]) == 0
    assert "| slot-sigmoid-sum" in capsys.readouterr().out
    assert main(["streaming", *usual, "--json", str(page)]) == 0
    assert "1 of 6 trials" in capsys.readouterr().out, "the fit with a softmax is shared"
    rows = json.loads(page.read_text())["rows"]
    assert len(rows) == 6 * len(ORDERS)
    for row in rows:
        assert (row["apart"] < 1e-4) == (not row["title"].startswith("Set Transformer")), row["title"]
    assert len(json.loads(page.read_text())["example"]["pictures"]) == 2 * len(ORDERS)
    assert main(["streaming", "--shown", str(page), "--results", str(results)]) == 0
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"found-activations.png", "found-streams.png", "found-sets.png"}
    assert main(["partition-variance", *usual, "--trained", "--json", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 trials" in shown and "trained models" in shown
    assert main(["partition-variance", "--shown", str(page), "--results", str(results)]) == 0
    assert (tmp_path / "partition-variance.png").exists()
    assert main(["streaming", "--shown", str(tmp_path / "none.json")]) == 1
