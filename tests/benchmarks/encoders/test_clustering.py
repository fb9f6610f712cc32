"""The clustering experiments: data are as described, gradients have the right mean, fits are saved and shared."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.encoders.activations import true_nll
from benchmarks.encoders.clustering import bounds, claims, studied, tables
from benchmarks.encoders.clustering_fits import Fit, attempt, code_of, evaluate, load, loss_of, model_file, train
from benchmarks.encoders.clustering_models import CONTENDERS, Sizes, as_sets, make
from benchmarks.encoders.gradient_noise import compare, encoder_gradient
from benchmarks.encoders.mixtures import COMPONENTS, Mixture, draw, em, em_from_scratch
from benchmarks.lib.records import RunContext
from benchmarks.lib.trials import answers
from setgrad.errors import OptionError
from tests.benchmarks.helpers import CPU

TINY = Fit("umbc-st", 0, steps=3, batch=4, points=16, dim=16, slots=4, tests=3)


def test_points_come_from_the_mixtures() -> None:
    found = draw(3, 20_000, torch.Generator().manual_seed(0))
    for b in range(3):
        for k in range(COMPONENTS):
            mine = found.points[b][found.labels[b] == k]
            share = len(mine) / 20_000
            assert share == pytest.approx(float(found.truth.log_weights[b, k].exp()), abs=0.02)
            if share > 0.02:
                torch.testing.assert_close(mine.mean(0), found.truth.means[b, k], atol=0.15, rtol=0)
                torch.testing.assert_close(mine.std(0), found.truth.deviations[b, k], atol=0.1, rtol=0)
    assert float(found.truth.deviations.min()) >= 0.1 and float(found.truth.deviations.max()) <= 0.6
    assert float(found.truth.means.abs().max()) <= 4


def test_likelihood_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    mixture = Mixture.from_numbers(torch.randn(2, COMPONENTS, 5, generator=generator))
    points = torch.randn(2, 7, 2, generator=generator)
    kinds = torch.distributions.Categorical(logits=mixture.log_weights)
    normals = torch.distributions.Independent(torch.distributions.Normal(mixture.means, mixture.deviations), 1)
    whole = torch.distributions.MixtureSameFamily(kinds, normals)
    torch.testing.assert_close(mixture.nll(points), -whole.log_prob(points.transpose(0, 1)).mean(0))


def test_expectation_maximisation_never_gets_worse() -> None:
    found = draw(5, 300, torch.Generator().manual_seed(2))
    values = [em(found.points, found.truth, steps).nll(found.points) for steps in (0, 1, 5, 20)]
    for before, after in pairwise(values):
        assert bool((after <= before + 1e-5).all())
    one, many = (
        em_from_scratch(found.points, torch.Generator().manual_seed(3), starts=starts, steps=30) for starts in (1, 8)
    )
    assert bool((many <= one).all()) and float(many.mean()) < float(one.mean())


def test_entropy_allows_the_published_figure_only_for_the_code() -> None:
    """1.84 lies between what the true mixtures have with the deviations of the code, and with those of the text."""
    code, text = (true_nll(replace(TINY, tests=60, deviations=name), CPU) for name in ("code", "text"))
    assert code < 1.84 < text


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.encoders.clustering.EM_STEPS", 5)
    true, from_truth, scratch = bounds(TINY, CPU).values()
    assert true == pytest.approx(true_nll(TINY, CPU)) and from_truth < true and from_truth < scratch < 4


SAMPLED = [name for name, one in CONTENDERS.items() if one.consistent and one.passes == 1]


# A maximum is not a sum: only the largest items have a gradient.
@pytest.mark.parametrize("name", [name for name in SAMPLED if name != "max"])
def test_sampled_gradient_has_the_full_one_as_its_mean(name: str) -> None:
    fit = replace(TINY, model=name, chunk=4)
    model = make(name, fit.sizes, seed=1).double()
    points = draw(3, 16, torch.Generator().manual_seed(4)).points.double()
    names, parameters = zip(*model.named_parameters(), strict=True)

    def gradients(gradient: str, first: int) -> list[torch.Tensor]:
        loss = loss_of(model, replace(fit, gradient=gradient), points, first)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]

    full = gradients("full", 0)
    for gradient, unbiased in (("sample", True), ("unweighted", False)):
        drawn = [gradients(gradient, first) for first in (0, 4, 8, 12)]
        means = [torch.stack(each).mean(0) for each in zip(*drawn, strict=True)]
        apart = max(float((a - b).abs().max()) for a, b in zip(means, full, strict=True))
        largest = max(float(g.abs().max()) for g in full)
        assert (apart < 1e-12 * max(1.0, largest)) == unbiased, names


def test_encoders_without_a_state_cannot_be_sampled() -> None:
    with pytest.raises(OptionError, match="only encoders with a state"):
        train(replace(TINY, model="fspool", gradient="sample"), CPU)


@pytest.mark.parametrize("name", CONTENDERS)
def test_chunks_matter_only_without_a_state(name: str) -> None:
    model = make(name, Sizes(2, 16, 4)).double().eval()
    points = draw(2, 16, torch.Generator().manual_seed(5)).points.double()
    assert model(as_sets(points)).shape == (2, COMPONENTS, 5)
    if CONTENDERS[name].consistent:
        return
    with torch.no_grad():
        whole, chunks = code_of(model, points, None), code_of(model, points, 4)
        by_hand = torch.stack([model.code(as_sets(part)) for part in points.split(4, 1)]).mean(0)
    assert float((whole - chunks).abs().max()) > 1e-6
    torch.testing.assert_close(chunks, by_hand)


def test_training_learns_and_repeats() -> None:
    fit = replace(TINY, model="deep-sets", steps=60, rate=1e-2)
    (model, losses), (again, _) = train(fit, CPU), train(fit, CPU)
    assert len(losses) == 10 and losses[-1] < losses[0] - 0.5
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_saved_models_are_the_same(tmp_path: Path) -> None:
    results = tmp_path / "found.jsonl"
    context = RunContext(device="cpu")
    record = {**asdict(TINY), **attempt(TINY, context, str(results.with_suffix("")))}
    assert not isinstance(record, str), record
    assert evaluate(load(TINY, results), TINY, CPU) == pytest.approx(record["nll"])
    attempt(replace(TINY, seed=1), context, str(results.with_suffix("")))
    assert list(results.with_suffix("").iterdir()) == [model_file(TINY, results)], "only the first seed is saved"
    assert answers([TINY], [record]) == {TINY: record}
    assert answers([replace(TINY, steps=4)], [record]) == {}, "other steps are another fit"
    with pytest.raises(OptionError):
        attempt(replace(TINY, model="ds-mil", gradient="sample"), context, str(tmp_path))


def test_command_resumes_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.encoders.clustering.EM_STEPS", 2)
    results, page = tmp_path / "found.jsonl", tmp_path / "page.json"
    arguments = ["clustering", "--quick", "--steps", "2", "--device", "cpu", "--results", str(results)]
    assert main([*arguments, "--models", "deep-sets,ds-mil"]) == 0
    shown = capsys.readouterr().out
    assert "0 of 5 trials" in shown and "| True mixtures" in shown and "mean of codes" in shown
    assert main([*arguments, "--models", "deep-sets", "--parts", "gradients", "--json", str(page)]) == 0
    assert "3 of 3 trials" in capsys.readouterr().out
    found = json.loads(page.read_text())
    assert {record["gradient"] for record in found["records"]} == {"full", "sample", "subset"}
    assert all(math.isfinite(value) for record in found["records"] for value in record["nll"].values())
    assert main(["clustering", "--quick", "--models", "deepest"]) == 1


def test_claims_name_the_best_rivals() -> None:
    def record(value: float) -> dict[str, object]:
        return {"nll": {"512": value, "1024": value}, "losses": [9.0, value]}

    others = {replace(TINY, model="sse"): record(1.9), replace(TINY, model="set-transformer"): record(1.6)}
    ours = dict(zip(studied(TINY, (8,)), map(record, (1.7, 1.71, 4.0, 2.0)), strict=True))
    (sentences,) = claims({**ours, **others})
    assert "1.700 (target: at most 1.84)" in sentences
    assert "in chunks: SSE, 1.900" in sentences and "of whole sets: Set Transformer, 1.600" in sentences
    assert (
        "sample gradient of 8 points: 1.710 (+0.010)" in sentences and "subset gradient of 8 points: 4.000" in sentences
    )


def test_the_better_rate_of_an_encoder_is_shown_and_both_of_its_gradients() -> None:
    def record(loss: float, value: float) -> dict[str, object]:
        common = {"device": "cpu", "peak_memory": 1, "parameters": 2}
        return {"nll": {"512": value, "1024": value}, "losses": [9.0, loss], **common}

    usual, slow = replace(TINY, rate=2e-3), replace(TINY, rate=1e-3)
    sampled = replace(usual, gradient="sample")
    records = {slow: record(1.5, 1.7), usual: record(1.6, 1.65), sampled: record(1.9, 1.8)}
    encoders, gradients = tables(records, {"True mixtures": 1.4})
    assert "1.700 |" in encoders and "0.001" in encoders and "1.650" not in encoders, "chosen by the loss of training"
    assert "1.650" in gradients and "1.800" in gradients and "1.700" in gradients
    (sentences,) = claims(records)
    assert "Set Transformer: 1.700" in sentences and "sample gradient of 8 points: 1.800 (+0.100)" in sentences


def test_noise_of_the_sampled_gradient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = replace(TINY, points=16)
    model = make("umbc-st", fit.sizes, seed=1)
    points = draw(2, 16, torch.Generator().manual_seed(4)).points
    # One chunk with all points is the full gradient; with 4 chunks the noise is that of all of them.
    assert compare(model, fit, points, 16, 1)[0] < 1e-4
    full, norm = encoder_gradient(model, fit, points, 0)
    assert 0 < float(full.norm()) < norm
    each = [
        encoder_gradient(model, replace(fit, gradient="sample", chunk=4), points, first)[0] for first in (0, 4, 8, 12)
    ]
    expected = torch.stack([(one - full).square().sum() for one in each]).mean().div(full.square().sum()).sqrt()
    assert compare(model, fit, points, 4, 20)[0] == pytest.approx(float(expected), rel=0.3)
    arguments = ["gradient-noise", "--quick", "--activations", "sigmoid", "--device", "cpu"]
    assert main([*arguments, "--results", str(tmp_path / "found.jsonl")]) == 0
    assert "| sigmoid" in capsys.readouterr().out
