"""A model of format version 2 loads and predicts as it did when it was saved.

The folder `data/model_version_2` was written by `setgrad fit` before the options were renamed. `expected.json` and
`picks.csv` are the logits and the predictions of the same version for the table `sets.csv`.
"""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn.functional import linear

import setgrad as sg
from setgrad.cli import main
from setgrad.errors import FileFormatError
from setgrad.functions._neural import Relation
from setgrad.selector import SelectorOptions, TableSchema, load
from setgrad.selector._load import _build_model
from setgrad.selector._migration import migrate_version_2, migrate_weights_of_version_2
from setgrad.sets import Sets, segment_mean
from tests.models import MODEL_FILES
from tests.selector.conftest import TINY, first_member

DATA = Path(__file__).parent / "data"
MODEL = DATA / "model_version_2"
SCHEMA = TableSchema("basket", ("price", "stars"), "sku", "bought", "float32")


@pytest.fixture
def sets():
    return sg.read_table(DATA / "sets.csv", set_id="basket", item_id="sku", features=["price", "stars"]).sets


def check_predictions(selector, sets):
    expected = json.loads((DATA / "expected.json").read_text())
    logits = selector.decision_function(sets)
    assert str(logits.dtype) == expected["dtype"]
    assert [value.hex() for value in logits.values.double().tolist()] == expected["logits"]
    assert selector.predict(sets).values.int().tolist() == expected["picks"]


@pytest.mark.parametrize("version", [2, 3])
def test_predictions_are_the_same_bit_for_bit(sets, version):
    """The model of version 3 is that of version 2, saved again."""
    check_predictions(load(DATA / f"model_version_{version}", device="cpu"), sets)


@pytest.mark.parametrize("version", [2, 3])
def test_damaged_weights_of_earlier_versions_raise(tmp_path, version):
    shutil.copytree(DATA / f"model_version_{version}", tmp_path / "model")
    path = tmp_path / "model" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(FileFormatError, match="changed or damaged"):
        load(tmp_path / "model")


def test_options_columns_and_history_are_migrated():
    selector = load(MODEL, device="cpu")
    assert (selector.dim, selector.hidden, selector.relation) == (8, (16, 8), None)
    assert (selector.options_.dim, selector.options_.relation, selector.options_.estimator) == (8, 64, "bernoulli")
    assert selector.table_ == SCHEMA
    assert [record["converged"] for record in selector.history_] == [1.0] * 6
    assert not any("settled" in record for record in selector.history_)


def test_the_command_line_writes_the_same_picks(tmp_path):
    words = ["predict", MODEL, DATA / "sets.csv", "-o", tmp_path / "picks.csv", "--device", "cpu"]
    assert main([str(word) for word in words]) == 0
    old, new = (pd.read_csv(folder / "picks.csv") for folder in (DATA, tmp_path))
    # Newer tables of picks also have ranks, and all digits of the probabilities.
    assert new[["basket", "sku", "chosen"]].equals(old[["basket", "sku", "chosen"]])
    assert (new["probability"].astype("float32") == old["probability"].astype("float32")).all()


def test_saved_again_it_is_a_model_of_version_4(tmp_path, sets):
    shutil.copytree(MODEL, tmp_path / "model")
    load(tmp_path / "model", device="cpu").save(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == MODEL_FILES
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["version"] == 4
    assert config["table"] == SCHEMA.to_json()
    assert SelectorOptions(**config["options"]).dim == 8
    again = load(tmp_path / "model", device="cpu")
    check_predictions(again, sets)
    assert again.table_ == SCHEMA


def test_a_model_without_columns_has_no_table(tmp_path):
    shutil.copytree(MODEL, tmp_path / "model")
    (tmp_path / "model" / "table.json").unlink()
    assert load(tmp_path / "model").table_ is None


def test_an_older_model_has_no_relation_and_no_dtype(tmp_path):
    config = json.loads((MODEL / "config.json").read_text())
    del config["params"]["relation"], config["model"]["relation"]
    table = json.loads((MODEL / "table.json").read_text())
    del table["dtype"]
    (tmp_path / "table.json").write_text(json.dumps(table))
    migrated = migrate_version_2(config, tmp_path)
    assert "relation" not in migrated["options"] and migrated["options_in_use"]["relation"] == 0
    assert TableSchema.from_json(migrated["table"], "").torch_dtype is None


@pytest.mark.parametrize("count", [2, 384, 1000, 4096])
def test_a_relation_of_version_2_gives_the_same_scores(count, seeded):
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.randn(4, count, generator=generator) / count for _ in range(2))
    name = "members.0.function.relation"
    old = {f"{name}.items.weight": rows, f"{name}.means.weight": columns, "members.0.function.skip.bias": rows[0, :1]}
    migrated = migrate_weights_of_version_2(old)
    assert migrated["members.0.function.skip.bias"] is old["members.0.function.skip.bias"]
    with seeded(0):
        relation = Relation(count, rank=4)
    relation.load_state_dict({key: migrated[f"{name}.{key}"] for key in ("items.weight", "means.weight")})
    sets = Sets.from_list([torch.randn(3, count, generator=generator)])
    means = linear(segment_mean(sets.values, sets), columns) * (8.0 * 4**-0.5)
    assert torch.equal(relation(sets), (linear(sets.values, rows) * means).sum(1))


@pytest.mark.parametrize(
    ("old", "new"),
    [("picture", "pixel-cnn"), ("picture+context", "pixel-cnn+context"), ("mlp", "mlp"), (None, None)],
)
def test_names_of_encoders_are_migrated(tmp_path, old, new):
    config = json.loads((MODEL / "config.json").read_text())
    config["params"]["phi"] = config["model"]["phi"] = old
    migrated = migrate_version_2(config, tmp_path)
    assert migrated["options"]["phi"] == migrated["options_in_use"]["phi"] == new
    assert {"width", "picture"}.isdisjoint(migrated["options"]) and migrated["options_in_use"]["dim"] == 8
    assert (migrated["item_shape"], migrated["slots"], migrated["table"]) == ([2], None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"table.json is damaged .*delete it"),
        ("[]", "not written by this setgrad"),
        ('{"format": "setgrad.table", "version": 1, "set_id": 3}', "does not name the columns of a table; delete it"),
        ((MODEL / "table.json").read_text().replace("float32", "int7"), "'int7' is not one of the dtypes"),
    ],
)
def test_a_damaged_table_file_raises(tmp_path, text, message):
    shutil.copytree(MODEL, tmp_path / "model")
    (tmp_path / "model" / "table.json").write_text(text)
    with pytest.raises(FileFormatError, match=message):
        load(tmp_path / "model")


@pytest.mark.parametrize("part", ["params", "model", "history"])
def test_a_damaged_configuration_raises(tmp_path, part):
    shutil.copytree(MODEL, tmp_path / "model")
    config = json.loads((MODEL / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, part: 3}))
    with pytest.raises(FileFormatError, match=r"damaged|do not fit together"):
        load(tmp_path / "model")


@pytest.mark.parametrize("phi", ["image", "pixel-cnn", "pair", "mlp+context"])
def test_models_of_all_encoders_load_with_the_same_bits(tmp_path, phi):
    """Weights are assigned to a model without memory; encoders with unsaved buffers are built again."""
    generator = torch.Generator().manual_seed(0)
    items = {
        "image": torch.randn(16, 3, 8, 8, generator=generator),
        "pixel-cnn": torch.randn(16, 1, 8, 8, generator=generator),
        "pair": torch.randint(0, 20, (16, 1100), generator=generator).to(torch.uint8),
    }.get(phi, torch.randn(16, 3, generator=generator))
    sets = sg.Sets.from_lengths(items, [4] * 4)
    options = {**TINY, "dim": 8, "heads": 2, "max_epochs": 1}
    selector = sg.SubsetSelector(phi=phi, **options).fit(sets, [[0, 1]] * 4)
    selector.save(tmp_path / "model")
    again = load(tmp_path / "model", device="cpu")
    assert torch.equal(again.decision_function(sets).values, selector.decision_function(sets).values)
    mask = torch.ones(1, 16, dtype=torch.bool)
    assert torch.equal(again.function_.value(sets, mask), selector.function_.value(sets, mask))


def test_models_without_a_score_behind_two_encoders_load_as_they_were(choices):
    """In earlier versions only one encoder by itself had a linear score."""
    selector = sg.SubsetSelector(**TINY, phi="mlp+context").fit(*choices)
    model = selector.model_
    tensors = {name: tensor for name, tensor in model.state_dict().items() if ".function.skip." not in name}
    assert len(model.state_dict()) == len(tensors) + 2
    with torch.no_grad():
        for parameter in first_member(selector).function.skip.parameters():
            parameter.zero_()
    expected = selector.decision_function(choices.sets).values
    selector.model_ = _build_model(model.config, tensors, None).eval()
    assert torch.equal(selector.decision_function(choices.sets).values, expected)


def test_a_model_whose_score_is_missing_raises(choices):
    model = sg.SubsetSelector(**TINY).fit(*choices).model_
    tensors = {name: tensor for name, tensor in model.state_dict().items() if ".function.skip." not in name}
    with pytest.raises(RuntimeError, match="skip"):
        _build_model(model.config, tensors, None)
