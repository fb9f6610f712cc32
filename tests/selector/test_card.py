"""The page of a saved model, and what its configuration tells of where it comes from."""

import html
import json
import platform
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from markdown_it import MarkdownIt
from torch import nn

import setgrad as sg
from setgrad.errors import FileFormatError
from setgrad.selector import SubsetSelector, load
from tests.models import MODEL_FILES, rewrite_config
from tests.selector.conftest import TINY, make_choices

HOSTILE = [
    "<script>alert(1)</script>",
    "a | b",
    "*bold* _it_ `code`",
    "[link](javascript:x)",
    "![x](y)",
    "# title",
    "a\\|b",
    "&lt;b&gt;",
    "http://example.org",
    "two\nlines\r| --- |",
]


def cells(page: str) -> list[str]:
    """Return what the cells of all tables show, by a renderer of Markdown."""
    shown = MarkdownIt("commonmark").enable("table").render(page)
    assert "<script" not in shown and "<a" not in shown and "<img" not in shown
    found = re.findall(r"<t[dh](?: [^>]*)?>(.*?)</t[dh]>", shown, re.DOTALL)
    assert not any("<" in cell for cell in found if "<code>" not in cell)
    return [html.unescape(re.sub("</?code>", "", cell)) for cell in found]


@pytest.fixture(scope="module")
def quick():
    return SubsetSelector(**{**TINY, "max_epochs": 2}).fit(*make_choices(20))


def test_names_of_columns_show_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=300) for name in HOSTILE}
    table = pd.DataFrame({"<b>set": np.arange(300) // 5, **data, "chosen": rng.random(300) < 0.5})
    selector = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(table, set_id="<b>set", chosen="chosen")
    selector.save(tmp_path / "model")
    shown = cells((tmp_path / "model" / "README.md").read_text(encoding="utf-8"))
    assert {" ".join(name.split()) for name in [*HOSTILE, "<b>set"]} <= set(shown)
    assert shown.count("number") == len(HOSTILE)


def test_the_page_tells_data_scores_options_and_versions(quick, tmp_path):
    quick.save(tmp_path / "model")
    page = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    shown = cells(page)
    # Its score is the mean of choices from nothing and of completions of one item.
    assert "in half of the choices one right item" in page
    assert f"{100 * quick.validation_score_:.2f}" in shown
    origin = quick.origin_
    assert origin.training.sets + origin.validation.sets == 20
    choices = make_choices(20)
    assert origin.training.items + origin.validation.items == choices.sets.layout.total
    assert origin.training.chosen + origin.validation.chosen == int(choices.subsets.values.sum())
    assert (origin.training.smallest, origin.training.largest) == (3, 7)
    for number in (origin.training.sets, origin.validation.items):
        assert str(number) in shown
    assert all(f"{100 * score:.2f}" in shown for score in quick.size_scores_.values())
    assert shown[shown.index("dim") + 1] == "16"
    assert origin.sha256 in page and f"torch {torch.__version__}" in page and "phi=" not in page
    assert origin.versions == {
        "setgrad": sg.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(origin.date) < timedelta(hours=1)


def test_a_module_as_phi_is_named(tmp_path, seeded):
    with seeded(0):
        phi = nn.Linear(2, 8)
    SubsetSelector(**{**TINY, "phi": phi, "max_epochs": 1}).fit(*make_choices(20)).save(tmp_path / "model")
    assert 'sg.load("path/of/this/folder", phi=module)' in (tmp_path / "model" / "README.md").read_text()


def test_the_date_is_that_of_the_fit(quick, tmp_path):
    """A model that is loaded and saved has the same bytes."""
    quick.save(tmp_path / "first")
    load(tmp_path / "first", device="cpu").save(tmp_path / "second")
    first, second = (
        {name: (tmp_path / part / name).read_bytes() for name in MODEL_FILES} for part in ("first", "second")
    )
    assert first == second
    assert json.loads(first["config.json"])["origin"]["date"] == quick.origin_.date


def test_the_hash_is_that_of_the_data(quick):
    choices = make_choices(20)
    again = SubsetSelector(**{**TINY, "dim": 8, "max_epochs": 1}).fit(*choices)
    assert again.origin_.sha256 == quick.origin_.sha256
    values = choices.sets.values.clone()
    values[-1, -1] += 1e-6
    other = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(choices.sets.with_values(values), choices.subsets)
    weighted = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices, sample_weight=np.arange(1, 21))
    assert len({quick.origin_.sha256, other.origin_.sha256, weighted.origin_.sha256}) == 3


def test_a_page_that_was_changed_stays_and_does_not_matter(quick, tmp_path):
    folder = tmp_path / "model"
    quick.save(folder)
    page = folder / "README.md"
    written = page.read_bytes()
    quick.save(folder)
    assert page.read_bytes() == written
    page.write_bytes(written + b"\nAsk Ann.\n")
    assert load(folder).best_epoch_ == quick.best_epoch_
    with pytest.warns(UserWarning, match="changed by hand and stays"):
        quick.save(folder)
    assert page.read_bytes().endswith(b"Ask Ann.\n")
    page.unlink()
    assert load(folder).best_epoch_ == quick.best_epoch_
    quick.save(folder)
    assert page.read_bytes() == written


def test_a_page_of_another_program_stays(quick, tmp_path):
    """An older model may have one."""
    folder = tmp_path / "model"
    shutil.copytree(Path(__file__).parent / "data" / "model_version_3", folder)
    (folder / "README.md").write_text("mine")
    old = load(folder)
    assert old.origin_ is None
    with pytest.warns(UserWarning, match="changed by hand"):
        old.save(folder)
    assert (folder / "README.md").read_text() == "mine"
    assert load(folder).origin_ is None


def test_an_older_model_has_a_page_without_data(tmp_path):
    load(Path(__file__).parent / "data" / "model_version_2", device="cpu").save(tmp_path / "model")
    page = (tmp_path / "model" / "README.md").read_text()
    assert "did not tell its data" in page and "## Versions" not in page
    assert cells(page)[cells(page).index("set") + 1] == "basket"


@pytest.mark.parametrize(
    ("name", "value"),
    [("date", "*now*"), ("sha256", "`"), ("versions", {"torch": "<b>"}), ("training", {"sets": -1}), ("validation", 3)],
)
def test_a_damaged_origin_is_refused(quick, tmp_path, name, value):
    quick.save(tmp_path / "model")
    rewrite_config(tmp_path / "model", lambda config: config["origin"].update({name: value}))
    with pytest.raises(FileFormatError, match="do not fit together"):
        load(tmp_path / "model")
