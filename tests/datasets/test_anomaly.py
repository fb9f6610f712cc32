"""Set anomaly on faces and digits: small generated files, and the real ones if available."""

import re
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from setgrad.datasets import ANOMALY_IMAGES, Task, anomaly, load_task
from setgrad.errors import DataError, FileFormatError, MissingDependencyError
from tests.datasets.helpers import check_seeds, hide, splits


def write_olivetti(root: Path) -> Path:
    io = pytest.importorskip("scipy.io", reason="the faces are in a MATLAB file")
    (root / "olivetti").mkdir()
    # pixel (row, column) of image i, stored column by column
    row, column = np.divmod(np.arange(4096), 64)[::-1]
    faces = (row[:, None] + 3 * column[:, None] + 7 * np.arange(400)) % 256
    path = root / "olivetti" / "olivettifaces.mat"
    io.savemat(path, {"faces": faces.astype(np.uint8)})
    return path


def write_mnist(root: Path) -> Path:
    (root / "mnist").mkdir()
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for half, count in (("train", 600), ("test", 200)):
        arrays[f"x_{half}"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"y_{half}"] = (np.arange(count) % 10).astype(np.uint8)
    path = root / "mnist" / "mnist.npz"
    np.savez(path, **arrays)
    return path


WRITERS = {"olivetti": write_olivetti, "mnist": write_mnist}


@pytest.fixture(params=ANOMALY_IMAGES)
def images(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(images: str, tmp_path: Path) -> Path:
    WRITERS[images](tmp_path)
    return tmp_path


def small(images: str, folder: Path, random_state: int = 0, n_train: int = 60) -> Task:
    return anomaly(images, random_state=random_state, data_dir=folder, n_train=n_train, n_validation=40, n_test=40)


def labels(images: str, numbers: np.ndarray) -> np.ndarray:
    """Return the class of each image of the small files."""
    return numbers // 10 if images == "olivetti" else np.where(numbers < 600, numbers, numbers - 600) % 10


def test_normal_images_share_a_class_that_no_odd_image_has(images: str, folder: Path) -> None:
    for part in splits(small(images, folder)):
        numbers = np.asarray(part.item_ids).reshape(-1, 8)
        chosen = part.subsets.values.numpy().reshape(-1, 8)
        assert set(chosen.sum(1)) == {2, 3}
        for members, odd in zip(numbers, chosen, strict=True):
            kinds = labels(images, members)
            assert len(set(members)) == 8
            assert len(set(kinds[~odd])) == 1
            assert kinds[~odd][0] not in kinds[odd]
        assert chosen.any(0).all()


def test_no_image_or_person_is_in_two_splits(images: str, folder: Path) -> None:
    numbers = [np.asarray(part.item_ids) for part in splits(small(images, folder))]
    ids = [set((n // 10 if images == "olivetti" else n).tolist()) for n in numbers]
    assert not ids[0] & ids[1] and not ids[0] & ids[2] and not ids[1] & ids[2]
    if images == "mnist":
        assert max(ids[0] | ids[1]) < 600 <= min(ids[2])


def test_items_are_the_images_of_their_ids(images: str, folder: Path) -> None:
    if images == "olivetti":
        row, column = np.mgrid[:64, :64]
        pixels = np.stack([(row + 3 * column + 7 * i) % 256 for i in range(400)])
    else:
        with np.load(folder / "mnist" / "mnist.npz") as archive:
            pixels = np.concatenate([archive["x_train"], archive["x_test"]])
    for part in splits(small(images, folder)):
        values = part.sets.values
        assert values.dtype == torch.float32 and values.min() >= 0 and values.max() <= 1
        assert np.allclose(values[:, 0].numpy() * 255, pixels[part.item_ids], atol=1e-4)


def test_equal_seeds_give_equal_data(images: str, folder: Path) -> None:
    check_seeds(partial(small, images, folder))


def test_the_task_is_loaded_by_name(images: str, folder: Path) -> None:
    task = load_task(f"anomaly:{images}", data_dir=folder, n_train=2, n_validation=0, n_test=1)
    assert task.name == f"anomaly:{images}"
    assert [len(part) for part in splits(task)] == [2, 0, 1]
    assert "licence" in task.source
    assert task.validation.sets.item_shape == task.train.sets.item_shape


def test_damaged_and_missing_files_raise_errors(images: str, folder: Path) -> None:
    path = next((folder / images).iterdir())
    whole = path.read_bytes()
    for content in (b"", b"neither MATLAB nor NumPy", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="cannot be read"):
            small(images, folder)
    path.unlink()
    with pytest.raises(DataError, match=f"{path.name} is missing"):
        small(images, folder)
    path.parent.rmdir()
    with pytest.raises(DataError, match=f"the folder that contains {images}"):
        small(images, folder)


def test_wrong_matrices_raise_errors(tmp_path: Path) -> None:
    path = write_olivetti(tmp_path)
    from scipy.io import savemat

    savemat(path, {"faces": np.zeros((4096, 10), np.uint8)})
    with pytest.raises(FileFormatError, match=r"shape \(4096, 400\) were expected, not uint8 \(4096, 10\)"):
        small("olivetti", tmp_path)
    savemat(path, {"people": np.zeros((2, 2))})
    with pytest.raises(FileFormatError, match="no matrix named 'faces'"):
        small("olivetti", tmp_path)


def test_wrong_arrays_raise_errors(tmp_path: Path) -> None:
    path = write_mnist(tmp_path)
    with np.load(path) as archive:
        arrays = dict(archive)
    for change, message in (
        ({"x_test": np.zeros((200, 8, 8), np.uint8)}, "28 x 28 bytes"),
        ({"y_train": np.zeros(5, np.uint8)}, "28 x 28 bytes"),
        ({"y_test": np.array([{}] * 200, dtype=object)}, "cannot be read"),
    ):
        np.savez(path, **{**arrays, **change})
        with pytest.raises(FileFormatError, match=message):
            small("mnist", tmp_path)
    np.savez(path, **{name: array for name, array in arrays.items() if name != "y_test"})
    with pytest.raises(FileFormatError, match=r"no array named 'y_test'"):
        small("mnist", tmp_path)
    np.savez(path, **{name: array[:30] for name, array in arrays.items()})
    with pytest.raises(DataError, match="more images are needed"):
        small("mnist", tmp_path)


def test_missing_scipy_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_olivetti(tmp_path)
    hide(monkeypatch, "scipy.io")
    with pytest.raises(MissingDependencyError, match=r'pip install "setgrad\[demo\]"'):
        small("olivetti", tmp_path)


def test_real_files_give_the_scores_in_the_description(images: str, data_dir: Path) -> None:
    if not (data_dir / images).is_dir():
        pytest.skip(f"no {images} in {data_dir}")
    if images == "olivetti":
        pytest.importorskip("scipy.io", reason="the faces are in a MATLAB file")
    task = anomaly(images, data_dir=data_dir, n_train=10)
    assert [len(part) for part in splits(task)] == [10, 1000, 1000]
    assert tuple(task.test.sets.item_shape) == ((1, 64, 64) if images == "olivetti" else (1, 28, 28))

    def chance(k: int) -> float:
        return sum(comb(k, h) * comb(8 - k, k - h) / comb(8, k) * h / (2 * k - h) for h in range(k + 1))

    def farthest(x: torch.Tensor, odd: torch.Tensor) -> float:
        size = int(odd.sum())
        picked = (x.flatten(1) - x.flatten(1).mean(0)).norm(dim=1).topk(size).indices
        hits = int(odd[picked].sum())
        return hits / (2 * size - hits)

    random_score, distance_score = (float(number) for number in re.findall(r"0\.\d+", task.description))
    assert np.mean([chance(2), chance(3)]) == pytest.approx(random_score, abs=0.006)
    assert np.mean([farthest(x, odd) for x, odd in zip(*task.test, strict=True)]) == pytest.approx(
        distance_score, abs=0.06
    )
