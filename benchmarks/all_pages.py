"""Every page of results, and the tables of README and the first page, written again from the stored records.

Runs nothing. Beside the pages it writes `docs/results/records.md`: of which commits and hardware the records of each
page are. In README and other pages a table between `<!-- records: NAME -->` and `<!-- end of records -->` is replaced.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.__main__ import BENCHMARKS
from benchmarks.lib.pages import PAGES, Report, show_page
from benchmarks.lib.records import Record, read_records
from benchmarks.selection.overview import TABLES

_MARKED = re.compile(r"(<!-- records: ([\w ]+) -->\n).*?(<!-- end of records -->)", re.DOTALL)
MARKED_PAGES = (Path("README.md"), PAGES / "index.md")
_MANY = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--tables-only", action="store_true", help="only the tables of README and the first page")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Write all pages that have records, and the marked tables; return the names of the pages."""
    for page in MARKED_PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    if options.tables_only:
        return {"pages": []}
    reports = {report.name: report for module in BENCHMARKS.values() if isinstance(report := _report(module), Report)}
    written = {}
    for name, report in sorted(reports.items()):
        if report.results.is_file():
            written[name] = read_records(report.results)
            show_page(report, written[name], (PAGES / report.results.name).with_suffix(".md"))
    (PAGES / "records.md").write_text(records_page(written), encoding="utf-8")
    return {"pages": list(written)}


def _report(module: ModuleType) -> Any:
    return getattr(module, "REPORT", None)


def with_tables(text: str) -> str:
    """Return a page with its marked tables made again from the records.

    Raises:
        KeyError: If a mark names no table.
    """
    return _MARKED.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", text)


def records_page(records: Mapping[str, list[Record]]) -> str:
    """Return the page that tells of which commits and hardware the records are."""
    lines = [
        "# Where the figures come from",
        "",
        "Each page of results is written from the records in `benchmarks/results` by `python -m benchmarks pages`,",
        "which runs nothing. A record has the command, the commit and the hardware of its run. Commits are told with",
        "the number of their records, the largest first; a plus means that files differed from the commit.",
        "",
        "| page | records | commits | hardware |",
        "|---|---|---|---|",
    ]
    for name, rows in records.items():
        commits = Counter(str(record.get("commit", "unknown")) for record in rows)
        shown = [f"{commit} ({count})" for commit, count in commits.most_common(_MANY)]
        rest = len(commits) - len(shown)
        shown += [f"{rest} more ({len(rows) - sum(count for _, count in commits.most_common(_MANY))})"] if rest else []
        hardware = sorted({str(record.get("device", "")).partition(": ")[2] for record in rows} - {""})
        lines.append(f"| [{name}]({name}.md) | {len(rows)} | {', '.join(shown)} | {', '.join(hardware)} |")
    return "\n".join(lines) + "\n"
