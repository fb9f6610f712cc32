"""Set encoders on a GPU give the codes and gradients of the CPU: whole, streamed, in half precision, and over NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from setgrad.encoders import (
    UMBC,
    MaxState,
    NpyChunks,
    State,
    begin_over,
    mean_gradients,
    merge_over,
    stream,
    stream_over,
)
from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, gradients, random_sets, split_sets
from tests.encoders.test_set_encoders import CASES, MERGEABLE, STREAMS, Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@pytest.fixture(autouse=True, scope="module")
def full_precision() -> Iterator[None]:
    """Multiply in full float32 precision, as on the CPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def build(case: Case, dtype: torch.dtype = torch.float64) -> Any:
    with seeded(0):
        return case.make().to(dtype).eval()


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_and_gradients_equal_those_of_the_cpu(case: Case, dtype: torch.dtype) -> None:
    sets, on_cpu = random_sets(dtype=dtype), build(case, dtype)
    on_gpu = build(case, dtype).to("cuda")
    code, expected = on_gpu(sets.to("cuda")), on_cpu(sets)
    assert code.device.type == "cuda" and code.dtype == dtype
    assert_close([code], [expected], TOLERANCES[dtype])
    assert_close(gradients(on_gpu, code), gradients(on_cpu, expected), 10 * TOLERANCES[dtype])


@pytest.mark.parametrize("gradient", ["full", "exact"])
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_streams_equal_those_of_the_cpu(case: Case, gradient: str) -> None:
    sets, on_cpu, on_gpu = random_sets(), build(case), build(case).to("cuda")
    # The chunks are on the CPU and are copied one by one.
    code, expected = stream(on_gpu, sets, gradient=gradient, chunk_size=4), on_cpu(sets)
    assert_close([code], [expected])
    assert_close(gradients(on_gpu, code), gradients(on_cpu, expected))


@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_samples_equal_those_of_the_cpu(case: Case) -> None:
    chunks = split_sets(random_sets())
    results = []
    for device in ("cpu", "cuda"):
        encoder = build(case).to(device)
        code = stream(encoder, chunks, gradient="sample", generator=torch.Generator().manual_seed(3))
        results.append([code, *gradients(encoder, code)])
    assert_close(results[1], results[0])


def test_files_are_read_ahead_onto_the_gpu(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5000, DIM)).astype(np.float32)
    np.save(tmp_path / "items.npy", values)
    encoder = build(CASES[0], torch.float32).to("cuda")
    whole = encoder(Sets.from_list([torch.from_numpy(values)]).to("cuda"))
    expected = gradients(encoder, whole)
    for prefetch in (True, False):
        code = stream(encoder, NpyChunks(tmp_path / "items.npy", 512), prefetch=prefetch)
        torch.testing.assert_close(code, whole, rtol=1e-4, atol=1e-4)
        for a, b in zip(gradients(encoder, code), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_half_precision_items_are_converted_to_the_dtype_of_the_encoder(case: Case) -> None:
    encoder = build(case, torch.float32).to("cuda")
    half = random_sets(dtype=torch.bfloat16).to("cuda")
    wide = half.to(torch.float32)
    code, expected = encoder(half), encoder(wide)
    assert code.dtype == torch.float32
    torch.testing.assert_close(code, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_half_precision_encoders_give_half_precision_codes(case: Case) -> None:
    code = build(case, torch.bfloat16).to("cuda")(random_sets(dtype=torch.bfloat16).to("cuda"))
    assert code.dtype == torch.bfloat16 and bool(code.isfinite().all())


@pytest.mark.parametrize("case", MERGEABLE, ids=str)
def test_states_are_saved_and_resumed(case: Case, tmp_path: Path) -> None:
    on_cpu, on_gpu = build(case), build(case).to("cuda")
    state = on_gpu.begin(4)
    for chunk in split_sets(random_sets()):
        state = on_gpu.update(state, chunk.to("cuda"))
    assert_close([on_gpu.finish(state)], [on_cpu(random_sets())])
    state.save(tmp_path / "state")
    kind = MaxState if isinstance(state, MaxState) else State
    loaded = kind.load(tmp_path / "state", device="cuda")
    empty = Sets.from_lengths(torch.zeros(0, DIM, dtype=torch.float64), [0] * 4).to("cuda")
    torch.testing.assert_close(on_gpu.finish(on_gpu.update(loaded, empty)), on_gpu.finish(state))


def test_dropout_is_the_same_in_both_passes() -> None:
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, phi=nn.Sequential(nn.Linear(DIM, 16), nn.Dropout(0.5))).double().to("cuda").train()
    with seeded(3):
        before = torch.cuda.get_rng_state()
        code = stream(encoder, random_sets([40]), chunk_size=10)
        # The second pass would raise if its sums were different.
        assert all(bool(g.isfinite().all()) for g in gradients(encoder, code))
        assert torch.equal(before, torch.cuda.get_rng_state())


def test_errors_equal_those_of_the_cpu() -> None:
    encoder = build(CASES[0]).to("cuda")
    sets = random_sets([4])
    with pytest.raises(DataError, match="chunk 1 holds NaN"):
        stream(encoder, [sets, sets.with_values(sets.values * torch.nan)])
    seeds = iter(range(10))
    code = stream(encoder, lambda: [random_sets([4], seed=next(seeds))])
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, code)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_a_group_of_one_over_nccl(case: Case, tmp_path: Path) -> None:
    if not dist.is_nccl_available():
        pytest.skip("torch has no NCCL")
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1, device_id=device)
    try:
        on_cpu, on_gpu = build(case), build(case).to(device)
        for gradient in ("full", "exact"):
            on_gpu.zero_grad()
            code = stream_over(on_gpu, random_sets(), gradient=gradient, chunk_size=4)
            weights = torch.linspace(-1, 1, code.numel(), dtype=code.dtype).reshape(code.shape).to(device)
            (code * weights).sum().backward()
            mean_gradients(on_gpu.parameters())
            expected = on_cpu(random_sets())
            assert_close([code], [expected])
            actual = [torch.zeros_like(p) if p.grad is None else p.grad for p in on_gpu.parameters()]
            assert_close(actual, gradients(on_cpu, expected))
        if case.mergeable:
            start = on_gpu.begin(4) if case.name == "max" else begin_over(on_gpu, 4)
            merged = merge_over(on_gpu.update(start, random_sets().to(device)))
            assert_close([on_gpu.finish(merged)], [on_cpu(random_sets()).detach()])
            with pytest.raises(OptionError, match="NCCL sums tensors on GPUs"):
                merge_over(on_cpu.update(on_cpu.begin(4), random_sets()))
    finally:
        dist.destroy_process_group()
