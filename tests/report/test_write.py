"""The page is whole, carries all it needs, and takes texts as texts."""

import datetime
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from setgrad import Choices, SubsetSelector
from setgrad._text_table import TextTable
from setgrad.errors import DataError, MissingDependencyError, NotFittedError, OptionError, ShapeError
from setgrad.report import Evaluation, Section, write_report
from tests.report.conftest import HOSTILE, Shop
from tests.report.pages import Page, written


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, selector: SubsetSelector, evaluation: Evaluation) -> Page:
    summary = TextTable("all of it", ("task", "score"), (("moons", "12.00"),))
    section = Section("Moons", selector, evaluation, "a note")
    path = tmp_path_factory.mktemp("page") / "deep" / "report.html"
    return written(path, section, title="A title", summary=summary, sets=5)


@pytest.fixture(scope="module")
def shop_page(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> Page:
    section = Section(HOSTILE[4], shop.selector, shop.evaluation, HOSTILE[5], shop.training, shop.table)
    summary = TextTable(HOSTILE[0], (HOSTILE[1],), ((HOSTILE[2],),))
    return written(tmp_path_factory.mktemp("shop") / "r.html", section, title=HOSTILE[0], summary=summary)


def test_page_has_pictures_of_the_curves_the_charts_and_each_set(page: Page) -> None:
    images = page.attributes("img")
    assert len(images) == 2 + 2 + 5
    for attributes in images:
        assert (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
        assert len(attributes["alt"] or "") > 20


@pytest.mark.parametrize("which", ["page", "shop_page"])
def test_page_loads_nothing(which: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(which)
    for tag, attributes in page.seen:
        assert tag not in {"script", "link", "iframe", "object", "base", "form", "a", "use"}
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "data:").startswith("data:")
    (style,) = (words for words in page.words if "color-scheme" in words)
    assert not re.search(r"url\(|@import|https?:", style)
    policies = [attributes["content"] for attributes in page.attributes("meta") if "http-equiv" in attributes]
    assert (policies[0] or "").startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")


def test_page_says_what_it_should(page: Page, evaluation: Evaluation) -> None:
    for text in ("A title", "all of it", "12.00", "Moons", "a note", "learning_rate", "stop"):
        assert text in page.text
    assert f"{100 * evaluation.scores.jaccard:.2f}" in page.text
    assert f"{100 * evaluation.scores.chance:.2f}" in page.text


def test_page_fits_phones_and_follows_dark_screens(page: Page) -> None:
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.attributes("meta")
    (style,) = (words for words in page.words if "color-scheme" in words)
    assert "@media (prefers-color-scheme: dark)" in style
    # A wide table scrolls in its box; the bars have a fixed layout.
    boxes = [attributes for attributes in page.attributes("div") if attributes.get("class") == "wide"]
    bars = [attributes for attributes in page.attributes("table") if attributes.get("class") == "bars"]
    assert len(boxes) + len(bars) == len(page.attributes("table"))
    # Nothing that could not shrink to 390 pixels with the margins of the page: 350 pixels.
    floors = [float(number) * 16 for number in re.findall(r"(?<!m)min-width: ([\d.]+)rem", style)]
    floors += [float(number) * 16 for number in re.findall(r"minmax\(([\d.]+)rem", style)]
    assert floors and max(floors) < 350


def test_hostile_texts_stay_texts(shop_page: Page) -> None:
    assert not shop_page.attributes("script")
    for text in (*HOSTILE[:4], HOSTILE[5]):
        assert text in shop_page.text
    assert "49" not in [word.strip() for word in shop_page.words]
    # Names of columns in tables and bars, and of items in lists.
    assert f"weight {HOSTILE[1]}" in [row[0] for row in shop_page.rows]
    assert any(f"{HOSTILE[0]} " in words for words in shop_page.words)
    # What no document may hold, and what would turn the text around, is replaced.
    assert "\ufffdgnp.exe \ufffd \ufffd\ufffd" in shop_page.text


def test_hostile_ids_in_the_text_of_pictures(tmp_path: Path, selector: SubsetSelector, evaluation: Evaluation) -> None:
    sets, subsets = evaluation.choices
    named = Choices(sets, subsets, set_ids=[f"{HOSTILE[number % 6]} {number}" for number in range(len(sets))])
    page = written(tmp_path / "r.html", Section("s", selector, replace(evaluation, choices=named)), sets=12)
    alts = " ".join(attributes["alt"] or "" for attributes in page.attributes("img"))
    for text in (*HOSTILE[:4], HOSTILE[5]):
        assert text in alts
    assert not page.attributes("script") and "\u202e" not in alts


def test_section_without_sets_shows_the_training(tmp_path: Path, selector: SubsetSelector) -> None:
    page = written(tmp_path / "r.html", Section("Training", selector))
    assert len(page.attributes("img")) == 2
    assert page.headings == ["Training", "Learning curve"]


def test_same_input_same_bytes(tmp_path: Path, selector: SubsetSelector, evaluation: Evaluation) -> None:
    for name in "ab":
        day = datetime.date(2026, 2, 3)
        write_report(tmp_path / name, [Section("Moons", selector, evaluation)], sets=2, date=day)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert 'on <time datetime="2026-02-03">' in (tmp_path / "a").read_text(encoding="utf-8")


def test_old_page_stays_if_the_new_one_fails(
    tmp_path: Path, selector: SubsetSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.html"
    path.write_text("old")

    def full(self: Path, text: str, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DataError, match="No space left"):
        write_report(path, [Section("Training", selector)])
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_matplotlib_missing(tmp_path: Path, selector: SubsetSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "setgrad\[demo\]"'):
        write_report(tmp_path / "r.html", [Section("Training", selector)])
    assert not (tmp_path / "r.html").exists()


def test_grid_knows_its_numbers() -> None:
    grid = TextTable("", ("a", "b", "c", "d"), (("x", "1.5", "-", "3 s"), ("2", "-2e-05", "7", "")))
    assert grid.numeric == (False, True, True, True)
    assert TextTable("", ("a",), ()).numeric == (False,)
    with pytest.raises(ShapeError, match="2 columns"):
        TextTable("g", ("a", "b"), (("1",),))


def test_a_negative_number_of_sets(tmp_path: Path, selector: SubsetSelector) -> None:
    with pytest.raises(OptionError, match="0 or more, not -1"):
        write_report(tmp_path / "r.html", [Section("Training", selector)], sets=-1)


def test_an_unfitted_selector_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with pytest.raises(NotFittedError, match=r"'Later' is not fitted yet; call fit"):
        write_report(page, [Section("Later", SubsetSelector())])
    assert not page.exists()
