"""Result pages: the order of their parts, and where they are written."""

from pathlib import Path

from benchmarks.lib.pages import PAGES, RESULTS, Report, page_path, show_page

RECORD = {"device": "cuda: NVIDIA H200", "torch": "2.11.0+cu130", "commit": "abc", "command": "python -m benchmarks x"}


def _draw(records: object, page: Path) -> list[Path]:
    path = page.with_suffix(".png")
    path.write_bytes(b"figure")
    return [path]


def test_a_page_has_tables_then_notes_then_the_command(tmp_path: Path) -> None:
    report = Report("x", "Title", lambda records: f"| {len(records)} |", "Two seeds.", "python -m benchmarks x", _draw)
    show_page(report, [RECORD, {**RECORD, "device": "none"}], tmp_path / "x.md")
    assert (tmp_path / "x.md").read_text() == (
        "# Title\n\n| 2 |\n\n![x](x.png)\n\nTwo seeds. Hardware: NVIDIA H200 (torch 2.11).\n\n"
        "## Reproduce\n\n```\npython -m benchmarks x\n```\n"
    )


def test_pages_of_the_usual_records_go_to_the_documentation(tmp_path: Path) -> None:
    assert page_path(RESULTS / "x.jsonl") == PAGES / "x.md"
    assert page_path(tmp_path / "x.jsonl") == tmp_path / "x.md"
