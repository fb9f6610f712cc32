"""The page is whole, carries all it needs, and takes texts as texts."""

import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from setgrad import Choices, SubsetSelector
from setgrad._text_table import TextTable
from setgrad.errors import DataError, MissingDependencyError, NotFittedError, OptionError, ShapeError
from setgrad.report import Evaluation, Section, evaluate, write_report

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Collects tags and attributes, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def page(tmp_path: Path, selector: SubsetSelector, evaluation: Evaluation) -> Page:
    path = tmp_path / "deep" / "report.html"
    summary = TextTable("all of it", ("task", "score"), (("moons", "12.00"),))
    write_report(path, [Section("Moons", selector, evaluation, "a note")], title="A title", summary=summary, sets=5)
    return Page(path.read_text(encoding="utf-8"))


def test_page_has_a_picture_for_the_curve_the_legend_and_each_set(page: Page) -> None:
    images = [attributes for tag, attributes in page.seen if tag == "img"]
    assert len(images) == 1 + 1 + 5
    for attributes in images:
        assert (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
        assert len(attributes["alt"] or "") > 20


def test_page_loads_nothing(page: Page) -> None:
    for tag, attributes in page.seen:
        assert tag not in {"script", "link", "iframe", "object", "base"}
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "data:").startswith("data:")
    text = "".join(page.words)
    assert "url(" not in text
    assert "@import" not in text
    assert "http:" not in text
    assert "https:" not in text


def test_page_says_what_it_should(page: Page, evaluation: Evaluation) -> None:
    words = " ".join(page.words)
    for text in ("A title", "all of it", "12.00", "Moons", "a note", "learning_rate", "stop"):
        assert text in words
    assert f"{100 * evaluation.scores.jaccard:.2f}" in words
    assert f"{100 * evaluation.scores.chance:.2f}" in words


def test_texts_are_escaped(tmp_path: Path, selector: SubsetSelector, test_sets: Choices) -> None:
    evil = "<script>alert('x')</script> & \"quoted\""
    named = Choices(test_sets.sets, test_sets.subsets, set_ids=[f"{evil} {number}" for number in range(len(test_sets))])
    section = Section(evil, selector, evaluate(selector, named), evil)
    path = tmp_path / "r.html"
    write_report(path, [section], title=evil, summary=TextTable(evil, (evil,), ((evil,),)), sets=1)
    page = Page(path.read_text(encoding="utf-8"))
    assert not [tag for tag, _ in page.seen if tag == "script"]
    assert evil in page.words
    alts = [attributes["alt"] or "" for tag, attributes in page.seen if tag == "img"]
    assert any(evil in alt for alt in alts)


def test_section_without_sets_shows_the_training(tmp_path: Path, selector: SubsetSelector) -> None:
    write_report(tmp_path / "r.html", [Section("Training", selector)])
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert [tag for tag, _ in page.seen].count("img") == 1


def test_same_input_same_bytes(tmp_path: Path, selector: SubsetSelector, evaluation: Evaluation) -> None:
    for name in "ab":
        write_report(tmp_path / name, [Section("Moons", selector, evaluation)], sets=2)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


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
