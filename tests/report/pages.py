"""Reads a page as a browser would, and checks that what is opened is closed."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from setgrad.report import Section, write_report

VOID = {"meta", "img", "br", "rect", "circle", "path"}


class Page(HTMLParser):
    """Tags with their attributes, texts, headings, and the rows of all tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        # Parts of SVG close themselves.
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if self.open and self.open[-1] in {"h2", "h3", "h4"}:
            self.headings.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def row(self, label: str) -> list[str]:
        """Return the only row that begins with this cell."""
        (found,) = (row for row in self.rows if row and row[0] == label)
        return found[1:]

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def written(path: Path, *sections: Section, **options: Any) -> Page:
    """Write a report and read it."""
    write_report(path, sections, **options)
    return Page(path.read_text(encoding="utf-8"))
