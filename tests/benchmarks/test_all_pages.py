"""The command that writes all pages again: README shows what the records say."""

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.all_pages import MARKED_PAGES, records_page, with_tables


@pytest.mark.parametrize("page", MARKED_PAGES, ids=str)
def test_the_tables_of_the_pages_are_those_of_the_records(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- records: " in text
    assert with_tables(text) == text


def test_a_mark_without_a_table_is_an_error():
    with pytest.raises(KeyError, match="nothing"):
        with_tables("<!-- records: nothing -->\n<!-- end of records -->")


def test_commits_and_hardware_of_the_records_are_told():
    rows = [{"commit": "a", "device": "cpu: One"}, {"commit": "b", "device": "cuda: Two"}, {"commit": "b"}]
    assert "| [x](x.md) | 3 | b (2), a (1) | One, Two |" in records_page({"x": rows})
    many = [{"commit": str(number)} for number in range(6)]
    assert "| 6 | 0 (1), 1 (1), 2 (1), 3 (1), 2 more (2) |  |" in records_page({"y": many})


def test_the_command_is_beside_the_benchmarks(capsys):
    assert "pages" not in BENCHMARKS
    with pytest.raises(SystemExit):
        main(["pages", "--help"])
    assert "--tables-only" in capsys.readouterr().out
