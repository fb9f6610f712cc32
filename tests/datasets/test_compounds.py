"""Compound selection: the filters compared with brute force, the files of DeepDTA, the cache, and the real data."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from setgrad.datasets import COMPOUND_DATASETS, Task, compounds, load_task, pair_tokens
from setgrad.datasets import _diversity as diversity
from setgrad.datasets import _pair_sets as pair_sets
from setgrad.errors import DataError, FileFormatError, MissingDependencyError
from tests.datasets.helpers import hide, is_equal

KD = "drug-target_interaction_affinities_Kd__Davis_et_al.2011v1.txt"
RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "c1ccsc1"]
TAILS = ["O", "CN", "CCl", "C(=O)O", "CCC#N", "S(=O)(=O)N"]
SMILES = [ring + tail for ring in RINGS for tail in TAILS]
PROTEINS = ["MKV" * n for n in range(1, 16)]
FEW: dict[str, Any] = {"n_train": 4, "n_validation": 2, "n_test": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a Davis data set of 30 drugs and 15 proteins in the format of DeepDTA; half of the pairs do not bind."""
    davis = tmp_path / "data" / "deepdta" / "davis"
    davis.mkdir(parents=True)
    (davis / "ligands_iso.txt").write_text(json.dumps({f"d{i}": s for i, s in enumerate(SMILES)}))
    (davis / "proteins.txt").write_text(json.dumps({f"p{i}": s for i, s in enumerate(PROTEINS)}))
    rng = np.random.default_rng(0)
    kd = np.where(rng.random((30, 15)) < 0.5, 10000.0, np.exp(rng.normal(5.0, 2.0, (30, 15))).round(3) + 0.001)
    np.savetxt(davis / KD, kd)
    return tmp_path / "data"


def read_kd(folder: Path) -> np.ndarray:
    return np.loadtxt(folder / "deepdta" / "davis" / KD)


def test_items_are_the_tokens_of_their_pair(folder: Path) -> None:
    task = compounds("davis", "active", data_dir=folder, **FEW)
    assert repr(task) == "Task('compounds:davis:active': 4 training, 2 validation, 2 test sets)"
    sets, _ = task.train
    assert sets.dtype == torch.uint8 and sets.layout.host_lengths.tolist() == [300] * 4
    drug, protein = np.divmod(np.asarray(task.train.item_ids), 15)
    assert torch.equal(sets.values, pair_tokens([SMILES[i] for i in drug], [PROTEINS[i] for i in protein]))
    assert all(len(set(ids)) == 300 for ids in np.asarray(task.train.item_ids).reshape(4, 300).tolist())


def test_active_chooses_the_pairs_that_bind_best(folder: Path) -> None:
    task = compounds("davis", "active", data_dir=folder, **FEW)
    kd = read_kd(folder).reshape(-1)
    ids = np.asarray(task.test.item_ids).reshape(-1, 300)
    for numbers, mask in zip(ids, task.test.subsets, strict=True):
        best = numbers[np.argsort(kd[numbers])[:15]]
        assert set(numbers[mask.numpy()]) == set(best)


def cluster_centres(similarity: np.ndarray) -> list[int]:
    """Return the centres of the first run that converges without a warning of scikit-learn."""
    from sklearn.cluster import AffinityPropagation

    for damping in (0.5, 0.7, 0.9):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = AffinityPropagation(affinity="precomputed", damping=damping, random_state=0, max_iter=1000).fit(
                similarity
            )
        if not caught:
            return run.cluster_centers_indices_.tolist()
    raise AssertionError("affinity propagation did not converge")


def test_diverse_chooses_the_cluster_centres_of_the_active_third(folder: Path) -> None:
    from rdkit import Chem, DataStructs
    from rdkit.Chem import rdFingerprintGenerator

    task = compounds("davis", data_dir=folder, random_state=1, **FEW)
    morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    prints = [morgan.GetFingerprint(Chem.MolFromSmiles(text)) for text in SMILES]
    kd = read_kd(folder).reshape(-1)
    for numbers, mask in zip(np.asarray(task.train.item_ids).reshape(-1, 300), task.train.subsets, strict=True):
        active = sorted(numbers, key=lambda n: kd[n])[:100]
        assert kd[active[-1]] < 10000.0
        best: dict[int, int] = {}
        for number in active:
            best.setdefault(int(number) // 15, int(number))
        drugs = sorted(best)
        similarity = np.array(
            [DataStructs.BulkTanimotoSimilarity(prints[i], [prints[j] for j in drugs]) for i in drugs]
        )
        expected = {best[drugs[i]] for i in cluster_centres(similarity)}
        assert set(numbers[mask.numpy()].tolist()) == expected
        assert 1 < len(expected) < len(drugs)


def test_tied_activities_at_the_limit_are_left_out() -> None:
    activity = np.array([1.0, 4.0, 2.0, 4.0, 2.0, 3.0])
    assert diversity.most_active(activity, 3).nonzero()[0].tolist() == [1, 3, 5]
    assert diversity.most_active(activity, 4).nonzero()[0].tolist() == [1, 3, 5]
    assert diversity.most_active(activity, 5).nonzero()[0].tolist() == [1, 2, 3, 4, 5]
    assert diversity.most_active(activity, 6).all() and diversity.most_active(activity, 9).all()
    assert not diversity.most_active(np.ones(5), 2).any()


def test_equally_similar_items_are_all_centres() -> None:
    for count in (1, 2, 5):
        assert diversity.exemplars(np.full((count, count), 0.5)).tolist() == list(range(count))


def test_propagation_that_does_not_converge_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.cluster import AffinityPropagation

    dampings: list[float] = []
    fit = AffinityPropagation.fit

    def limited_fit(self: AffinityPropagation, X: np.ndarray) -> AffinityPropagation:
        dampings.append(self.damping)
        return fit(self.set_params(max_iter=1 if self.damping < limit else 1000), X)

    monkeypatch.setattr(AffinityPropagation, "fit", limited_fit)
    similarity = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    limit = 2.0
    assert diversity.exemplars(similarity) is None
    assert dampings == [0.5, 0.7, 0.9]
    dampings.clear()
    limit = 0.7
    assert diversity.exemplars(similarity) is not None
    assert dampings == [0.5, 0.7]


def test_a_set_without_an_answer_is_drawn_again() -> None:
    calls: list[np.ndarray] = []

    def answer_third_call(members: np.ndarray) -> np.ndarray | None:
        calls.append(members.copy())
        return members % 2 == 0 if len(calls) == 3 else None

    members, chosen = pair_sets._draw_sets(np.random.default_rng(0), 400, answer_third_call, 1, "sets")
    assert len(calls) == 3 and not np.array_equal(calls[0], calls[1])
    assert np.array_equal(members[0], calls[2]) and np.array_equal(chosen[0], members[0] % 2 == 0)
    with pytest.raises(DataError, match=r"no set with a clear answer.*distinct values"):
        pair_sets._draw_sets(np.random.default_rng(0), 400, lambda members: None, 1, "sets")


def test_splits_and_seeds_are_independent(folder: Path) -> None:
    few = compounds("davis", "active", data_dir=folder, **FEW)
    more = compounds("davis", "active", data_dir=folder, n_train=6, n_validation=2, n_test=1)
    other = compounds("davis", "active", data_dir=folder, random_state=5, **FEW)
    assert torch.equal(few.validation.sets.values, more.validation.sets.values)
    assert torch.equal(few.train.sets.values, more.train.sets[:4].values)
    assert not torch.equal(few.train.sets.values, other.train.sets.values)
    assert not np.array_equal(few.validation.item_ids, few.test.item_ids)


def test_the_task_is_loaded_by_name(folder: Path) -> None:
    assert load_task("compounds:davis", data_dir=folder, **FEW).name == "compounds:davis:diverse"
    assert load_task("compounds:davis:active", data_dir=folder, **FEW).name == "compounds:davis:active"


# ---- the cache


def test_a_cached_task_needs_neither_data_nor_rdkit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "deep" / "cache"
    task = compounds("davis", data_dir=folder, cache=cache, **FEW)
    assert [path.name for path in cache.iterdir()] == ["compounds-davis-diverse-seed0-4-2-2.npz"]
    hide(monkeypatch, "rdkit")
    monkeypatch.setenv("SETGRAD_CACHE", str(cache))
    assert is_equal(task, load_task("compounds:davis", data_dir=tmp_path / "nowhere", **FEW))
    with pytest.raises(DataError, match="no folder"):
        compounds("davis", random_state=1, data_dir=tmp_path / "nowhere", **FEW)


def test_damaged_caches_raise_errors(folder: Path, tmp_path: Path) -> None:
    def load() -> Task:
        return compounds("davis", "active", cache=tmp_path, **FEW)

    compounds("davis", "active", data_dir=folder, cache=tmp_path, **FEW)
    (path,) = tmp_path.glob("*.npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FileFormatError, match=r"cannot be read.*delete the file"):
        load()
    for name, array, message in (
        ("format", np.array(99), "format 99"),
        ("test_drug", arrays["test_drug"] + 1000, "test_drug: there is no such drug"),
        ("test_chosen", arrays["test_chosen"][:, :5], "different shapes"),
        ("drugs", np.array([print], dtype=object), "cannot be read"),
    ):
        np.savez(path, **{**arrays, name: array})
        with pytest.raises(FileFormatError, match=f"{message}.*delete the file"):
            load()


# ---- errors


@pytest.mark.parametrize("package", ["rdkit", "sklearn"])
def test_missing_packages_raise_errors(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    hide(monkeypatch, package)
    with pytest.raises(MissingDependencyError, match=r"pip install .setgrad\[chem\]"):
        compounds("davis", data_dir=folder, **FEW)
    assert len(compounds("davis", "active", data_dir=folder, **FEW).train) == 4


def test_the_pickle_beside_the_matrix_is_not_opened(folder: Path) -> None:
    trap = folder / "opened"
    (folder / "deepdta" / "davis" / "Y").write_bytes(pickle.dumps(_Trap(str(trap))))
    compounds("davis", "active", data_dir=folder, **FEW)
    assert not trap.exists()


class _Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("ligands_iso.txt", "[1, 2]", "names and sequences was expected"),
        ("ligands_iso.txt", '{"a": ', "cannot be read"),
        ("proteins.txt", '{"a": 5}', "names and sequences was expected"),
        ("proteins.txt", '{"a": "MKV"}', "not 30 of 15; download all files again"),
        (KD, "1 2 3\n4 five 6\n", "cannot be read"),
        (KD, "1 2 3\n4 5\n", "cannot be read"),
        (KD, "\n".join(["0 " * 15] * 30), "every Kd must be above 0"),
    ],
)
def test_damaged_files_raise_errors(folder: Path, file: str, text: str, message: str) -> None:
    (folder / "deepdta" / "davis" / file).write_text(text)
    with pytest.raises(FileFormatError, match=message):
        compounds("davis", data_dir=folder)


@pytest.mark.parametrize("file", ["ligands_iso.txt", "proteins.txt", KD])
def test_missing_files_raise_errors(folder: Path, file: str) -> None:
    (folder / "deepdta" / "davis" / file).unlink()
    with pytest.raises(DataError, match=f"{file} is missing"):
        compounds("davis", data_dir=folder)


def test_too_few_pairs_raise_an_error(folder: Path) -> None:
    kd = read_kd(folder)
    kd[:, 5:] = np.nan
    np.savetxt(folder / "deepdta" / "davis" / KD, kd)
    with pytest.raises(DataError, match="holds 300 pairs, but only 150 are usable"):
        compounds("davis", "active", data_dir=folder)


def test_long_strings_are_truncated_and_unknown_characters_share_a_token() -> None:
    tokens = pair_tokens(["C" * 150, "C€?"], ["m" * 1500, "MJ"])
    assert tokens.shape == (2, 1100) and tokens.dtype == torch.uint8
    assert tokens[0].min() > 0
    assert torch.equal(tokens[0, 100:], pair_tokens(["C"], ["M" * 1000])[0, 100:])
    assert tokens[1, :4].tolist() == [int(tokens[0, 0]), 65, 65, 0]
    assert tokens[1, 101:103].tolist() == [26, 0]
    with pytest.raises(DataError, match="there are 1 drugs and 2 proteins"):
        pair_tokens(["C"], ["M", "K"])


# ---- the real data


@pytest.mark.parametrize("dataset", COMPOUND_DATASETS)
def test_real_data_have_the_published_sizes_and_characters(data_dir: Path, dataset: str) -> None:
    if not (data_dir / "deepdta").is_dir():
        pytest.skip("no folder deepdta in the real data")
    task = compounds(dataset, data_dir=data_dir, **FEW)
    sizes = [int(mask.sum()) for mask in task.train.subsets]
    assert all(4 <= size <= 30 for size in sizes)
    # All characters of both data sets are in the alphabets of DeepDTA.
    assert int(task.train.sets.values[:, :100].max()) <= 64 and int(task.train.sets.values[:, 100:].max()) <= 25
    active = compounds(dataset, "active", data_dir=data_dir, **FEW)
    assert all(9 <= int(mask.sum()) <= 15 for mask in active.train.subsets)
