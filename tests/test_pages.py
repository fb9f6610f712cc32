"""The pages are true: their Python blocks and commands run, their links resolve, and the API pages are complete."""

import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import setgrad as sg
from scripts.run_pages import BLOCK, FOOTER, PICTURE, code_hash, run_block
from setgrad.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PACKAGES = sorted((ROOT / "src" / "setgrad").glob("*/README.md"))
README, QUICK_START = ROOT / "README.md", ROOT / "docs" / "quick-start.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *DOCS, *PACKAGES]
# These fit for minutes: `scripts/run_pages.py` runs them, by hand.
RUN_PAGES = [page for page in DOCS if FOOTER.search(page.read_text(encoding="utf-8"))]
PUBLIC_NAMES = (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").split()


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _python(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", _text(page), re.S | re.M)


def _commands(page: Path) -> list[str]:
    return re.findall(r"^setgrad .*$", _text(page), re.M)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _table(baskets: int, items: int = 6) -> dict[str, np.ndarray]:
    """Return baskets of products, of which the two with the largest x were bought."""
    rng = np.random.default_rng(baskets)
    x = rng.normal(size=(baskets, items))
    return {
        "basket": np.repeat(np.arange(baskets), items),
        "sku": np.tile(np.arange(items), baskets),
        "brand": rng.integers(0, 3, baskets * items),
        "price": rng.integers(5, 30, baskets * items).astype(float),
        "x": x.reshape(-1),
        "bought": (x.argsort(1).argsort(1) >= items - 2).reshape(-1),
    }


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_trees: Callable[..., AbstractContextManager[None]]
) -> Iterator[Path]:
    """Work in an empty folder, with few sets, epochs and trees: the pages must run, not learn."""
    monkeypatch.chdir(tmp_path)
    fit, fit_read = sg.SubsetSelector.fit, sg.SubsetSelector.fit_read
    load_task, load_table = sg.datasets.load_task, sg.datasets.load_table

    def shorten(selector: sg.SubsetSelector) -> sg.SubsetSelector:
        small = {"dim": 16, "hidden": (16,), "layers": 1} if selector.phi == "context" else {}
        return selector.set_params(max_epochs=1, verbose=0, **small)

    def short_fit(selector: sg.SubsetSelector, *args: Any, **kwargs: Any) -> sg.SubsetSelector:
        return fit(shorten(selector), *args, **kwargs)

    # What the command line calls.
    def short_fit_read(selector: sg.SubsetSelector, *args: Any, **kwargs: Any) -> sg.SubsetSelector:
        return fit_read(shorten(selector), *args, **kwargs)

    def small_task(name: str, **options: Any) -> sg.datasets.Task:
        return load_task(name, **{**options, "n_train": 30, "n_validation": 9, "n_test": 9})

    def small_table(name: str, **options: Any) -> sg.datasets.TableTask:
        return load_table(name, **{**options, "n_train": 30, "n_test": 20})

    monkeypatch.setattr(sg.SubsetSelector, "fit", short_fit)
    monkeypatch.setattr(sg.SubsetSelector, "fit_read", short_fit_read)
    for name, module in list(sys.modules.items()):
        for attribute, original, small in (
            ("load_task", load_task, small_task),
            ("load_table", load_table, small_table),
        ):
            if name.startswith("setgrad") and vars(module).get(attribute) is original:
                monkeypatch.setattr(module, attribute, small)
    with torch.random.fork_rng(), few_trees():
        yield tmp_path


@functools.cache
def _fitted(sets: sg.Sets, subsets: sg.Sets) -> sg.SubsetSelector:
    return sg.SubsetSelector(random_state=0, max_epochs=2, verbose=0, device="cpu").fit(sets, subsets)


def _package_names() -> dict[str, Any]:
    """Return the names that a package's README may use without defining them."""
    table = _table(24)
    sets = sg.Sets.from_lengths(torch.tensor(table["x"])[:, None].float(), [6] * 24)
    subsets = sets.with_values(torch.tensor(table["bought"]))
    return {
        "sg": sg,
        "sets": sets,
        "subsets": subsets,
        "sel": _fitted(sets, subsets),
        "prices": sets.with_values(torch.tensor(table["price"])),
        "brands": sets.with_values(torch.tensor(table["brand"])),
        "weights": [10.0] * 6,
        **{f"x{i}": torch.randn(i, 2) for i in range(3)},
        "picks": sg.Sets.from_list([[True, False, False, False, True, True]] * 6),
    }


@pytest.mark.parametrize(
    "page", [page for page in [README, *DOCS] if _python(page) and page not in RUN_PAGES], ids=_name
)
def test_page_runs_as_it_stands(page: Path, folder: Path) -> None:
    names = {"__name__": "page"}
    for number, block in enumerate(_python(page)):  # later blocks may use the names of earlier ones
        exec(compile(block, f"{_name(page)}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", RUN_PAGES, ids=_name)
def test_page_shows_what_its_code_printed(page: Path) -> None:
    """If this fails, run `scripts/run_pages.py PAGE`."""
    (shown,) = FOOTER.findall(_text(page))
    assert shown == code_hash(_text(page))
    assert all((page.parent / name).exists() for name in PICTURE.findall(_text(page)))


def test_tutorials_and_comparisons_were_run() -> None:
    pages = [page for page in DOCS if page.parent.name in ("tutorials", "coming-from") and page.stem != "index"]
    assert len(pages) == 12
    assert not [_name(page) for page in pages if page not in RUN_PAGES]


def test_a_block_is_followed_by_what_it_prints() -> None:
    text = "```python\nx = 2\nprint(x)\n```\n\n```text\nold\n```\n\nend\n"
    names: dict[str, Any] = {}
    new = BLOCK.sub(lambda match: run_block(match[1], match[2], names), text)
    assert new == text.replace("old", "2")
    assert run_block("sh", "echo a\necho b | wc -c\n", names).endswith("```text\na\n2\n```\n")
    assert run_block("python", "y = x\n", names) == "```python\ny = x\n```\n"
    assert code_hash(text) == code_hash(new) != code_hash(text.replace("x = 2", "x = 3"))


@pytest.mark.parametrize("page", [page for page in PACKAGES if _python(page)], ids=_name)
def test_package_page_runs(page: Path, folder: Path) -> None:
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for name, baskets in (("baskets", 24), ("new_baskets", 5), ("choices", 6)):
        parquet.write_table(pyarrow.table(_table(baskets)), folder / f"{name}.parquet")
    for number, block in enumerate(_python(page)):
        exec(compile(block, f"{_name(page)}, block {number}", "exec"), _package_names())


@pytest.mark.parametrize("page", [README, QUICK_START], ids=_name)
def test_commands_run(page: Path, folder: Path) -> None:
    commands = _commands(page)
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command)[1:]
        assert main(words) == 0, command
        if "-o" in words:
            assert Path(words[words.index("-o") + 1]).exists(), command


def test_readme_is_one_page() -> None:
    assert len(_text(README).splitlines()) <= 150


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Markdown renderers derive them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", _text(page), flags=re.S | re.M), re.M)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", _text(page), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{_name(page)}: {link}"
        assert not anchor or anchor in _anchors(target), f"{_name(page)}: {link}"
        if page in DOCS:
            assert target.is_relative_to(ROOT / "docs"), f"{_name(page)}: {link} is not a page of the site"


def test_api_pages_list_the_public_names() -> None:
    """If this fails, edit the page of the package under docs/api/."""
    listed = [
        name for page in (ROOT / "docs" / "api").glob("*.md") for name in re.findall(r"^::: (\S+)$", _text(page), re.M)
    ]
    top = re.findall(r"^\| `sg\.(\w+)`", _text(ROOT / "docs" / "api" / "setgrad.md"), re.M)
    listed = [name.removeprefix("setgrad.") for name in listed if not name.startswith("setgrad.errors.")]
    assert sorted([*top, *listed]) == sorted(PUBLIC_NAMES)


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r"[\w/-]+\.md", _text(ROOT / "mkdocs.yml"))
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in DOCS]
    assert sorted(navigation) == sorted(p for p in pages if not p.startswith("results/") or p == "results/index.md")
