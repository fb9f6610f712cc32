"""CelebA's public format, on small generated files: CelebA itself may not be redistributed."""

from functools import partial
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from setgrad.datasets import Task, celeba, load_task
from setgrad.datasets._celeba import _pair_weights
from setgrad.errors import DataError, FileFormatError, MissingDependencyError
from tests.datasets.helpers import check_seeds, hide, splits

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")

COUNT = 180
NAMES = [f"{number:06}.jpg" for number in range(1, COUNT + 1)]
PRESENT = np.random.default_rng(0).random((COUNT, 5)) < 0.45
PART = np.repeat([0, 1, 2], COUNT // 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    # As published: the count, the names of the attributes, then 1 or -1 with one or two spaces before it.
    rows = [
        f"{name} " + " ".join(f"{1 if has else -1:2d}" for has in row) for name, row in zip(NAMES, PRESENT, strict=True)
    ]
    (folder / "list_attr_celeba.txt").write_text(
        "\n".join([str(COUNT), "Bald Bangs Male Smiling Young ", *rows]) + "\n"
    )
    (folder / "list_eval_partition.txt").write_text(
        "".join(f"{name} {part}\n" for name, part in zip(NAMES, PART, strict=True))
    )
    for number, name in enumerate(NAMES):
        # Red is the number of the image; green marks the upper half and blue the left half.
        pixels = np.zeros((218, 178, 3), np.uint8)
        pixels[..., 0] = number
        pixels[:109, :, 1] = 255
        pixels[:, :89, 2] = 255
        Image.fromarray(pixels).save(folder / "img_align_celeba" / name, quality=95)
    return folder


def small(folder: Path, random_state: int = 0, n_train: int = 30) -> Task:
    return celeba(random_state=random_state, data_dir=folder.parent, n_train=n_train, n_validation=20, n_test=20)


def test_normal_faces_share_two_attributes_that_no_odd_face_has(folder: Path) -> None:
    for part in splits(small(folder)):
        faces = np.asarray([NAMES.index(name) for name in part.item_ids]).reshape(-1, 8)
        chosen = part.subsets.values.numpy().reshape(-1, 8)
        assert set(chosen.sum(1)) == {2, 3}
        for images, odd in zip(faces, chosen, strict=True):
            assert len(set(images)) == 8
            shared = PRESENT[images[~odd]].all(0) & ~PRESENT[images[odd]].any(0)
            assert shared.sum() >= 2


def test_splits_are_the_published_ones(folder: Path) -> None:
    for number, part in enumerate(splits(small(folder))):
        assert {int(PART[NAMES.index(name)]) for name in part.item_ids} == {number}


def test_items_are_the_centre_of_the_photographs(folder: Path) -> None:
    part = small(folder).test
    assert part.sets.item_shape == (3, 64, 64) and part.sets.dtype == torch.float32
    for image, name in zip(part.sets.values, part.item_ids, strict=True):
        assert abs(float(image[0].mean()) * 255 - NAMES.index(name)) < 3
        assert image[1, :30].min() > 0.9 and image[1, 34:].max() < 0.1
        assert image[2, :, :30].min() > 0.9 and image[2, :, 34:].max() < 0.1


def test_only_the_photographs_of_the_sets_are_read(folder: Path) -> None:
    used = set(np.concatenate([np.asarray(part.item_ids) for part in splits(small(folder, n_train=2))]).tolist())
    unused = [name for name in NAMES if name not in used]
    assert unused
    for name in unused:
        (folder / "img_align_celeba" / name).unlink()
    small(folder, n_train=2)


def test_equal_seeds_give_equal_data(folder: Path) -> None:
    check_seeds(partial(small, folder))


def test_pairs_of_attributes_have_the_probability_of_a_random_face() -> None:
    present = np.random.default_rng(1).random((60, 4)) < 0.5
    expected = np.zeros((4, 4))
    for row in present:
        has = np.flatnonzero(row)
        for pair in permutations(has, 2):
            expected[pair] += 1 / (len(has) * (len(has) - 1))
    for first, second in np.ndindex(4, 4):
        columns = present[:, [first, second]]
        if columns.all(1).sum() < 8 or (~columns).all(1).sum() < 3:
            expected[first, second] = 0
    np.testing.assert_allclose(_pair_weights(present).reshape(4, 4), expected / expected.sum(), atol=1e-12)


def test_the_task_is_loaded_by_name(folder: Path) -> None:
    task = load_task("celeba", data_dir=folder.parent, n_train=1, n_validation=0, n_test=2)
    assert task.name == "celeba" and "licence" in task.source
    assert [len(part) for part in splits(task)] == [1, 0, 2]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("list_attr_celeba.txt", "180\n", "181\n", "first line says '181', but 180 photographs"),
        ("list_attr_celeba.txt", "-1", "0", r"line \d+: a name and 5 marks, 1 or -1, were expected"),
        ("list_attr_celeba.txt", "Bald ", "", r"line 3: a name and 4 marks"),
        ("list_eval_partition.txt", " 2\n", " 3\n", "line 121: a name and 0, 1 or 2 were expected"),
        ("list_eval_partition.txt", "000007.jpg", "x.jpg", "does not contain 000007.jpg"),
    ],
)
def test_damaged_lists_raise_errors(folder: Path, name: str, old: str, new: str, message: str) -> None:
    path = folder / name
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(FileFormatError, match=message):
        small(folder)


def test_missing_and_damaged_files_raise_errors(folder: Path) -> None:
    used = small(folder).train.item_ids
    assert used is not None
    photograph = folder / "img_align_celeba" / str(used[0])
    whole = photograph.read_bytes()
    for content in (b"", b"no photograph", whole[: len(whole) // 2]):
        photograph.write_bytes(content)
        with pytest.raises(FileFormatError, match=f"{photograph.name} cannot be read"):
            small(folder)
    photograph.unlink()
    with pytest.raises(DataError, match=f"{photograph.name} is missing; unpack"):
        small(folder)
    for name in ("list_eval_partition.txt", "list_attr_celeba.txt"):
        (folder / name).unlink()
        with pytest.raises(DataError, match=f"{name} is missing"):
            small(folder)


def test_too_few_faces_raise_an_error(folder: Path) -> None:
    (folder / "list_eval_partition.txt").write_text("".join(f"{name} {int(name > NAMES[5])}\n" for name in NAMES))
    with pytest.raises(DataError, match="no two attributes are shared by 8 of the 6 faces"):
        small(folder)


def test_missing_pillow_raises_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "PIL")
    with pytest.raises(MissingDependencyError, match=r'pip install "setgrad\[demo\]"'):
        small(folder)
