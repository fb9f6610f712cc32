"""Images as sets of pixels: items are right, streams equal whole sets, the Gaussian is the exact posterior."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.encoders import completion_fits
from benchmarks.encoders.completion import draw_images, draw_scores
from benchmarks.encoders.completion_fits import Trial, fit, fit_gaussian, images_file
from benchmarks.encoders.pixels import (
    ITEM,
    POSITION,
    Completion,
    Gaussian,
    as_sets,
    draw_order,
    encode,
    growing_codes,
    make_encoder,
    nll,
    places,
    read_images,
)
from benchmarks.lib.data import shift_and_mirror
from benchmarks.lib.records import RunContext
from tests.benchmarks.helpers import Seeded, generator


@pytest.fixture
def digits_dir(tmp_path: Path) -> Path:
    """Bars in one of three rows instead of MNIST."""
    (tmp_path / "mnist").mkdir()
    labels = np.arange(60) % 3
    images = np.zeros((60, 28, 28), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[9 * label : 9 * label + 9] = 255
    path = tmp_path / "mnist" / "mnist.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    return tmp_path


def test_items_are_positions_and_values() -> None:
    images = torch.rand(2, 5, 4, generator=generator())
    where = places(5, 4)
    order = draw_order(2, 20, generator())
    assert where.shape == (20, POSITION) and sorted(order[0].tolist()) == list(range(20))
    sets = as_sets(images, where, order[:, :7])
    assert sets.values.shape == (14, ITEM)
    for image in range(2):
        for item, pixel in zip(sets[image], order[image].tolist(), strict=False):
            row, column = divmod(pixel, 4)
            assert item[:2].tolist() == pytest.approx([row / 2 - 1, column / 1.5 - 1])
            assert float(item[-1]) == pytest.approx(4 * float(images[image, row, column]) - 2, abs=1e-6)


def test_shifted_images_are_moved_copies() -> None:
    image = torch.rand(1, 8, 6, generator=generator())
    padded = torch.nn.functional.pad(image[:, None], [2] * 4, mode="replicate")[0, 0]
    windows = [padded[i : i + 8, j : j + 6] for i in range(5) for j in range(5)]
    found = shift_and_mirror(image.expand(40, -1, -1), generator(1), max_shift=2)
    allowed = [*windows, *(window.flip(1) for window in windows)]
    which = {next(i for i, window in enumerate(allowed) if torch.equal(window, one)) for one in found}
    assert min(which) < 25 <= max(which) and len(which) > 15


@pytest.mark.parametrize("name", ["deepsets", "sse", "hierarchical", "umbc"])
def test_a_stream_of_pixels_gives_the_code_of_the_whole(name: str, seeded: Seeded) -> None:
    images, where, order = (
        torch.rand(3, 6, 6, generator=generator()),
        places(6, 6),
        draw_order(3, 36, generator()),
    )
    with seeded(0):
        encoder = make_encoder(name, 8, 5)
    with torch.no_grad():
        codes = list(growing_codes(encoder, images, where, order, (4, 10, 36), chunk=5, in_chunks=False))
        for code, size in zip(codes, (4, 10, 36), strict=True):
            torch.testing.assert_close(code, encoder(as_sets(images, where, order[:, :size])), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(codes[0], codes[2], atol=1e-3)


@pytest.mark.parametrize("name", ["fspool", "diff-em", "transformer"])
def test_chunks_of_an_encoder_without_a_state_are_averaged(name: str, seeded: Seeded) -> None:
    images, where, order = (
        torch.rand(2, 6, 6, generator=generator()),
        places(6, 6),
        draw_order(2, 36, generator()),
    )
    with seeded(0):
        encoder = make_encoder(name, 8, 5)
    with torch.no_grad():
        (code,) = growing_codes(encoder, images, where, order, (12,), chunk=8, in_chunks=True)
        first, second = (encoder(as_sets(images, where, part)) for part in (order[:, :8], order[:, 8:12]))
    torch.testing.assert_close(code, (first + second) / 2)


def test_sampled_codes_have_the_value_of_the_whole_and_subsets_do_not(seeded: Seeded) -> None:
    images, where, order = (
        torch.rand(2, 6, 6, generator=generator()),
        places(6, 6),
        draw_order(2, 30, generator()),
    )
    context, rng = as_sets(images, where, order), np.random.default_rng(0)
    with seeded(0):
        encoder = make_encoder("umbc", 8, 5)
        full, sample, subset = (encode(encoder, context, way, 7, rng) for way in ("full", "sample", "subset"))
    torch.testing.assert_close(sample, full, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(subset, full, atol=1e-3)


def test_likelihood_and_the_posterior_of_the_gaussian() -> None:
    mean, deviation, value = torch.tensor([0.2, 0.5]), torch.tensor([0.1, 2.0]), torch.tensor([0.3, 0.9])
    torch.testing.assert_close(
        nll(mean, deviation, value), -torch.distributions.Normal(mean, deviation).log_prob(value)
    )
    images = torch.rand(50, 3, 3, generator=generator()).double()
    images = (images + images.flip(1)) / 2
    model, order = Gaussian(images, 0.1), torch.tensor([[0, 4, 5]])
    found, spread = model.predict(images[:1], order)
    # The joint distribution of pixels and noisy observations, conditioned by hand.
    context = order[0]
    inverse = torch.linalg.inv(model.covariance[context][:, context] + 0.01 * torch.eye(3))
    gain = model.covariance[:, context] @ inverse
    torch.testing.assert_close(found[0], model.mean + gain @ (images[0].flatten()[context] - model.mean[context]))
    rest = model.covariance - gain @ model.covariance[context]
    torch.testing.assert_close(spread[0].square(), rest.diagonal() + 0.01)
    # Mirrored pixels are equal, so the first row determines the last.
    assert float(spread[0, 6]) < 0.6 * float(spread[0, 7])
    assert fit_gaussian(images.float(), 0.02).noise >= 0.02


def test_training_learns_which_row_is_white(digits_dir: Path, seeded: Seeded) -> None:
    train, test = read_images("mnist", digits_dir, 0)
    assert train.shape == (60, 28, 28) and test.shape == (9, 28, 28)
    trial = Trial("mnist", "", 0, 200, batch=12, dim=32, rate=5e-3, chunk=20, fewest=20, most=60, targets=60)
    with seeded(0):
        model = Completion(make_encoder("deepsets", 32, 0), 32, 0.1)
        loss = fit(model, train, trial, "sample")
    # Without the context, one of three bars is white: a deviation of 0.47 and 0.66 nats would be the best.
    assert loss < 0.2


def test_command(
    digits_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(completion_fits.SIZES, "mnist", (50, 100, 500))
    results, file = tmp_path / "out" / "found.jsonl", tmp_path / "found.json"
    arguments = ["completion", "--quick", "--images", "mnist", "--models", "umbc sample,gaussian", "--steps", "2"]
    arguments += ["--data-dir", str(digits_dir), "--device", "cpu", "--results", str(results), "--json", str(file)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "0 of 2 trials" in shown and "| umbc sample" in shown
    found = {record["model"]: record for record in json.loads(file.read_text())["records"]}
    assert found["gaussian"]["rmse"][2] < 0.1 < found["umbc sample"]["rmse"][2]
    with np.load(images_file(results, "mnist", "gaussian")) as saved:
        assert saved["made"].shape == (3, 2, 784) and saved["made"].dtype == np.uint8
        assert np.abs(saved["made"][2].astype(int) - saved["truth"]).max() < 60
    assert str(tmp_path) not in results.read_text(), "records have no folder of this machine"
    assert main(arguments) == 0
    assert "2 of 2 trials" in capsys.readouterr().out


def test_figures(digits_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(completion_fits.SIZES, "mnist", (50, 100, 500))
    results = tmp_path / "found.jsonl"
    trial = Trial("mnist", "gaussian", 0, tested=4)
    record = completion_fits.attempt(trial, RunContext("cpu", str(digits_dir)), str(results))
    draw_scores([{"images": "mnist", "model": "gaussian", **record}], results.with_suffix(".md"))
    draw_images(results)
    assert {path.name for path in tmp_path.glob("*.png")} == {"found-mnist.png", "found-mnist-images.png"}
