"""Product bundles: small generated files, and the real ones if available."""

import csv
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from setgrad.datasets import BUNDLE_CATEGORIES, bundles, load_task
from setgrad.errors import DataError, FileFormatError
from tests.datasets.helpers import check_seeds, splits

# Sessions: their products, and the bundles of them. Product 9 of a session is in no bundle.
SESSIONS = {
    session: ([10 * session + i for i in (1, 2, 3, 4, 9)], [[1, 2], [3, 4], [1, 2, 3, 4]]) for session in range(1, 21)
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle_sun2022" / "food"
    folder.mkdir(parents=True)
    tables: dict[str, list[tuple[object, ...]]] = {
        "session_item": [("session ID", "item ID")],
        "session_bundle": [("session ID", "bundle ID")],
        "bundle_item": [("bundle ID", "item ID")],
        "user_session": [("user ID", "session ID", "timestamp")],
        "item_titles": [("item ID", "titles")],
        "item_categories": [("item ID", "categories")],
    }
    for session, (offer, made) in SESSIONS.items():
        # two sessions for each customer
        tables["user_session"].append((session // 2, session, 0))
        tables["session_item"] += [(session, item) for item in offer]
        for number, items in enumerate(made):
            bundle = 100 * session + number
            tables["session_bundle"].append((session, bundle))
            tables["bundle_item"] += [(bundle, 10 * session + item) for item in items]
        for item in offer[:-1]:
            tables["item_titles"].append((item, f"Green Tea &amp; Lemon, pack of {item}"))
            tables["item_categories"].append((item, "[[Food,Coffee, Tea & Cocoa,Tea],[Gifts]]" if item % 2 else "[[]]"))
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    return folder


def root(folder: Path) -> Path:
    return folder.parents[1]


def test_sets_are_the_described_products_and_subsets_are_bundles(folder: Path) -> None:
    task = bundles("food", data_dir=root(folder))
    bundle_ids = set()
    for part in splits(task):
        items = np.asarray(part.item_ids).reshape(-1, 4)
        for bundle, offer, mask in zip(part.set_ids or [], items, part.subsets, strict=True):
            session, number = divmod(bundle, 100)
            assert sorted(offer) == SESSIONS[session][0][:4]
            assert sorted(offer[mask.numpy()]) == [10 * session + i for i in SESSIONS[session][1][number]]
            bundle_ids.add(bundle)
    # bundles of all products of a session are left out
    assert bundle_ids == {100 * session + number for session in SESSIONS for number in (0, 1)}


def test_no_customer_is_in_two_splits(folder: Path) -> None:
    task = bundles("food", data_dir=root(folder))
    customers = [{bundle // 200 for bundle in part.set_ids or []} for part in splits(task)]
    assert all(customers)
    assert not customers[0] & customers[1] and not customers[0] & customers[2] and not customers[1] & customers[2]


def test_features_depend_on_title_and_categories(folder: Path) -> None:
    part = bundles("food", data_dir=root(folder)).train
    values, items = part.sets.values, np.asarray(part.item_ids)
    assert values.dtype == torch.float32 and values.shape[1] == 384
    title, category = values[:, :256], values[:, 256:]
    torch.testing.assert_close(title.norm(dim=1), torch.ones(len(items)))
    # only products with odd ids have categories, all of them the same
    torch.testing.assert_close(category.norm(dim=1), torch.from_numpy(items % 2).float())
    assert len(category[torch.from_numpy(items % 2 == 1)].unique(dim=0)) == 1
    # Gifts, Food, and two steps below Food: a comma followed by a space is part of a name
    assert category[torch.from_numpy(items % 2 == 1)][0].abs().gt(0).sum() == 4
    one, two = (title[torch.from_numpy(items == item)][0] for item in np.unique(items)[:2])
    assert 0.5 < float(one @ two) < 0.999


def test_equal_seeds_give_equal_data(folder: Path) -> None:
    check_seeds(partial(bundles, "food", data_dir=root(folder)))


def test_the_task_is_loaded_by_name_with_smaller_counts(folder: Path) -> None:
    task = load_task("bundles:food", data_dir=root(folder), n_train=3, n_validation=0)
    assert task.name == "bundles:food" and "licence" in task.source
    assert [len(part) for part in splits(task)][:2] == [3, 0]
    assert len(task.test) > 0
    whole = bundles("food", data_dir=root(folder))
    assert task.train.set_ids == (whole.train.set_ids or [])[:3]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("session_item", "1,x\n", "integers were expected, not 'x'"),
        ("session_item", "one,2\n", "an integer and a second column"),
        ("item_titles", "7\n", "an integer and a second column"),
        ("bundle_item", "100,999\n", "bundle 100 holds products that are not in its session"),
        ("session_bundle", "1,200\n", "bundle 200 holds products that are not in its session"),
    ],
)
def test_damaged_files_raise_errors(folder: Path, name: str, line: str, message: str) -> None:
    path = folder / f"{name}.csv"
    path.write_text(path.read_text() + line)
    with pytest.raises(FileFormatError, match=message):
        bundles("food", data_dir=root(folder))


def test_unreadable_and_missing_files_raise_errors(folder: Path) -> None:
    path = folder / "item_titles.csv"
    path.write_bytes(b"item ID,titles\n1,\xff\n")
    with pytest.raises(FileFormatError, match=r"item_titles.csv cannot be read"):
        bundles("food", data_dir=root(folder))
    path.unlink()
    with pytest.raises(DataError, match=r"item_titles.csv is missing"):
        bundles("food", data_dir=root(folder))
    with pytest.raises(DataError, match="the folder that contains bundle_sun2022/clothing"):
        bundles("clothing", data_dir=root(folder))


@pytest.mark.parametrize("category", BUNDLE_CATEGORIES)
def test_real_files_have_the_published_counts_and_scores(category: str, data_dir: Path) -> None:
    if not (data_dir / "bundle_sun2022").is_dir():
        pytest.skip(f"no bundles in {data_dir}")
    task = bundles(category, data_dir=data_dir)
    total = {"clothing": 1274, "electronic": 1220, "food": 1206}[category]
    assert sum(len(part) for part in splits(task)) == total
    scores = []
    with (data_dir / "bundle_sun2022" / category / "session_bundle.csv").open() as file:
        session = {int(bundle): int(number) for number, bundle in list(csv.reader(file))[1:]}
    earlier: set[int] = set()
    for part in splits(task):
        assert set(part.sets.layout.host_lengths) == set(range(3, 11))
        numbers = {session[bundle] for bundle in part.set_ids or []}
        assert not numbers & earlier
        earlier |= numbers
        for mask in part.subsets:
            assert 2 <= int(mask.sum()) < len(mask)
            scores.append(float(mask.float().mean()))
        # every product has a description, so an empty one does not give the answer away
        assert part.sets.values[:, :256].abs().sum(1).min() > 0
    assert np.mean(scores) == pytest.approx(0.47, abs=0.01)
