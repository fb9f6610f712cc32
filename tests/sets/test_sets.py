"""`Sets` and `Layout`, compared with lists of arrays."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from setgrad.errors import DataError, ShapeError
from setgrad.sets import Layout, Sets, unpad

SIZES = st.lists(st.integers(0, 4), max_size=7)
SHAPES = [(), (3,), (2, 0), (3, 4, 5)]


def arrays(sizes: list[int], shape: tuple[int, ...] = (2,), seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(n, *shape)) for n in sizes]


def batch(sizes: list[int], shape: tuple[int, ...] = (2,)) -> Sets:
    values = np.concatenate([*arrays(sizes, shape), np.zeros((0, *shape))])
    return Sets.from_lengths(values, sizes)


def assert_same(sets: Sets, expected: list[np.ndarray]) -> None:
    assert len(sets) == len(expected)
    assert sets.layout.total == sum(len(x) for x in expected)
    for actual, array in zip(sets.to_list(), expected, strict=True):
        np.testing.assert_array_equal(actual.numpy(), array)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=30)
@given(sizes=SIZES)
def test_conversions_are_inverses(sizes: list[int], shape: tuple[int, ...]) -> None:
    sets, expected = batch(sizes, shape), arrays(sizes, shape)
    assert_same(sets, expected)
    assert_same(Sets.from_padded(*sets.padded()), expected)
    assert_same(Sets.from_padded(*(x.numpy() for x in sets.padded())), expected)
    padded, mask = sets.padded(fill=-7.0)
    assert padded.shape == (len(sizes), max(sizes, default=0), *shape)
    assert mask.sum(1).tolist() == sizes
    assert (padded[~mask] == -7.0).all()
    assert torch.equal(unpad(padded, sets), sets.values)
    if sizes:
        assert_same(Sets.from_list(expected), expected)
        assert_same(Sets.cat([sets[i : i + 1] for i in range(len(sizes))]), expected)


@settings(max_examples=60)
@given(sizes=SIZES, start=st.integers(-9, 9), stop=st.integers(-9, 9), step=st.sampled_from([-3, -1, 1, 2]))
def test_slices_equal_those_of_a_list(sizes: list[int], start: int, stop: int, step: int) -> None:
    assert_same(batch(sizes)[start:stop:step], arrays(sizes)[start:stop:step])


@settings(max_examples=60)
@given(data=st.data(), sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_take_returns_the_sets_in_the_order_of_the_indices(data: st.DataObject, sizes: list[int]) -> None:
    sets, expected = batch(sizes), arrays(sizes)
    numbers = data.draw(st.lists(st.integers(-len(sizes), len(sizes) - 1), max_size=9))
    wanted = [expected[i] for i in numbers]
    assert_same(sets.take(numbers), wanted)
    assert_same(sets[torch.tensor(numbers, dtype=torch.long)], wanted)
    keep = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    assert_same(sets[np.array(keep)], [x for x, k in zip(expected, keep, strict=True) if k])


def test_an_integer_returns_one_set() -> None:
    sets, expected = batch([2, 0, 3]), arrays([2, 0, 3])
    for number in range(-3, 3):
        np.testing.assert_array_equal(sets[number].numpy(), expected[number])
        np.testing.assert_array_equal(sets[np.int8(number)].numpy(), expected[number])
    for number in (-4, 3):
        with pytest.raises(IndexError, match="has 3 sets"):
            sets[number]
        with pytest.raises(IndexError, match="between 0 and 2"):
            sets.take([0, number])


def test_take_does_not_overflow_small_integers() -> None:
    sets = Sets.from_lengths(torch.arange(300), [1] * 300)
    assert sets.take(np.array([200, 7], np.uint8)).values.tolist() == [200, 7]
    assert sets.take(np.array([-1, 7], np.int8)).values.tolist() == [299, 7]


@pytest.mark.parametrize("key", [[0.5], [[0, 1]], "a", [True, False]])
def test_invalid_keys_raise_errors(key: object) -> None:
    with pytest.raises(ShapeError, match="list"):
        batch([1, 1, 1])[key]


@pytest.mark.parametrize("sizes", [[0, 2, 3], [2, 0, 3], [2, 3, 0], [0, 0], []])
def test_empty_sets_may_be_anywhere(sizes: list[int]) -> None:
    sets = batch(sizes)
    assert sets.lengths.tolist() == sizes
    assert sets.offsets.tolist() == [0, *np.cumsum(sizes)]
    assert sets.layout.ids.tolist() == [b for b, n in enumerate(sizes) for _ in range(n)]
    assert sets.layout.positions.tolist() == [i for n in sizes for i in range(n)]
    assert str(len(sizes)) in repr(sets)


def test_empty_lists_take_the_shape_and_type_of_the_others() -> None:
    assert Sets.from_list([[], [[1.0, 2.0]], []]).values.shape == (1, 2)
    assert Sets.from_list([[], np.zeros((0, 5))]).item_shape == (5,)
    assert Sets.from_list([]).to_list() == []
    masks = Sets.cat([Sets.from_list([[]]), Sets.from_list([[True]]), Sets.from_list([[]])])
    assert masks.dtype == torch.bool
    assert masks.lengths.tolist() == [0, 1, 0]
    joined = Sets.cat([Sets.from_list([]), Sets.from_list([[]]), batch([2])])
    assert joined.lengths.tolist() == [0, 2]
    assert joined.item_shape == (2,)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((torch.float64, torch.float64), torch.float64),
        ((torch.float32, torch.float64), torch.float64),
        ((torch.int64, torch.float32), torch.float32),
        ((torch.bool, torch.int32), torch.int32),
        ((torch.uint8,), torch.uint8),
    ],
)
def test_types_are_promoted_and_never_narrowed(kinds: tuple[torch.dtype, ...], expected: torch.dtype) -> None:
    parts = [torch.ones(2, 3, dtype=kind) for kind in kinds]
    assert Sets.from_list(parts).dtype == expected
    assert Sets.cat([Sets.from_list([part]) for part in parts]).dtype == expected
    assert Sets.from_list([*parts, []]).dtype == expected
    assert Sets.from_list(parts, dtype=torch.float16).dtype == torch.float16


def test_to_converts_values_and_keeps_sizes() -> None:
    sets = batch([2, 0, 1])
    narrow = sets.to(torch.float32)
    assert narrow.dtype == torch.float32
    assert narrow.layout.same_as(sets.layout)
    assert sets.to(torch.float64) is sets
    assert sets.to("cpu").device.type == "cpu"


def test_every_kind_of_array_is_accepted() -> None:
    x = np.arange(6.0).reshape(3, 2)
    read_only = x.copy()
    read_only.setflags(write=False)

    class Frame:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return read_only

    rows = [np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([4.0, 5.0])]
    for form in (read_only, x[::-1].copy()[::-1], Frame(), rows, [torch.from_numpy(r) for r in rows]):
        assert_same(Sets.from_list([form]), [x])
    assert_same(Sets.from_lengths(read_only, [1, 2]), [x[:1], x[1:]])
    assert_same(Sets.from_list(list(torch.from_numpy(x)[None])), [x])


def test_sets_are_immutable() -> None:
    sets = batch([2, 1])
    for field in ("values", "layout"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(sets, field, None)
    with pytest.raises(ValueError, match="read-only"):
        sets.layout.host_offsets[0] = 5
    sets.lengths.add_(1)
    sets.offsets.add_(1)
    assert sets.layout.host_offsets.tolist() == [0, 2, 3]
    assert sets.layout.host_lengths.tolist() == [2, 1]


def test_gradients_flow_through_take_slices_cat_and_padding() -> None:
    leaf = torch.ones(5, 2, dtype=torch.float64, requires_grad=True)
    sets = Sets.from_lengths(leaf, [2, 0, 3])
    x, mask = Sets.cat([sets.take([2, 2]), sets[:1]]).padded()
    (x.sum() + mask.sum()).backward()
    assert leaf.grad is not None
    assert leaf.grad[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Sets.from_list([np.zeros((2, 3)), [], np.zeros((1, 2))]), ShapeError, r"set 2 .*\(2,\).*\(3,\)"),
        (lambda: Sets.from_list([[1.0], 3.0]), ShapeError, "set 1 is a single number"),
        (lambda: Sets.from_list([["red"]]), DataError, "set 0 cannot be read"),
        (lambda: Sets.from_list([[[1.0], [1.0, 2.0]]]), DataError, "set 0 cannot be read"),
        (lambda: Sets.from_list([None]), DataError, "set 0 cannot be read"),
        (lambda: Sets.from_lengths(torch.zeros(3), [1, 1]), ShapeError, "describes 2 items"),
        (lambda: Sets.from_lengths(torch.tensor(1.0), [1]), ShapeError, "first axis"),
        (lambda: Sets.from_lengths(torch.zeros(3), [4, -1]), DataError, "at least 0, not -1"),
        (lambda: Sets.from_lengths(torch.zeros(3), torch.tensor([1.5, 1.5])), DataError, "integers, not float"),
        (lambda: Sets.from_padded(torch.zeros(2, 3, 4), torch.ones(2, 4)), ShapeError, r"\(2, 3\).*\(2, 4\)"),
        (lambda: Sets.from_padded(torch.zeros(2), torch.ones(2)), ShapeError, "mask"),
        (lambda: Sets.cat([]), DataError, "at least one"),
        (lambda: Sets.cat([batch([1], (2,)), batch([1], (3,))]), ShapeError, r"\(2,\), \(3,\)"),
        (lambda: batch([1, 2]).with_values(torch.zeros(4)), ShapeError, "describes 3 items"),
    ],
)
def test_invalid_input_raises_an_error_with_the_cause(
    make: Callable[[], Sets], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_layouts_are_compared_by_sizes_and_know_whether_they_are_uniform() -> None:
    assert Layout.from_lengths([2, 2]).uniform
    assert not any(Layout.from_lengths(sizes).uniform for sizes in ([], [0, 0], [1, 2]))
    assert Layout.from_lengths([1, 2]).same_as(Layout.from_lengths([1, 2]))
    assert not Layout.from_lengths([1, 2]).same_as(Layout.from_lengths([2, 1]))


@pytest.mark.parametrize(("count", "size"), [(3, 4), (1, 1), (0, 4), (2, 0)])
def test_a_layout_from_equal_lengths_equals_the_one_from_lengths(count: int, size: int) -> None:
    actual, reference = Layout.from_equal_lengths(count, size, torch.device("cpu")), Layout.from_lengths([size] * count)
    for name, expected in vars(reference.precompute()).items():
        value = vars(actual).get(name, getattr(actual, name))
        assert type(value) is type(expected)
        np.testing.assert_array_equal(value, expected, strict=isinstance(value, torch.Tensor), err_msg=name)
