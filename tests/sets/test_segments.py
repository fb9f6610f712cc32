"""Segment operations, compared with a loop over the sets."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from setgrad.errors import DataError, ShapeError
from setgrad.sets import (
    Layout,
    segment_matmul,
    segment_max,
    segment_mean,
    segment_order,
    segment_rank,
    segment_softmax,
    segment_sum,
    segment_top_k,
)

SIZES = st.one_of(
    st.lists(st.integers(0, 5), max_size=6),
    st.builds(lambda n, b: [n] * b, st.integers(1, 5), st.integers(1, 4)),
)
RAGGED, UNIFORM = [3, 0, 1, 4, 0], [3, 3, 3]


def rows(sizes: list[int], *shape: int, seed: int = 0) -> tuple[Tensor, Layout]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), *shape, dtype=torch.float64, generator=generator)
    return x, Layout.from_lengths(sizes)


def stacked(x: Tensor, sizes: list[int], f: Callable[[Tensor], Tensor], empty: float) -> Tensor:
    """Apply `f` to each set alone; `empty` where a set has no items."""
    parts = [f(part) if len(part) else torch.full(x.shape[1:], empty, dtype=x.dtype) for part in x.split(sizes)]
    return torch.stack(parts) if parts else x.new_zeros(0, *x.shape[1:])


@settings(max_examples=60)
@given(sizes=SIZES, shape=st.sampled_from([(), (3,), (2, 2)]))
def test_reductions_equal_a_loop(sizes: list[int], shape: tuple[int, ...]) -> None:
    x, layout = rows(sizes, *shape)
    torch.testing.assert_close(segment_sum(x, layout), stacked(x, sizes, lambda p: p.sum(0), 0.0))
    torch.testing.assert_close(segment_mean(x, layout), stacked(x, sizes, lambda p: p.mean(0), 0.0))
    torch.testing.assert_close(segment_max(x, layout), stacked(x, sizes, lambda p: p.amax(0), -torch.inf))
    torch.testing.assert_close(segment_max(x, layout, empty=9.0), stacked(x, sizes, lambda p: p.amax(0), 9.0))
    parts = [part.softmax(0) for part in x.split(sizes)]
    torch.testing.assert_close(segment_softmax(x, layout), torch.cat([*parts, x[:0]]))


@settings(max_examples=60)
@given(data=st.data(), sizes=SIZES, descending=st.booleans())
def test_order_rank_and_top_k_equal_a_loop_with_ties(data: st.DataObject, sizes: list[int], descending: bool) -> None:
    total = sum(sizes)
    scores = data.draw(st.lists(st.integers(0, 2), min_size=total, max_size=total))
    ks = data.draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes)))
    x, layout = torch.tensor(scores, dtype=torch.float64), Layout.from_lengths(sizes)
    offsets = [0, *np.cumsum(sizes)]
    sign = -1 if descending else 1
    orders = [sorted(range(a, a + n), key=lambda i: sign * scores[i]) for a, n in zip(offsets, sizes, strict=False)]
    assert segment_order(x, layout, descending).tolist() == [i for order in orders for i in order]
    if not descending:
        return
    ranks = {i: rank for order in orders for rank, i in enumerate(order)}
    assert segment_rank(x, layout).tolist() == [ranks[i] for i in range(total)]
    assert segment_top_k(x, layout, ks).tolist() == [i for order, k in zip(orders, ks, strict=True) for i in order[:k]]
    assert segment_top_k(x, layout, 2).tolist() == [i for order in orders for i in order[:2]]


@settings(max_examples=40)
@given(sizes=SIZES, m=st.integers(0, 3))
def test_matmul_equals_a_loop(sizes: list[int], m: int) -> None:
    x, layout = rows(sizes, 4)
    weights = torch.rand(m, sum(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = x.new_zeros(m, len(sizes), 4)
    for b, (part, w) in enumerate(zip(x.split(sizes), weights.split(sizes, dim=1), strict=True)):
        expected[:, b] = w @ part
    torch.testing.assert_close(segment_matmul(weights, x, layout), expected)
    torch.testing.assert_close(
        segment_matmul(weights > 0.5, x, layout), segment_matmul((weights > 0.5).double(), x, layout)
    )


# One large set among many small ones: too much padding, so the product is computed without it.
SKEWED = [900, *[1] * 12, 0]


@pytest.mark.parametrize("sizes", [RAGGED, UNIFORM, [0, 2]])
@pytest.mark.parametrize("op", [segment_sum, segment_mean, segment_max, segment_softmax])
def test_first_and_second_derivatives_pass_gradcheck(
    op: Callable[[Tensor, Layout], Tensor], sizes: list[int], seeded: Callable[..., AbstractContextManager[None]]
) -> None:
    x, layout = rows(sizes, 2)
    x.requires_grad_()

    def finite(v: Tensor) -> Tensor:
        # An empty set has maximum -inf, which finite differences cannot use.
        out = op(v, layout)
        return out[out.isfinite()]

    assert torch.autograd.gradcheck(finite, (x,))
    if op is not segment_max:
        with seeded(0):
            assert torch.autograd.gradgradcheck(finite, (x,))


@pytest.mark.parametrize("sizes", [RAGGED, UNIFORM])
def test_derivatives_of_matmul_with_padding_pass_gradcheck(sizes: list[int]) -> None:
    x, layout = rows(sizes, 2)
    weights = rows([2], sum(sizes), seed=1)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda w, v: segment_matmul(w, v, layout), (weights, x.requires_grad_()))


def test_matmul_without_padding_and_its_derivatives_equal_a_loop() -> None:
    x, layout = rows(SKEWED, 2)
    assert len(layout) * layout.longest > 2 * layout.total + 4096
    weights = rows([2], sum(SKEWED), seed=1)[0].requires_grad_()
    x.requires_grad_()
    direction = rows([2], len(SKEWED), 2, seed=2)[0]
    plain = torch.stack([w @ p for w, p in zip(weights.split(SKEWED, dim=1), x.split(SKEWED), strict=True)], dim=1)
    result = segment_matmul(weights, x, layout)
    torch.testing.assert_close(result, plain)
    actual = torch.autograd.grad((result * direction).sum(), (weights, x))
    expected = torch.autograd.grad((plain * direction).sum(), (weights, x))
    torch.testing.assert_close(actual, expected)
    assert segment_matmul(weights[:0], x, layout).shape == (0, len(SKEWED), 2)


def test_tied_maxima_share_the_gradient() -> None:
    x = torch.tensor([1.0, 1.0, 0.0, 5.0], requires_grad=True)
    segment_max(x, Layout.from_lengths([3, 1])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 0.5, 0.0, 1.0]


def test_the_maximum_of_integers_needs_a_value_for_empty_sets() -> None:
    x = torch.tensor([3, -4, -7])
    assert segment_max(x, Layout.from_lengths([1, 2])).tolist() == [3, -4]
    assert segment_max(x, Layout.from_lengths([1, 0, 2]), empty=0).tolist() == [3, 0, -4]
    with pytest.raises(DataError, match="empty=0"):
        segment_max(x, Layout.from_lengths([1, 0, 2]))


def test_softmax_is_stable_for_large_and_infinite_scores() -> None:
    x = torch.tensor([1e4, 1e4, -torch.inf, -1e4], dtype=torch.float64)
    assert segment_softmax(x, Layout.from_lengths([3, 1])).tolist() == [0.5, 0.5, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_result_has_the_type_of_the_input(dtype: torch.dtype) -> None:
    for sizes in (RAGGED, UNIFORM):
        x, layout = rows(sizes, 2)
        x = x.to(dtype)
        for op in (segment_sum, segment_mean, segment_max, segment_softmax):
            assert op(x, layout).dtype == dtype
        assert segment_matmul(torch.ones(2, sum(sizes), dtype=torch.bool), x, layout).dtype == dtype


@pytest.mark.parametrize("sizes", [RAGGED, UNIFORM], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64], ids=str)
def test_integers_are_summed_without_overflow(dtype: torch.dtype, sizes: list[int]) -> None:
    layout = Layout.from_lengths(sizes)
    for shape in ((), (2,)):
        x = (200 * (rows(sizes, *shape)[0] > -0.5)).to(dtype)
        truth = stacked(x.double(), sizes, lambda p: p.sum(0), 0.0)
        torch.testing.assert_close(segment_sum(x, layout), truth.long())
        mean, softmax = segment_mean(x, layout), segment_softmax(x, layout)
        torch.testing.assert_close(mean, stacked(x.double(), sizes, lambda p: p.mean(0), 0.0).float())
        torch.testing.assert_close(softmax, segment_softmax(x.float(), layout))


# One by one, bfloat16 counts to 256 and float16 to 2,048.
@pytest.mark.parametrize("sizes", [[3000, 1000], [3000, 3000]], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_summed_in_single_precision(dtype: torch.dtype, sizes: list[int]) -> None:
    layout, counts = Layout.from_lengths(sizes), torch.tensor(sizes, dtype=torch.float64)
    for shape in ((), (2,)):
        ones = torch.ones(sum(sizes), *shape, dtype=dtype)
        expected = counts.reshape(-1, *[1] * len(shape)).expand(-1, *shape).to(dtype)
        assert torch.equal(segment_sum(ones, layout), expected)
        # The sum overflows the type, the mean does not.
        assert torch.equal(segment_mean(100 * ones, layout), torch.full_like(expected, 100))
        shares = segment_softmax(ones, layout)
        assert shares.dtype == dtype
        torch.testing.assert_close(
            segment_sum(shares, layout).double(), torch.ones_like(expected).double(), rtol=4e-3, atol=0
        )
        weights = torch.ones(2, sum(sizes), dtype=dtype)
        if shape:
            assert torch.equal(segment_matmul(weights, ones, layout), expected.expand(2, -1, -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_has_a_gradient_of_the_same_type(dtype: torch.dtype) -> None:
    x, layout = rows(RAGGED)
    for op in (segment_sum, segment_mean, segment_softmax):
        narrow = x.to(dtype).requires_grad_()
        wide = narrow.detach().double().requires_grad_()
        for leaf in (narrow, wide):
            (op(leaf, layout) ** 2).sum().backward()
        assert narrow.grad is not None and wide.grad is not None and narrow.grad.dtype == dtype
        torch.testing.assert_close(narrow.grad.double(), wide.grad, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("sizes", [RAGGED, UNIFORM, SKEWED], ids=["ragged", "uniform", "skewed"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64], ids=str)
def test_fractional_weights_of_integers_are_not_rounded(dtype: torch.dtype, sizes: list[int]) -> None:
    layout = Layout.from_lengths(sizes)
    x = (200 * (rows(sizes, 2)[0] > -0.5)).to(dtype)
    weights = rows([3], sum(sizes), seed=1)[0]
    torch.testing.assert_close(segment_matmul(weights, x, layout), segment_matmul(weights, x.double(), layout))
    for whole in (weights > 0, (3 * weights).to(torch.int32)):
        actual = segment_matmul(whole, x, layout)
        assert torch.equal(actual, segment_matmul(whole.double(), x.double(), layout).long())
    assert segment_matmul(weights[:0], x, layout).dtype == torch.float64


def test_wrong_shapes_raise_errors() -> None:
    layout = Layout.from_lengths([2, 1])
    for op in (segment_sum, segment_mean, segment_max, segment_softmax, segment_order, segment_rank):
        with pytest.raises(ShapeError, match="3 items"):
            op(torch.zeros(4), layout)
    with pytest.raises(ShapeError, match="3 items"):
        segment_matmul(torch.zeros(2, 3), torch.zeros(4, 2), layout)
    with pytest.raises(ShapeError, match="3 items"):
        segment_matmul(torch.zeros(2, 4), torch.zeros(3, 2), layout)
    for k in ([1, 2, 3], 1.5, [[1, 2]]):
        with pytest.raises(ShapeError, match="one integer"):
            segment_top_k(torch.zeros(3), layout, k)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="at least 0; got -1"):
        segment_top_k(torch.zeros(3), layout, [1, -1])
