"""`as_sets`, `as_subsets`, `Choices` and `Table`: accepted input, and errors for the rest."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from setgrad.errors import DataError, ShapeError
from setgrad.sets import Choices, Sets, Table, as_sets, as_subsets

SETS = Sets.from_list([[[0.0], [1.0], [2.0]], [], [[3.0]]])
TRUTH = [True, False, True, False]


@pytest.mark.parametrize(
    "form",
    [
        torch.tensor(TRUTH),
        np.array(TRUTH),
        Sets.from_list([TRUTH[:3], [], TRUTH[3:]]),
        Sets.from_lengths(torch.tensor([2, 0]), [2, 0, 0]),
        [TRUTH[:3], [], TRUTH[3:]],
        [[0, 2], [], []],
        [np.array([0, 2]), np.array([], dtype=np.int64), torch.tensor([False])],
        [{2, 0}, set(), frozenset()],
        [range(0, 3, 2), (), ()],
        [[1, 0, 1], [], [0]],
        [np.array([1, 0, 1], dtype=np.int8), [], torch.tensor([0], dtype=torch.uint8)],
        Sets.from_lengths(torch.tensor([1, 0, 1, 0]), [3, 0, 1]),
        np.array([1, 0, 1, 0]),
        torch.tensor([1, 0, 1, 0], dtype=torch.int32),
        np.array([[0, 2], [], []], dtype=object),
    ],
)
def test_subsets_are_accepted_in_every_usual_form(form: object) -> None:
    subsets = as_subsets(form, SETS)
    assert subsets.dtype == torch.bool
    assert subsets.layout is SETS.layout
    assert subsets.values.tolist() == TRUTH


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        # All can be indices, so they are.
        ([[0, 1], [1, 0], [0]], [True, True, True, True, True]),
        ([[0, 1], [0], [0]], [True, True, True, False, True]),
        ([[0], [], []], [True, False, False, False, False]),
        # One cannot, so all are masks.
        ([[0, 1], [1, 0], [1]], [False, True, True, False, True]),
        ([[0, 1], [0, 0], [0]], [False, True, False, False, False]),
        ([[1, 1], [0, 1], [0]], [True, True, False, True, False]),
    ],
)
def test_zeros_and_ones_are_masks_if_they_cannot_be_indices(form: object, wanted: list[bool]) -> None:
    pairs = Sets.from_list([[[0.0], [1.0]], [[2.0], [3.0]], [[4.0]]])
    assert as_subsets(form, pairs).values.tolist() == wanted


@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        ([[0], []], ShapeError, "2 subsets were given for 3 sets"),
        ([[0], [], [1]], DataError, "subset 2 contains index 1, but its set has 1 items"),
        ([[0], [0], []], DataError, "subset 1 contains index 0, but its set has 0 items"),
        ([[-1], [], []], DataError, "subset 0 contains index -1"),
        ([[1, 1], [], []], DataError, "subset 0 contains an index twice"),
        ([[0.5], [], []], DataError, "subset 0 holds real numbers"),
        ([np.array([1 + 2j]), [], []], DataError, "subset 0 holds complex numbers"),
        ([["a"], [], []], DataError, "subset 0 is neither a mask nor"),
        ([[[0]], [], []], ShapeError, r"subset 0 has shape \(1, 1\)"),
        ([[True], [], []], ShapeError, "mask of subset 0 has 1 entries, its set has 3"),
        (torch.ones(5, dtype=torch.bool), ShapeError, "5 entries for 4 items"),
        (Sets.from_list([[True], [], [True]]), ShapeError, "mask of subset 0"),
        (None, DataError, "NoneType"),
    ],
)
def test_invalid_subsets_raise_an_error_with_their_index(form: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_subsets(form, SETS)


def test_sets_are_accepted_in_every_usual_form() -> None:
    assert as_sets(SETS) is SETS
    assert as_sets(np.zeros((2, 3, 4))).lengths.tolist() == [3, 3]
    assert as_sets([[[1, 2]], []]).dtype == torch.float64
    assert as_sets([np.zeros((2, 1))]).dtype == torch.float64
    without_features: list[list[object]] = [[], [[], []], [np.zeros((3, 0))]]
    for empty in without_features:
        assert len(as_sets(empty)) == len(empty)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_item_that_is_not_finite_raises_an_error_with_its_index(bad: float) -> None:
    with pytest.raises(DataError, match=r"item 1 of set 2 .*2 such items"):
        as_sets([[[0.0, 0.0]], [], [[0.0, 0.0], [bad, 1.0], [1.0, bad]]])


def test_other_objects_are_not_accepted_as_sets() -> None:
    with pytest.raises(DataError, match="unpack"):
        as_sets(Choices.of(SETS, [[0], [], []]))
    with pytest.raises(DataError, match="complex numbers; pass real and imaginary parts"):
        as_sets([np.ones((2, 1)) * 1j])
    with pytest.raises(DataError, match="got int"):
        as_sets(5)
    with pytest.raises(DataError, match=r"set 1 .*not dense but torch.sparse_coo; pass x.to_dense\(\)"):
        as_sets([[[1.0]], torch.ones(2, 1).to_sparse()])


def test_masked_arrays_are_accepted_if_no_entry_is_masked() -> None:
    valid = np.ma.masked_greater(np.ones((2, 1)), 5.0)
    assert as_sets([valid, [valid[0], valid[1]]]).values.tolist() == [[1.0]] * 4
    masked = np.ma.masked_greater(np.array([[1.0], [9.0]]), 5.0)
    for array in (masked, [masked[0], masked[1]]):
        with pytest.raises(DataError, match=r"set 0 .*masked out; fill them in"):
            as_sets([array])


def test_data_frames_with_columns_of_several_types_are_accepted() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    mixed = pandas.DataFrame({"price": [1.5, 2.0], "new": [True, False]})
    assert as_sets([mixed]).values.tolist() == [[1.5, 1.0], [2.0, 0.0]]
    nullable = pandas.DataFrame({"price": [1.5, 2.0], "stock": [3, 4]}).convert_dtypes()
    assert as_sets([nullable]).values.tolist() == [[1.5, 3.0], [2.0, 4.0]]
    mask = pandas.Series([True, False], dtype="boolean")
    assert as_subsets([mask], as_sets([mixed])).values.tolist() == [True, False]
    nullable.loc[0, "stock"] = None
    with pytest.raises(DataError, match="set 0 cannot be read as an array of numbers"):
        as_sets([nullable])


def test_choices_unpack_and_are_immutable() -> None:
    choices = Choices.of([[[0.0], [1.0]], [[2.0]]], [[1], []])
    sets, subsets = choices
    assert len(choices) == 2
    assert sets is choices.sets
    assert subsets.values.tolist() == [False, True, False]
    with pytest.raises(dataclasses.FrozenInstanceError):
        choices.sets = sets  # type: ignore[misc]


def test_a_table_does_not_unpack_into_sets_and_subsets() -> None:
    table = Table(SETS, set_ids=["a", "b", "c"])
    assert len(table) == 3
    with pytest.raises(TypeError):
        _, _ = table  # type: ignore[misc]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (SETS, "3 sets, 4 items of 1 features"),
        (Sets.from_lengths(torch.zeros(10233, 4), [1] * 10233), "10233 sets, 10233 items of 4 features"),
        (Sets.from_list([torch.zeros(1, 3, 64, 64)]), "1 sets, 1 items of shape (3, 64, 64)"),
        (Sets.from_list([[1.0, 2.0]]), "1 sets, 2 items of shape ()"),
        (Sets.from_list([]), "0 sets, 0 items of 0 features"),
    ],
)
def test_the_repr_is_one_short_line(sets: Sets, expected: str) -> None:
    ids: dict[str, Any] = {"set_ids": ["a"] * len(sets), "item_ids": np.zeros(sets.layout.total)}
    mask = sets.with_values(torch.zeros(sets.layout.total, dtype=torch.bool))
    assert repr(Choices(sets, mask, **ids)) == f"Choices({expected})"
    assert repr(Table(sets, **ids)) == f"Table({expected})"
    assert len(repr(sets)) < 150 and repr(sets.layout) == f"Layout({len(sets)} sets, {sets.layout.total} items, cpu)"
