"""One contract for all set encoders; `test_poolings.py` compares them with plain definitions."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
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
    TransformerHead,
    hierarchical_sse,
    stream,
)
from setgrad.errors import OptionError, ShapeError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, Orders, draw, gradients, split

CUTS = [[3, 0, 4], [0, 0, 0], [0, 1, 0], [5, 5, 2]]


def _phi(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, width), nn.Tanh())


@dataclass(frozen=True)
class Case:
    """An encoder and what it promises."""

    name: str
    make: Callable[[], Any]
    # Whether there is a state that pieces of sets can be added to.
    pieces: bool = False
    # Whether sets may be read in chunks, in several passes perhaps.
    several: bool = False
    # Whether items may have weights; if not, they are refused.
    weighed: bool = True
    # How many passes of a sampled gradient draw chunks: those of sums.
    draws: int = 1

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("umbc", lambda: UMBC(DIM, 8, 4, heads=2), pieces=True),
    Case("umbc, transformer head", lambda: UMBC(DIM, 8, 4, head=TransformerHead(8, outputs=2)), pieces=True),
    Case("umbc, fspool head", lambda: UMBC(DIM, 8, 4, head=OnSlots(FSPool(8, pieces=3))), pieces=True),
    Case("umbc, em head", lambda: UMBC(DIM, 8, 4, head=OnSlots(DiffEM(8, components=2))), pieces=True),
    Case("umbc, deep", lambda: DeepUMBC(DIM, 8, 4, passes=2, phi=_phi()), several=True, draws=2),
    Case("umbc, deep, head", lambda: DeepUMBC(DIM, 8, 4, passes=1, layers=0, head=nn.Linear(8, 2)), several=True),
    Case("sse", lambda: SSE(DIM, 8, 4, heads=2, phi=_phi(), head=nn.Linear(8, 2)), pieces=True),
    Case("sse, random", lambda: SSE(DIM, 8, 4, random=True), pieces=True),
    Case("sse, hierarchical", lambda: hierarchical_sse(DIM, [(6, 8), (3, 4), (1, 4)]), pieces=True),
    Case("deep sets, sum", lambda: DeepSets(DIM, _phi()), pieces=True),
    Case("deep sets, mean", lambda: DeepSets(DIM, _phi(), pooling="mean"), pieces=True),
    Case("max", lambda: MaxPool(DIM, _phi(), head=nn.Linear(5, 2)), pieces=True, draws=0),
    Case("set transformer", lambda: SetTransformer(DIM, 8, outputs=2, layers=1)),
    Case("set transformer, induced", lambda: SetTransformer(DIM, 8, slots=3, layers=2, head=nn.Linear(8, 2))),
    Case("fspool", lambda: FSPool(DIM, _phi(), pieces=4), weighed=False),
    Case("em", lambda: DiffEM(DIM, _phi(2), components=3, mixtures=2, steps=2), several=True, draws=2),
    Case("em, head", lambda: DiffEM(DIM, components=2, steps=1, head=nn.Linear(7, 2)), several=True),
    Case("ab-mil", lambda: ABMIL(DIM, _phi(), hidden=4, branches=2, head=nn.Linear(10, 2)), pieces=True),
    Case("ab-mil, no gate", lambda: ABMIL(DIM, hidden=4, gated=False), pieces=True),
    Case("ds-mil", lambda: DSMIL(DIM, _phi(), classes=2, hidden=4), several=True),
]
PIECES = [case for case in CASES if case.pieces]
STREAMS = [case for case in CASES if case.pieces or case.several]
WEIGHED = [case for case in CASES if case.weighed]


def build(case: Case, seeded: Any, dtype: torch.dtype = torch.float64) -> Any:
    with seeded(0):
        return case.make().to(dtype).eval()


def close(ours: Any, expected: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=CASES, ids=str)
def encoder(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


@pytest.fixture(params=PIECES, ids=str)
def reader(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


@pytest.fixture(params=STREAMS, ids=str)
def streamer(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


@pytest.fixture(params=WEIGHED, ids=str)
def weigher(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


def test_every_set_encoder_is_held_to_the_contract(seeded):
    kinds = {kind for kind in vars(encoders).values() if isinstance(kind, type) and issubclass(kind, SetEncoder)}
    assert {type(build(case, seeded)) for case in CASES} == {kind for kind in kinds if not inspect.isabstract(kind)}


def test_the_order_of_items_makes_no_difference(encoder):
    sets = draw()
    generator = torch.Generator().manual_seed(1)
    shuffled = Sets.from_list([x[torch.randperm(len(x), generator=generator)] for x in sets.to_list()])
    close(encoder(shuffled), encoder(sets))
    close(gradients(encoder, encoder(shuffled)), gradients(encoder, encoder(sets)))


def test_a_code_depends_on_every_item(encoder):
    """Or the tests of invariance would be passed by a constant."""
    sets = draw([2, 3])
    for number in range(5):
        moved = sets.values.clone()
        moved[number] += 3.0
        changed = (encoder(sets.with_values(moved)) - encoder(sets)).flatten(1).abs().amax(1) > 1e-6
        assert changed.tolist() == [number < 2, number >= 2]


def test_batch_mates_make_no_difference(encoder):
    sets = draw()
    together = encoder(sets)
    for number in range(len(sets)):
        close(encoder(sets[number : number + 1])[0], together[number])


def test_padding_makes_no_difference(encoder):
    """Padding of NaN: whatever it holds is never seen."""
    sets = draw()
    x, mask = sets.padded(fill=torch.nan)
    wider = torch.cat([x, torch.full_like(x[:, :5], torch.nan)], 1)
    seen = torch.cat([mask, torch.zeros_like(mask[:, :5])], 1)
    close(encoder(Sets.from_padded(wider, seen)), encoder(sets), 0)


def test_nothing_and_single_items_have_codes_and_gradients(encoder):
    for sizes in ([0, 0], [1, 1], [0, 1]):
        sets = draw(sizes)
        values = sets.values.clone().requires_grad_()
        code = encoder(sets.with_values(values))
        assert code.isfinite().all() and len(code) == 2
        assert all(g.isfinite().all() for g in gradients(encoder, code))
        (seen,) = torch.autograd.grad(encoder(sets.with_values(values)).sum(), values, allow_unused=True)
        assert seen is None or seen.isfinite().all()
    assert torch.equal(encoder(draw([0, 0]))[0], encoder(draw([0, 0]))[1])


def test_equal_items_have_finite_gradients(encoder):
    sets = Sets.from_lengths(torch.ones(5, DIM, dtype=torch.float64), [3, 2])
    assert all(g.isfinite().all() for g in gradients(encoder, encoder(sets)))


def test_any_partition_in_any_order_gives_the_whole(reader):
    sets = draw()
    chunks, whole = split(sets, CUTS), reader(sets)
    for order in itertools.permutations(range(3)):
        state = reader.begin(len(sets))
        for number in order:
            state = reader.update(state, chunks[number])
        close(reader.finish(state), whole)
        close(gradients(reader, reader.finish(state)), gradients(reader, reader(sets)))
    a, b, c = (reader.update(reader.begin(len(sets)), chunk) for chunk in chunks)
    close(reader.finish(a.merge(b).merge(c)), reader.finish(a.merge(b.merge(c))))
    with pytest.raises(ShapeError, match="one piece for each set"):
        reader.update(reader.begin(2), sets)
    with pytest.raises(ShapeError, match="cannot be merged"):
        a.merge(reader.begin(2))


@pytest.mark.parametrize("gradient", ["full", "exact"])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_streams_give_value_and_gradient_of_the_whole(streamer, gradient, size):
    sets = draw()
    value = streamer.stream(sets, gradient=gradient, chunk_size=size)
    close(value, streamer(sets))
    close(gradients(streamer, value), gradients(streamer, streamer(sets)))


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_the_mean_of_sampled_gradients_is_the_whole_gradient(case, seeded, samples):
    """All orders of the chunks in all passes, each as likely as the others; pieces differ in size, some are empty."""
    encoder, sets = build(case, seeded), draw()
    chunks, exact = split(sets, CUTS), gradients(encoder, encoder(sets))
    orders = list(itertools.product(itertools.permutations(range(3)), repeat=case.draws))
    total = [torch.zeros_like(g) for g in exact]
    for order in orders:
        drawn = Orders(order)
        code = encoder.stream(chunks, gradient="sample", samples=samples, generator=drawn)
        close(code, encoder(sets))
        total = [t + g / len(orders) for t, g in zip(total, gradients(encoder, code), strict=True)]
        assert not drawn.left, "every pass of sums draws once"
    close(total, exact)


@pytest.mark.parametrize("sizes", [[4, 2], [3, 3]])
def test_a_weight_counts_an_item_that_often(weigher, sizes):
    sets, weights = draw(sizes), torch.tensor([2, 0, 1, 3, 1, 1])
    values = sets.values.clone().requires_grad_()
    repeated = Sets(values.repeat_interleave(weights, 0), draw([int(w.sum()) for w in weights.split(sizes)]).layout)
    close(weigher(sets, weights=weights), weigher(repeated))
    close(gradients(weigher, weigher(sets, weights)), gradients(weigher, weigher(repeated)))
    ours, expected = (
        torch.autograd.grad(code.exp().sum(), values)
        for code in (weigher(sets.with_values(values), weights), weigher(repeated))
    )
    close(ours, expected)
    close(weigher(sets, torch.zeros(6)), weigher(draw([0, 0])))


@pytest.mark.parametrize("weights", [[2.0, 0.0, 1.0, 3.0, 0.5, 1.0], [0.0] * 6])
def test_items_of_weight_0_hold_anything_and_leave_gradients_finite(weigher, weights):
    sets, counts = draw([4, 2]), torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    values = torch.where(counts[:, None] == 0, torch.nan, sets.values).requires_grad_()
    code = weigher(sets.with_values(values), counts)
    assert code.isfinite().all() and all(g.isfinite().all() for g in gradients(weigher, code))
    found = torch.autograd.grad(weigher(sets.with_values(values), counts).sum(), [values, counts], allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in found)


@pytest.mark.parametrize("case", [case for case in CASES if case not in WEIGHED], ids=str)
def test_weights_without_a_meaning_are_refused(case, seeded):
    with pytest.raises(OptionError, match=r"no other weights; repeat items .* or let UMBC read the weights"):
        build(case, seeded)(draw([4, 2]), weights=torch.ones(6))


@pytest.mark.parametrize("make", [SetTransformer, DiffEM, DSMIL])
def test_weights_are_refused_where_phi_knows_none(make, seeded):
    with seeded(0):
        encoder = make(DIM, phi=ContextItems(DIM, 8)).double().eval()
    close(encoder(draw()), encoder(draw(), None))
    with pytest.raises(OptionError, match=r"ContextItems as phi .* use phi=MLPItems"):
        encoder(draw([4, 2]), weights=torch.ones(6))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_type_of_items_is_the_type_of_codes(case, seeded):
    whole = build(case, seeded)(draw())
    single = build(case, seeded, torch.float32)(draw(dtype=torch.float32))
    assert single.dtype == torch.float32 and whole.dtype == torch.float64
    close(single.double(), whole, 2e-5)
    half = build(case, seeded, torch.bfloat16)(draw(dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16 and half.isfinite().all()


# Of torch's own forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_mode_agrees_with_reverse_mode(encoder):
    sets = draw()

    def code(values: Tensor) -> Tensor:
        return encoder(sets.with_values(values))

    tangent = torch.sin(sets.values)
    forward = torch.func.jvp(code, (sets.values,), (tangent,))[1]
    close(forward, (torch.func.jacrev(code)(sets.values) * tangent).sum((-2, -1)), 1e-9)


def test_derivatives_agree_with_differences(encoder, seeded):
    sets = draw([2, 0, 1])
    chosen = [p for p in encoder.parameters() if p.requires_grad]
    # One parameter of each shape is enough; all of them would take minutes.
    few = list({p.shape: p for p in chosen if p.numel() <= 24}.values())

    def code(values: Tensor, *_: Tensor) -> Tensor:
        return encoder(sets.with_values(values))

    with seeded(0):
        assert torch.autograd.gradcheck(code, (sets.values.clone().requires_grad_(), *few), atol=1e-6)


class OfValues(nn.Module):
    """An encoder as a function of one tensor, for sets of fixed sizes."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.layout = draw().layout.precompute()

    def forward(self, values: Tensor) -> Tensor:
        return self.encoder(Sets(values, self.layout))


# torch looks at .grad of every tensor that it is given, and silences that warning only where it is no error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_encoders_give_the_same(case, seeded):
    """As one graph."""
    encoder = build(case, seeded)
    torch.compiler.reset()
    compiled = torch.compile(OfValues(encoder), backend="eager", fullgraph=True)
    values = draw().values
    close(compiled(values), encoder(draw()))
    close(gradients(encoder, compiled(values)), gradients(encoder, encoder(draw())))


def test_encoders_are_exported(encoder):
    """With the sizes of the sets fixed; a head on slots needs no sizes, see below."""
    plain = OfValues(encoder)
    program = torch.export.export(plain, (draw().values,), strict=False)
    other = draw(seed=5).values
    close(program.module()(other), plain(other))


@pytest.mark.parametrize("slots", [None, 3])
def test_the_transformer_head_is_exported_for_any_batch_and_size(slots, seeded):
    with seeded(0):
        head = TransformerHead(8, outputs=2, slots=slots).double().eval()
    x, mask = torch.linspace(0, 1, 2 * 5 * 8, dtype=torch.float64).reshape(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    batch, size = torch.export.Dim("batch", min=2), torch.export.Dim("size", min=2, max=10**6)
    shapes = ({0: batch, 1: size}, {0: batch, 1: size})
    program = torch.export.export(head, (x, mask), dynamic_shapes=shapes)
    wider = torch.cat([x, x.flip(0)], 1).repeat(2, 1, 1)
    seen = torch.arange(10) < torch.tensor([[3], [10], [0], [7]])
    close(program.module()(wider, seen), head(wider, seen))


def test_items_of_another_width_are_refused(encoder):
    with pytest.raises(ShapeError, match=r"reads items of shape \(3,\)"):
        encoder(Sets.from_lengths(torch.zeros(4, DIM + 1, dtype=torch.float64), [4]))


def test_what_cannot_be_read_in_chunks_says_so(encoder):
    if isinstance(encoder, ChunkedEncoder):
        close(stream(encoder, draw(), chunk_size=4), encoder(draw()))
    else:
        with pytest.raises(OptionError, match="must see all items of a set at once; let UMBC read the chunks"):
            stream(encoder, draw())
