"""HTML elements. Every text is escaped, so data cannot become markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources

from setgrad._text_table import TextTable
from setgrad.report._svg import Picture

# The page may load nothing from outside, whatever its texts contain.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole document."""
    style = resources.files("setgrad.report").joinpath("style.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def heading(level: int, text: str) -> str:
    """Return a heading of level 1 to 6."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, *, quiet: bool = False) -> str:
    """Return a paragraph, or an empty string for an empty text."""
    if not text:
        return ""
    return f'<p class="quiet">{escape(text)}</p>' if quiet else f"<p>{escape(text)}</p>"


def table(grid: TextTable) -> str:
    """Return a table with a caption; columns of numbers are aligned on the right."""
    kinds = [' class="number"' if numeric else "" for numeric in grid.numeric]
    head = "".join(f'<th scope="col"{k}>{escape(c)}</th>' for k, c in zip(kinds, grid.columns, strict=True))
    rows = [
        "<tr>" + "".join(f"<td{k}>{escape(cell)}</td>" for k, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in grid.rows
    ]
    caption = f"<caption>{escape(grid.title)}</caption>" if grid.title else ""
    return "\n".join(
        [
            '<div class="wide"><table>',
            caption,
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *rows,
            "</tbody></table></div>",
        ]
    )


def group(kind: str, parts: Iterable[str]) -> str:
    """Return a block of elements with a class for the style sheet."""
    return "\n".join([f'<div class="{escape(kind)}">', *parts, "</div>"])


def picture(image: Picture, *, caption: str = "", kind: str = "") -> str:
    """Return an image with its alternative text and caption."""
    text = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    attribute = f' class="{escape(kind)}"' if kind else ""
    return f'<figure{attribute}><img src="{image.url}" alt="{escape(image.alt)}">{text}</figure>'


def collapsible(title: str, parts: Iterable[str]) -> str:
    """Return a section that is closed until the reader opens it."""
    return "\n".join(["<details>", f"<summary>{escape(title)}</summary>", *parts, "</details>"])
