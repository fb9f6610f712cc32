"""Exported programs compute what the selector computes, over sizes from 1 to 1,000."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from setgrad.errors import NotFittedError, OptionError
from setgrad.export import PaddedPredictor, encode_table, export_model
from setgrad.selector import SubsetSelector
from setgrad.selector.sizes import StopBelow
from setgrad.sets import Choices, Sets
from tests.selector.conftest import TINY, make_choices

MODELS: dict[str, dict[str, Any]] = {
    "conditional": {},
    "without pairs and relative features": {"pairs": False, "relative": False, "relation": 0},
    "induced attention, two members": {"attention": "induced", "members": 2},
    "mlp and context": {"phi": "mlp+context"},
    "paper, not standardised": {"phi": "paper", "standardize": False},
    "direct": {"method": "direct"},
}
SIZES = (1, 2, 3, 7, 31, 100, 1000)


def random_sets(lengths, width=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.randn(sum(lengths), width, generator=generator).double(), lengths)


def make_table(sets=60):
    """Return a table with a column of each kind: gaps, categories, texts, dates, facts of the set, one value alone."""
    rng, rows = np.random.default_rng(0), sets * 6
    table = pd.DataFrame(
        {
            "visit": np.repeat(np.arange(sets), 6),
            "price": rng.random(rows).round(1) * 50,
            "stock": rng.integers(0, 5, rows),
            "brand": rng.choice(list("abcd"), rows),
            "title": [" ".join(rng.choice(["red", "blue", "tea", "cup", "big"], 3)) for _ in range(rows)],
            "day": np.repeat(rng.choice(["mo", "tu"], sets), 6),
            "since": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 10**7, rows), unit="s"),
        }
    )
    table.loc[::7, "price"] = np.nan
    return table.assign(bought=(table["price"].fillna(25) < 20) & (table["brand"] != "a"))


def stir(selector):
    """Change all weights at random: after a short fit many are 0, and no part of the model would matter."""
    generator = torch.Generator().manual_seed(0)
    for weight in selector.model_.parameters():
        weight.data += 0.15 * torch.randn(weight.shape, generator=generator)
    return selector


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return stir(SubsetSelector(**{**TINY, **MODELS[request.param], "max_epochs": 1}).fit(*make_choices(30)))


@pytest.fixture(scope="module")
def from_table(few_trees):
    with warnings.catch_warnings(), few_trees():
        warnings.simplefilter("ignore", UserWarning)
        fitted = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(make_table(), set_id="visit", chosen="bought")
    selector = stir(fitted)
    assert selector.model_.relative is not None and selector.model_.relative.groups and selector.model_.trees
    return selector


def run_torch(path: Path):
    program = torch.export.load(path).module()

    def run(items, mask, given):
        return program(torch.as_tensor(items), torch.as_tensor(mask), torch.as_tensor(given)).numpy()

    return run


def run_onnx(path: Path):
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda items, mask, given: session.run(None, {"items": items, "mask": mask, "given": given})[0]


RUNNERS = {".pt2": run_torch, ".onnx": run_onnx}


@pytest.fixture(scope="module", params=RUNNERS)
def export(request, tmp_path_factory):
    """Return a function that exports a selector and returns what runs the program."""
    if request.param == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason='ONNX needs other packages: pip install "setgrad[export]" onnxruntime')

    def write(selector):
        path = tmp_path_factory.mktemp("program") / f"model{request.param}"
        export_model(selector, path)
        return RUNNERS[request.param](path)

    return write


@pytest.fixture(scope="module")
def run_table(from_table, export):
    return export(from_table)


def padded(sets: Sets):
    items, mask = sets.padded()
    return items.double().numpy(), mask.numpy()


def check(run, selector, sets):
    """Compare logits, probabilities and gains at random subsets; gains grow with the subset, and so does rounding."""
    items, mask = padded(sets)
    logits = run(items, mask, np.zeros_like(mask))
    assert logits.shape == mask.shape and np.isneginf(logits[~mask]).all()
    expected = selector.decision_function(sets).values.numpy()
    assert len(expected) < 100 or expected.std() > 0.01
    np.testing.assert_allclose(logits[mask], expected, rtol=1e-4, atol=2e-5)
    probabilities = torch.sigmoid(torch.as_tensor(logits[mask])).numpy()
    np.testing.assert_allclose(probabilities, selector.predict_proba(sets).values.numpy(), rtol=0, atol=1e-5)
    given = mask & (np.random.default_rng(0).random(mask.shape) < 0.1)
    gains = selector.gains(sets, sets.with_values(torch.as_tensor(given[mask]))).values.numpy()
    np.testing.assert_allclose(run(items, mask, given)[mask], gains, rtol=1e-3, atol=2e-4)


def test_sets_of_any_size(model, export):
    run = export(model)
    for size in SIZES:
        check(run, model, random_sets([size]))
    check(run, model, random_sets([3, 40, 1, 17]))


def test_a_table_with_all_kinds_of_columns(from_table, run_table):
    run = run_table
    table = make_table()
    items, mask = encode_table(from_table, table)
    logits = run(items, mask, np.zeros_like(mask))
    np.testing.assert_allclose(logits[mask], from_table.decision_function(table).values.numpy(), rtol=1e-4, atol=2e-5)
    flat = torch.as_tensor(items[mask])
    for sizes in ([1, 2, 3, 300, 54], [360]):
        check(run, from_table, Sets.from_lengths(flat, sizes))
    # Of one brand, one price and one title.
    check(run, from_table, Sets.from_lengths(flat[:1].repeat(9, 1), [4, 5]))


def test_padding_does_not_matter(from_table):
    predictor = PaddedPredictor(from_table)
    items, mask = (torch.as_tensor(part) for part in encode_table(from_table, make_table(5)))
    given = torch.zeros_like(mask)
    plain = predictor(items, mask, given)
    noise = torch.full((5, 4, items.shape[2]), torch.nan).double()
    wider = predictor(
        torch.cat([items, noise], 1), torch.nn.functional.pad(mask, (0, 4)), torch.zeros(5, 10, dtype=torch.bool)
    )
    torch.testing.assert_close(wider[:, :6], plain, rtol=1e-5, atol=1e-6)
    assert torch.isneginf(wider[:, 6:]).all()
    # A set without items has no logit, and does not disturb the others.
    beside = predictor(items, mask & (torch.arange(5) != 2)[:, None], given)
    torch.testing.assert_close(beside[[0, 1, 3, 4]], plain[[0, 1, 3, 4]], rtol=1e-5, atol=1e-6)
    assert torch.isneginf(beside[2]).all()


def choose(run, items, mask, *, size=None, cut=None, min_size=0):
    """Choose item by item; the loop of docs/ship.md."""
    chosen = np.zeros_like(mask)
    for _ in range(mask.shape[1]):
        gains = np.where(chosen, -np.inf, run(items, mask, chosen))
        best = gains.argmax(1)
        top = gains[np.arange(len(gains)), best]
        count = chosen.sum(1)
        joins = np.isfinite(top) & (count < size if size is not None else (top > cut) | (count < min_size))
        if not joins.any():
            break
        chosen[joins, best[joins]] = True
    return chosen


def test_the_loop_outside_chooses_as_predict(from_table, run_table):
    run = run_table
    table = make_table()
    items, mask = encode_table(from_table, table)
    picks = from_table.predict(table, size=2)
    assert choose(run, items, mask, size=2)[mask].tolist() == picks["chosen"].tolist()
    rule = StopBelow(float(from_table.decision_function(table).values.quantile(0.8)))
    from_table.size_rule_, kept = rule, from_table.size_rule_
    try:
        picks = from_table.predict(table)["chosen"].tolist()
    finally:
        from_table.size_rule_ = kept
    found = choose(run, items, mask, cut=rule.cut, min_size=from_table.min_size_)[mask].tolist()
    assert found == picks and 0 < sum(picks) < len(picks)


def test_the_json_tells_the_columns_and_the_rule(from_table, tmp_path):
    about = export_model(from_table, tmp_path / "model.pt2")
    told = json.loads(about.read_text())
    assert about.name == "model.pt2.json" and {path.name for path in tmp_path.iterdir()} == {"model.pt2", about.name}
    assert told["table"] == json.loads(json.dumps(from_table.table_.to_json()))
    assert sum(told["widths"]) == told["inputs"]["items"]["shape"][2] == from_table.n_features_in_
    assert told["size_rule"]["name"] in from_table.size_scores_ and told["min_size"] == from_table.min_size_
    assert told["origin"]["sha256"] == from_table.origin_.sha256
    brand = next(column for column in told["table"]["columns"] if column["name"] == "brand")
    assert set("abcd") <= {value for values in brand.values() if isinstance(values, list) for value in values}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"method": "unrolled"}, "fit with method='conditional'"),
        ({"method": "implicit"}, "fit with method='conditional'"),
        ({"function": "inset"}, "fit with function='deepset'"),
        ({"phi": torch.nn.Identity()}, "the encoder ItemWise cannot be exported; fit with phi='context'"),
    ],
)
def test_what_cannot_be_exported_names_a_remedy(options, error, tmp_path):
    selector = SubsetSelector(**{**TINY, **options, "max_epochs": 1}).fit(*make_choices(20))
    with pytest.raises(OptionError, match=error):
        export_model(selector, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_images_and_other_wrong_input_are_refused(model, tmp_path):
    images = Sets.from_lengths(torch.linspace(0, 1, 240).reshape(60, 2, 2), [3] * 20)
    masks = images.with_values(torch.arange(60) % 3 == 0)
    selector = SubsetSelector(**{**TINY, "phi": "mlp", "max_epochs": 1}).fit(*Choices(images, masks))
    with pytest.raises(OptionError, match=r"items of shape \(2, 2\) cannot be exported"):
        export_model(selector, tmp_path / "model.pt2")
    with pytest.raises(NotFittedError):
        export_model(SubsetSelector(), tmp_path / "model.pt2")
    with pytest.raises(OptionError, match=r"must end in \.onnx"):
        export_model(model, tmp_path / "model.tflite")
    with pytest.raises(OptionError, match="was not fitted on a table"):
        encode_table(model, make_table(2))
