"""Set encoders on a GPU: codes and gradients of the CPU, whole, streamed, in half precision, and over NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from setgrad.encoders import (
    UMBC,
    MaxState,
    NpyChunks,
    State,
    begin_over,
    chunk_prefixes,
    item_prefixes,
    mean_gradients,
    merge_over,
    stream,
    stream_over,
)
from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, gradients, random_sets, split_sets
from tests.encoders.test_set_encoders import CASES, CUTS, PIECES, STREAMS, Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@pytest.fixture(autouse=True, scope="module")
def full_precision() -> Iterator[None]:
    """Products in float32 with all their digits, as on the CPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def build(case: Case, dtype: torch.dtype = torch.float64) -> Any:
    with seeded(0):
        return case.make().to(dtype).eval()


def derivatives(encoder: nn.Module, value: Tensor) -> list[Tensor]:
    """As `gradients`, with weights on the device of the code."""
    weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape).to(value.device)
    found = torch.autograd.grad((value * weights).sum(), list(encoder.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(encoder.parameters(), found, strict=True)]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_and_gradients_are_those_of_the_cpu(case: Case, dtype: torch.dtype) -> None:
    sets, here = random_sets(dtype=dtype), build(case, dtype)
    there = build(case, dtype).to("cuda")
    code, expected = there(sets.to("cuda")), here(sets)
    assert code.device.type == "cuda" and code.dtype == dtype
    assert_close([code], [expected], TOLERANCES[dtype])
    assert_close(derivatives(there, code), gradients(here, expected), 10 * TOLERANCES[dtype])


@pytest.mark.parametrize("gradient", ["full", "exact"])
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_streams_are_those_of_the_cpu(case: Case, gradient: str) -> None:
    sets, here, there = random_sets(), build(case), build(case).to("cuda")
    # The chunks lie on the CPU and travel one by one.
    code, expected = stream(there, sets, gradient=gradient, chunk_size=4), here(sets)
    assert_close([code], [expected])
    assert_close(derivatives(there, code), gradients(here, expected))


@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_samples_are_those_of_the_cpu(case: Case) -> None:
    chunks = split_sets(random_sets(), CUTS)
    found = []
    for device in ("cpu", "cuda"):
        encoder = build(case).to(device)
        code = stream(encoder, chunks, gradient="sample", generator=np.random.default_rng(3))
        found.append([code, *derivatives(encoder, code)])
    assert_close(found[1], [x.detach() for x in found[0]])


def test_files_are_read_ahead_onto_the_gpu(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5000, DIM)).astype(np.float32)
    np.save(tmp_path / "items.npy", values)
    encoder = build(CASES[0], torch.float32).to("cuda")
    whole = encoder(Sets.from_list([torch.from_numpy(values)]).to("cuda"))
    expected = derivatives(encoder, whole)
    for prefetch in (True, False):
        code = stream(encoder, NpyChunks(tmp_path / "items.npy", 512), prefetch=prefetch)
        torch.testing.assert_close(code, whole, rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(derivatives(encoder, code), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_half_precision_items_are_computed_in_the_type_of_the_weights(case: Case) -> None:
    encoder = build(case, torch.float32).to("cuda")
    half = random_sets(dtype=torch.bfloat16).to("cuda")
    wide = half.to(torch.float32)
    code, expected = encoder(half), encoder(wide)
    assert code.dtype == torch.float32
    torch.testing.assert_close(code, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_half_precision_weights_give_half_precision_codes(case: Case) -> None:
    code = build(case, torch.bfloat16).to("cuda")(random_sets(dtype=torch.bfloat16).to("cuda"))
    assert code.dtype == torch.bfloat16 and bool(code.isfinite().all())


@pytest.mark.parametrize("case", PIECES, ids=str)
def test_prefixes_and_states_on_disk(case: Case, tmp_path: Path) -> None:
    here, there = build(case), build(case).to("cuda")
    moved = random_sets().to("cuda")
    assert_close(
        [there.finish(item_prefixes(there, moved))], [here.finish(item_prefixes(here, random_sets())).detach()]
    )
    *_, last = chunk_prefixes(there, random_sets(), chunk_size=5)
    assert_close([there.finish(last)], [here(random_sets()).detach()])
    last.save(tmp_path / "state")
    kind = MaxState if isinstance(last, MaxState) else State
    again = kind.load(tmp_path / "state", device="cuda")
    empty = Sets.from_lengths(torch.zeros(0, DIM, dtype=torch.float64), [0] * 4).to("cuda")
    torch.testing.assert_close(there.finish(there.update(again, empty)), there.finish(last))


def test_dropout_is_the_same_in_both_passes() -> None:
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, phi=nn.Sequential(nn.Linear(DIM, 16), nn.Dropout(0.5))).double().to("cuda").train()
    with seeded(3):
        before = torch.cuda.get_rng_state()
        value = stream(encoder, random_sets([40]), chunk_size=10)
        # The second pass would raise if its sums were others.
        assert all(bool(g.isfinite().all()) for g in derivatives(encoder, value))
        assert torch.equal(before, torch.cuda.get_rng_state())


def test_errors_are_those_of_the_cpu() -> None:
    encoder = build(CASES[0]).to("cuda")
    sets = random_sets([4])
    with pytest.raises(DataError, match="chunk 1 holds NaN"):
        stream(encoder, [sets, sets.with_values(sets.values * torch.nan)])
    turns = iter(range(10))
    value = stream(encoder, lambda: [random_sets([4], seed=next(turns))])
    with pytest.raises(DataError, match="other chunks in a later pass"):
        derivatives(encoder, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_a_group_of_one_over_nccl(case: Case, tmp_path: Path) -> None:
    if not dist.is_nccl_available():
        pytest.skip("torch has no NCCL")
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1, device_id=device)
    try:
        here, there = build(case), build(case).to(device)
        for gradient in ("full", "exact"):
            there.zero_grad()
            value = stream_over(there, random_sets(), gradient=gradient, chunk_size=4)
            weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape).to(device)
            (value * weights).sum().backward()
            mean_gradients(there.parameters())
            expected = here(random_sets())
            assert_close([value], [expected])
            found = [torch.zeros_like(p) if p.grad is None else p.grad for p in there.parameters()]
            assert_close(found, gradients(here, expected))
        if case.pieces:
            start = there.begin(4) if case.name == "max" else begin_over(there, 4)
            merged = merge_over(there.update(start, random_sets().to(device)))
            assert_close([there.finish(merged)], [here(random_sets()).detach()])
            with pytest.raises(OptionError, match="NCCL sums tensors on GPUs"):
                merge_over(here.update(here.begin(4), random_sets()))
    finally:
        dist.destroy_process_group()
