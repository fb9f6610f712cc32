"""The contract of all set encoders; `test_poolings.py` compares them with plain definitions."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setgrad import encoders
from setgrad.encoders import (
    ABMIL,
    DSMIL,
    SSE,
    UMBC,
    ChunkedEncoder,
    ContextItems,
    DeepSets,
    DeepUMBC,
    DiffEM,
    FSPool,
    MaxPool,
    OnSlots,
    SetEncoder,
    SetTransformer,
    SlotSigmoid,
    Softmax,
    State,
    TransformerHead,
    hierarchical_sse,
    stream,
)
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.errors import OptionError, ShapeError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, assert_close, generator_drawing, gradients, random_sets, split_sets


def _phi(dim: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, dim), nn.Tanh())


def _umbc(**options: Any) -> UMBC:
    return UMBC(DIM, 8, 4, heads=2, head=nn.Sequential(nn.Flatten(1), nn.Linear(4 * 8, 5)), **options)


@dataclass(frozen=True)
class Case:
    """An encoder and what it supports."""

    name: str
    make: Callable[[], Any]
    # Whether there is a state that chunks can be added to.
    mergeable: bool = False
    # Whether sets may be read in chunks in several passes, without a state.
    chunked: bool = False
    # Whether items may have counts; if not, they are rejected.
    counted: bool = True
    # How many passes of a sampled gradient draw chunks: those that compute sums.
    draws: int = 1

    def __str__(self) -> str:
        return self.name


UMBC_CASES = [
    *(Case(f"umbc, {name}", partial(_umbc, activation=a), mergeable=True) for name, a in ACTIVATIONS.items()),
    Case("umbc, no residual", partial(_umbc, residual=False), mergeable=True),
    Case("umbc, not normalised", partial(_umbc, activation=SlotSigmoid(), normalize=False), mergeable=True),
    Case("umbc, own phi", lambda: _umbc(phi=nn.Sequential(nn.Linear(DIM, 7), nn.ReLU())), mergeable=True),
]
DEEP_SETS_CASES = [
    Case("deep sets, sum", lambda: DeepSets(DIM, _phi(), head=nn.Linear(5, 2)), mergeable=True),
    Case("deep sets, mean", lambda: DeepSets(DIM, _phi(), pooling="mean", head=nn.Linear(5, 2)), mergeable=True),
]
CASES = [
    *UMBC_CASES,
    *DEEP_SETS_CASES,
    Case("umbc", lambda: UMBC(DIM, 8, 4, heads=2), mergeable=True),
    Case("umbc, transformer head", lambda: UMBC(DIM, 8, 4, head=TransformerHead(8, outputs=2)), mergeable=True),
    Case("umbc, fspool head", lambda: UMBC(DIM, 8, 4, head=OnSlots(FSPool(8, pieces=3))), mergeable=True),
    Case("umbc, em head", lambda: UMBC(DIM, 8, 4, head=OnSlots(DiffEM(8, components=2))), mergeable=True),
    Case("umbc, deep", lambda: DeepUMBC(DIM, 8, 4, passes=2, phi=_phi()), chunked=True, draws=2),
    Case("umbc, deep, head", lambda: DeepUMBC(DIM, 8, 4, passes=1, layers=0, head=nn.Linear(8, 2)), chunked=True),
    Case("sse", lambda: SSE(DIM, 8, 4, heads=2, phi=_phi(), head=nn.Linear(8, 2)), mergeable=True),
    Case("sse, random", lambda: SSE(DIM, 8, 4, random=True), mergeable=True),
    Case("sse, hierarchical", lambda: hierarchical_sse(DIM, [(6, 8), (3, 4), (1, 4)]), mergeable=True),
    Case("deep sets, no head", lambda: DeepSets(DIM, _phi()), mergeable=True),
    Case("max", lambda: MaxPool(DIM, _phi(), head=nn.Linear(5, 2)), mergeable=True, draws=0),
    Case("set transformer", lambda: SetTransformer(DIM, 8, outputs=2, layers=1)),
    Case("set transformer, induced", lambda: SetTransformer(DIM, 8, slots=3, layers=2, head=nn.Linear(8, 2))),
    Case("fspool", lambda: FSPool(DIM, _phi(), pieces=4), counted=False),
    Case("em", lambda: DiffEM(DIM, _phi(2), components=3, mixtures=2, steps=2), chunked=True, draws=2),
    Case("em, head", lambda: DiffEM(DIM, components=2, steps=1, head=nn.Linear(7, 2)), chunked=True),
    Case("ab-mil", lambda: ABMIL(DIM, _phi(), hidden=4, branches=2, head=nn.Linear(10, 2)), mergeable=True),
    Case("ab-mil, no gate", lambda: ABMIL(DIM, hidden=4, gated=False), mergeable=True),
    Case("ds-mil", lambda: DSMIL(DIM, _phi(), classes=2, hidden=4), chunked=True),
]
MERGEABLE = [case for case in CASES if case.mergeable]
STREAMS = [case for case in CASES if case.mergeable or case.chunked]
COUNTED = [case for case in CASES if case.counted]


def build(case: Case, seeded: Any, dtype: torch.dtype = torch.float64) -> Any:
    with seeded(0):
        return case.make().to(dtype).eval()


@pytest.fixture(params=CASES, ids=str)
def encoder(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


@pytest.fixture(params=MERGEABLE, ids=str)
def mergeable(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


@pytest.fixture(params=STREAMS, ids=str)
def chunked(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


@pytest.fixture(params=COUNTED, ids=str)
def counted(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


def test_every_set_encoder_has_a_case(seeded):
    classes = {cls for cls in vars(encoders).values() if isinstance(cls, type) and issubclass(cls, SetEncoder)}
    assert {type(build(case, seeded)) for case in CASES} == {cls for cls in classes if not inspect.isabstract(cls)}


def test_the_order_of_items_makes_no_difference(encoder):
    sets = random_sets()
    generator = torch.Generator().manual_seed(1)
    shuffled = Sets.from_list([x[torch.randperm(len(x), generator=generator)] for x in sets.to_list()])
    assert_close(encoder(shuffled), encoder(sets))
    assert_close(gradients(encoder, encoder(shuffled)), gradients(encoder, encoder(sets)))


def test_a_code_depends_on_every_item(encoder):
    """Otherwise a constant would pass the tests of invariance."""
    sets = random_sets([2, 3])
    for number in range(5):
        moved = sets.values.clone()
        moved[number] += 3.0
        changed = (encoder(sets.with_values(moved)) - encoder(sets)).flatten(1).abs().amax(1) > 1e-6
        assert changed.tolist() == [number < 2, number >= 2]


def test_other_sets_of_the_batch_make_no_difference(encoder):
    sets = random_sets()
    together = encoder(sets)
    for number in range(len(sets)):
        assert_close(encoder(sets[number : number + 1])[0], together[number])


def test_padding_makes_no_difference(encoder):
    """Even if it is NaN."""
    sets = random_sets()
    x, mask = sets.padded(fill=torch.nan)
    wider = torch.cat([x, torch.full_like(x[:, :5], torch.nan)], 1)
    wider_mask = torch.cat([mask, torch.zeros_like(mask[:, :5])], 1)
    assert_close(encoder(Sets.from_padded(wider, wider_mask)), encoder(sets), 0)


def test_empty_sets_and_single_items_have_finite_codes_and_gradients(encoder):
    for sizes in ([0, 0], [1, 1], [0, 1]):
        sets = random_sets(sizes)
        values = sets.values.clone().requires_grad_()
        code = encoder(sets.with_values(values))
        assert code.isfinite().all() and len(code) == 2
        assert all(g.isfinite().all() for g in gradients(encoder, code))
        (gradient,) = torch.autograd.grad(encoder(sets.with_values(values)).sum(), values, allow_unused=True)
        assert gradient is None or gradient.isfinite().all()
    assert torch.equal(encoder(random_sets([0, 0]))[0], encoder(random_sets([0, 0]))[1])


def test_equal_items_have_finite_gradients(encoder):
    sets = Sets.from_lengths(torch.ones(5, DIM, dtype=torch.float64), [3, 2])
    assert all(g.isfinite().all() for g in gradients(encoder, encoder(sets)))


def test_any_partition_in_any_order_gives_the_code_of_the_whole_set(mergeable):
    sets = random_sets()
    chunks, whole = split_sets(sets), mergeable(sets)
    for order in itertools.permutations(range(3)):
        state = mergeable.begin(len(sets))
        for number in order:
            state = mergeable.update(state, chunks[number])
        assert_close(mergeable.finish(state), whole)
        assert_close(gradients(mergeable, mergeable.finish(state)), gradients(mergeable, mergeable(sets)))
    with pytest.raises(ShapeError, match="one part for each set"):
        mergeable.update(mergeable.begin(2), sets)


def test_merge_is_associative_and_begin_is_its_identity(mergeable):
    start = mergeable.begin(4)
    a, b, c = (mergeable.update(start, chunk) for chunk in split_sets(random_sets()))
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    assert_close(mergeable.finish(left), mergeable.finish(right))
    if isinstance(left, State):
        assert_close(left.sums, right.sums)
    assert_close(mergeable.finish(start.merge(a)), mergeable.finish(a), 0)
    with pytest.raises(ShapeError, match="cannot be merged"):
        a.merge(mergeable.begin(2))


def test_a_detached_state_has_the_same_code_and_no_graph(mergeable):
    state = mergeable.update(mergeable.begin(4), random_sets())
    mergeable.requires_grad_(False)
    code = mergeable.finish(state.detach())
    assert not code.requires_grad
    assert_close(code, mergeable.finish(state).detach(), 0)


@pytest.mark.parametrize("gradient", ["full", "exact"])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_streams_give_code_and_gradient_of_the_whole_set(chunked, gradient, size):
    sets = random_sets()
    code = chunked.stream(sets, gradient=gradient, chunk_size=size)
    assert_close(code, chunked(sets))
    assert_close(gradients(chunked, code), gradients(chunked, chunked(sets)))


def test_items_get_a_gradient_from_the_full_graph(chunked):
    sets = random_sets()
    values = sets.values.clone().requires_grad_()
    streamed, whole = (
        torch.autograd.grad(code.square().sum(), values)[0]
        for code in (
            chunked.stream(sets.with_values(values), gradient="full", chunk_size=4),
            chunked(sets.with_values(values)),
        )
    )
    assert_close(streamed, whole)
    with pytest.raises(OptionError, match="only differentiated with gradient='full'"):
        chunked.stream(sets.with_values(values))


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_the_mean_of_sampled_gradients_is_the_gradient_of_the_whole_set(case, seeded, samples):
    """Over all orders of the chunks in all passes, which are equally likely; chunks differ in size, some are empty."""
    encoder, sets = build(case, seeded), random_sets()
    whole = encoder(sets)
    chunks, exact = split_sets(sets), gradients(encoder, whole)
    orders = list(itertools.product(itertools.permutations(range(3)), repeat=case.draws))
    total = [torch.zeros_like(g) for g in exact]
    for order in orders:
        generator, expected = generator_drawing(order), generator_drawing(order)
        code = encoder.stream(chunks, gradient="sample", samples=samples, generator=generator)
        assert_close(code, whole)
        total = [t + g / len(orders) for t, g in zip(total, gradients(encoder, code), strict=True)]
        for permutation in order:
            torch.randperm(len(permutation), generator=expected)
        assert torch.equal(generator.get_state(), expected.get_state()), "every pass of sums draws once"
    assert_close(total, exact)


@pytest.mark.parametrize("sizes", [[4, 2], [3, 3]])
def test_a_count_repeats_an_item(counted, sizes):
    sets, counts = random_sets(sizes), torch.tensor([2, 0, 1, 3, 1, 1])
    values = sets.values.clone().requires_grad_()
    lengths = [int(part.sum()) for part in counts.split(sizes)]
    repeated = Sets(values.repeat_interleave(counts, 0), random_sets(lengths).layout)
    assert_close(counted(sets, counts=counts), counted(repeated))
    assert_close(gradients(counted, counted(sets, counts)), gradients(counted, counted(repeated)))
    actual, expected = (
        torch.autograd.grad(code.exp().sum(), values)
        for code in (counted(sets.with_values(values), counts), counted(repeated))
    )
    assert_close(actual, expected)
    assert_close(counted(sets, torch.zeros(6)), counted(random_sets([0, 0])))
    with pytest.raises(ShapeError, match="one number for each of 6 items"):
        counted(sets, counts[:-1])


@pytest.mark.parametrize("numbers", [[2.0, 0.0, 1.0, 3.0, 0.5, 1.0], [0.0] * 6])
def test_items_of_count_0_may_be_nan_and_leave_gradients_finite(counted, numbers):
    sets, counts = random_sets([4, 2]), torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    values = torch.where(counts[:, None] == 0, torch.nan, sets.values).requires_grad_()
    code = counted(sets.with_values(values), counts)
    assert code.isfinite().all() and all(g.isfinite().all() for g in gradients(counted, code))
    result = torch.autograd.grad(counted(sets.with_values(values), counts).sum(), [values, counts], allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in result)


@pytest.mark.parametrize("case", [case for case in CASES if not case.counted], ids=str)
def test_counts_are_rejected_where_they_have_no_meaning(case, seeded):
    with pytest.raises(OptionError, match=r"does not support counts; repeat items .* or let UMBC read the counts"):
        build(case, seeded)(random_sets([4, 2]), counts=torch.ones(6))


@pytest.mark.parametrize("make", [SetTransformer, DiffEM, DSMIL])
def test_counts_are_rejected_where_phi_does_not_support_them(make, seeded):
    with seeded(0):
        encoder = make(DIM, phi=ContextItems(DIM, 8)).double().eval()
    assert_close(encoder(random_sets()), encoder(random_sets(), None))
    with pytest.raises(OptionError, match=r"which ContextItems does not; use phi=MLPItems"):
        encoder(random_sets([4, 2]), counts=torch.ones(6))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_have_the_dtype_of_the_items(case, seeded):
    whole = build(case, seeded)(random_sets())
    single = build(case, seeded, torch.float32)(random_sets(dtype=torch.float32))
    assert single.dtype == torch.float32 and whole.dtype == torch.float64
    assert_close(single.double(), whole, 2e-5)
    half = build(case, seeded, torch.bfloat16)(random_sets(dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16 and half.isfinite().all()


# Torch's own forward mode raises this warning.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_mode_agrees_with_reverse_mode(encoder):
    sets = random_sets()

    def code(values: Tensor) -> Tensor:
        return encoder(sets.with_values(values))

    tangent = torch.sin(sets.values)
    forward = torch.func.jvp(code, (sets.values,), (tangent,))[1]
    assert_close(forward, (torch.func.jacrev(code)(sets.values) * tangent).sum((-2, -1)), 1e-9)


def test_derivatives_agree_with_finite_differences(encoder, seeded):
    sets = random_sets([2, 0, 1])
    # One parameter of each shape is enough; all of them would take minutes.
    few = list({p.shape: p for p in encoder.parameters() if p.requires_grad and p.numel() <= 24}.values())

    def code(values: Tensor, *_: Tensor) -> Tensor:
        return encoder(sets.with_values(values))

    with seeded(0):
        assert torch.autograd.gradcheck(code, (sets.values.clone().requires_grad_(), *few), atol=1e-6)


class FixedSizes(nn.Module):
    """An encoder as a function of one tensor, for sets of fixed sizes."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.layout = random_sets().layout.precompute()

    def forward(self, values: Tensor) -> Tensor:
        return self.encoder(Sets(values, self.layout))


# Torch reads .grad of every input, and silences that warning only where it is not an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_encoders_compile_to_one_graph(case, seeded):
    encoder = build(case, seeded)
    compiled = torch.compile(FixedSizes(encoder), backend="eager", fullgraph=True)
    values = random_sets().values
    assert_close(compiled(values), encoder(random_sets()))
    assert_close(gradients(encoder, compiled(values)), gradients(encoder, encoder(random_sets())))


def test_encoders_can_be_exported_for_fixed_sizes(encoder):
    plain = FixedSizes(encoder)
    program = torch.export.export(plain, (random_sets().values,), strict=False)
    other = random_sets(seed=5).values
    assert_close(program.module()(other), plain(other))


@pytest.mark.parametrize("slots", [None, 3])
def test_the_transformer_head_can_be_exported_for_any_batch_and_size(slots, seeded):
    with seeded(0):
        head = TransformerHead(8, outputs=2, slots=slots).double().eval()
    x, mask = torch.linspace(0, 1, 2 * 5 * 8, dtype=torch.float64).reshape(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    batch, size = torch.export.Dim("batch", min=2), torch.export.Dim("size", min=2, max=10**6)
    shapes = ({0: batch, 1: size}, {0: batch, 1: size})
    program = torch.export.export(head, (x, mask), dynamic_shapes=shapes)
    wider = torch.cat([x, x.flip(0)], 1).repeat(2, 1, 1)
    wider_mask = torch.arange(10) < torch.tensor([[3], [10], [0], [7]])
    assert_close(program.module()(wider, wider_mask), head(wider, wider_mask))


def test_items_of_another_shape_are_rejected(encoder):
    with pytest.raises(ShapeError, match=r"reads items of shape \(3,\)"):
        encoder(Sets.from_lengths(torch.zeros(4, DIM + 1, dtype=torch.float64), [4]))


def test_encoders_that_cannot_read_chunks_name_a_remedy(encoder):
    if isinstance(encoder, ChunkedEncoder):
        assert_close(stream(encoder, random_sets(), chunk_size=4), encoder(random_sets()))
    else:
        with pytest.raises(OptionError, match="needs all items of a set at once; let UMBC read the chunks"):
            stream(encoder, random_sets())


@pytest.mark.parametrize("make", [UMBC, DeepUMBC])
def test_wrong_activations_and_normalisations_raise(make, seeded):
    with seeded(0), pytest.raises(OptionError, match=r"activation must be one of Softmax\(\), Sigmoid\(\)"):
        make(DIM, 8, 4, activation=Softmax)
    with seeded(0), pytest.raises(OptionError, match="without normalisation has no bound"):
        UMBC(DIM, 8, 4, normalize=False)
