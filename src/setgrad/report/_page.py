"""Pieces of HTML. Every text passes through `html.escape`, so data cannot become markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources

from setgrad._text_table import TextTable
from setgrad.report._svg import Picture

# The page may use what it carries and nothing else, whatever a text in it says.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, body: Iterable[str]) -> str:
    """A whole document."""
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
    """A heading of level 1 to 6."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, *, quiet: bool = False) -> str:
    """A paragraph, or nothing for an empty text."""
    if not text:
        return ""
    return f'<p class="quiet">{escape(text)}</p>' if quiet else f"<p>{escape(text)}</p>"


def table(grid: TextTable) -> str:
    """A table with a caption; columns of numbers stand on the right."""
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
    """Several pieces in one block, laid out by the style sheet."""
    return "\n".join([f'<div class="{escape(kind)}">', *parts, "</div>"])


def picture(image: Picture, *, caption: str = "", kind: str = "") -> str:
    """A picture with its description for those who do not see it."""
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    named = f' class="{escape(kind)}"' if kind else ""
    return f'<figure{named}><img src="{image.address}" alt="{escape(image.alt)}">{words}</figure>'


def folded(title: str, parts: Iterable[str]) -> str:
    """Pieces that open when the reader asks."""
    return "\n".join(["<details>", f"<summary>{escape(title)}</summary>", *parts, "</details>"])
