"""Result pages: the tables first, then a few sentences, then the command that reproduces them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from benchmarks.lib.plots import has_matplotlib
from benchmarks.lib.records import Record

RESULTS, PAGES = Path("benchmarks/results"), Path("docs/results")
# From records to tables in Markdown, and from records and the path of the page to the paths of figures.
Body = Callable[[Sequence[Record]], str]
Draw = Callable[[Sequence[Record], Path], Sequence[Path]]


@final
@dataclass(frozen=True)
class Report:
    """How the records of a benchmark become a page.

    `body` returns the tables in Markdown. `notes` says in plain sentences what was run and what falls short. `draw`
    writes figures beside the page, whose path it gets, and returns their paths; it is only called if Matplotlib is
    installed.
    """

    name: str
    title: str
    body: Body
    notes: str
    command: str
    draw: Draw | None = None

    @classmethod
    def of_module(cls, doc: str | None, title: str, body: Body, command: str, draw: Draw | None = None) -> Report:
        """Return the report of a module: its notes are the paragraph "Results:" of the docstring `doc`.

        `command` follows `python -m benchmarks`; its first word is the name of the benchmark.
        """
        return cls(command.split()[0], title, body, results_paragraph(doc), f"python -m benchmarks {command}", draw)

    @property
    def results(self) -> Path:
        """The usual file of records."""
        return RESULTS / f"{self.name}.jsonl"


def results_paragraph(docstring: str | None) -> str:
    """Return the paragraph "Results: ..." of a docstring, without that word.

    Examples:
        >>> results_paragraph("A benchmark.\\n\\nResults: It is\\nfast.\\n")
        'It is fast.'
    """
    paragraphs = (docstring or "").split("\n\n")
    results = next(paragraph for paragraph in paragraphs if paragraph.startswith("Results: "))
    return " ".join(results.removeprefix("Results: ").split())


def page_path(results: Path) -> Path:
    """Return the path of the page: in the documentation for the usual records, else beside the file of records."""
    usual = results.parent.resolve() == RESULTS.resolve()
    return (PAGES / results.name if usual else results).with_suffix(".md")


def show_page(report: Report, records: Sequence[Record], page: Path | None) -> None:
    """Print the page of these records and, with a path, write it together with its figures."""
    figures: Sequence[Path] = []
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        figures = report.draw(records, page) if report.draw is not None and has_matplotlib() else []
    text = render_page(
        report.title,
        "\n\n".join([report.body(records), *(f"![{figure.stem}]({figure.name})" for figure in figures)]),
        " ".join(filter(None, [report.notes, ran_on(records)])),
        report.command,
    )
    print(f"\n{text}", end="", flush=True)
    if page is not None:
        page.write_text(text, encoding="utf-8")


def render_page(title: str, body: str, notes: str, command: str) -> str:
    """Return the Markdown of a page."""
    parts = [f"# {title}", body, textwrap.fill(notes, 120), f"## Reproduce\n\n```\n{command}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def ran_on(records: Sequence[Record]) -> str:
    """Return a sentence that names the hardware and torch versions of the records.

    Examples:
        >>> ran_on([{"device": "cuda: NVIDIA H200", "torch": "2.11.0+cu130"}])
        'Hardware: NVIDIA H200 (torch 2.11).'
    """
    machines = {
        f"{record['device'].partition(': ')[2]} (torch {'.'.join(record['torch'].split('.')[:2])})"
        for record in records
        if ": " in record["device"]
    }
    return f"Hardware: {', '.join(sorted(machines))}." if machines else ""
