"""Replayed passes: the gradient is that of the first pass, or an error says why not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from setgrad.encoders import DSMIL, SSE, UMBC, DeepSets, DeepUMBC, DiffEM, MaxPool, stream, streaming
from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, assert_close, generator_drawing, gradients, random_sets, split_sets

# The second set has fewer chunks than the first, so that some are differentiated for the first only.
CUTS = [[2, 1, 3], [3, 0, 4]]


class Shifted(nn.Module):
    """Adds a tensor that is not a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, 4)
        self.shift: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.shift is None else self.layer(x) + self.shift


@pytest.mark.parametrize("gradient", ["exact", "sample"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_tensor_that_would_get_no_gradient_is_rejected(seeded, gradient, frozen):
    with seeded(0):
        phi, other = Shifted(), nn.Linear(2, 4).double()
        encoder = UMBC(DIM, 8, 4, heads=2, phi=phi).double().eval().requires_grad_(not frozen)
    phi.shift = other(torch.ones(2, dtype=torch.float64))
    with pytest.raises(OptionError, match=r"tensor of shape \(4.*is not a parameter of the encoder"):
        stream(encoder, random_sets(), gradient=gradient)
    stream(encoder, random_sets(), gradient="full").square().cumsum(1).sum().backward()
    assert other.weight.grad is not None
    with torch.no_grad():
        stream(encoder, random_sets(), gradient=gradient)
    phi.shift = phi.shift.detach()
    assert stream(encoder, random_sets(), gradient=gradient).isfinite().all()


@pytest.mark.parametrize("gradient", ["exact", "sample"])
def test_replaced_parameters_get_their_gradient_or_an_error(seeded, gradient):
    class StreamOrGradients(nn.Module):
        def __init__(self, inside: bool) -> None:
            super().__init__()
            self.inside = inside
            with seeded(0):
                self.encoder = UMBC(DIM, 8, 4, heads=2).double().eval()

        def forward(self, sets: Sets) -> Any:
            code = stream(self.encoder, sets, gradient=gradient, samples=99, chunk_size=3)
            return gradients(self.encoder, code) if self.inside else code

    module = StreamOrGradients(inside=False)
    others = {name: (2 * p).detach().requires_grad_() for name, p in module.named_parameters()}
    code = torch.func.functional_call(module, others, (random_sets(),))
    with pytest.raises(OptionError, match="other parameters in the backward pass"):
        code.sum().backward()
    module = StreamOrGradients(inside=True)
    # Neither leaves nor parameters of the module.
    replaced = {name: 1 * p for name, p in others.items()}
    actual = torch.func.functional_call(module, replaced, (random_sets(),))
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(others[name])
    assert_close(actual, gradients(module.encoder, module.encoder(random_sets())), 1e-10)


@pytest.mark.parametrize("make", [lambda: UMBC(DIM, 8, 4, heads=2), lambda: MaxPool(DIM, nn.Linear(DIM, 4))])
@pytest.mark.parametrize("gradient", ["exact", "sample"])
def test_items_of_any_chunk_that_require_a_gradient_are_rejected(seeded, make, gradient):
    with seeded(0):
        encoder = make().double().eval()
    plain, tracked = random_sets([4]).values, random_sets([4], seed=1).values.requires_grad_()
    for source in ([plain, tracked], lambda: (x[:3] for x in (plain, tracked))):
        with pytest.raises(OptionError, match="only differentiated with gradient='full'"):
            stream(encoder, source, gradient=gradient)
        with torch.no_grad():
            stream(encoder, source, gradient=gradient)


# Torch's own forward mode raises this warning.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("make", [lambda: UMBC(DIM, 8, 4, heads=2), lambda: MaxPool(DIM, nn.Linear(DIM, 4))])
@pytest.mark.parametrize("grad", [True, False])
def test_tangents_of_items_are_propagated_or_rejected(seeded, make, grad):
    with seeded(0):
        encoder = make().double().eval()
    items = random_sets([8]).values
    with torch.set_grad_enabled(grad), forward_ad.dual_level():
        dual = forward_ad.make_dual(items, torch.ones_like(items))
        expected = forward_ad.unpack_dual(encoder(Sets.from_list([dual]))).tangent
        actual = forward_ad.unpack_dual(stream(encoder, dual, gradient="full", chunk_size=3)).tangent
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
        for gradient in ("exact", "sample"):
            with pytest.raises(OptionError, match="only differentiated with gradient='full'"):
                stream(encoder, dual, gradient=gradient, chunk_size=3)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("gradient", ["exact", "sample"])
def test_transforms_and_tangents_of_parameters_are_rejected(seeded, gradient):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).double().eval()
    items, rejected = random_sets([8]).values, pytest.raises(OptionError, match="use gradient='full' for forward mode")
    with rejected:
        torch.func.grad(lambda x: stream(encoder, x, gradient=gradient).sum())(items)
    name, weight = next(iter(encoder.named_parameters()))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weight.detach(), torch.ones_like(weight))
        with rejected:
            torch.func.functional_call(Streamed(encoder, gradient), {f"encoder.{name}": dual}, (items,))


class Streamed(nn.Module):
    """Calls a stream, because parameters can be replaced only where a module is called."""

    encoder: Any

    def __init__(self, encoder: nn.Module, gradient: str) -> None:
        super().__init__()
        self.encoder, self.gradient = encoder, gradient

    def forward(self, items: Tensor) -> Tensor:
        return stream(self.encoder, items, gradient=self.gradient)


def test_an_exhausted_generator_loses_no_chunk():
    """Even inside a function that returns a new object at every call."""
    for make in (lambda it: (c for c in it), lambda it: map(torch.as_tensor, it)):
        rest = iter([torch.ones(4, 1)] * 3)
        assert stream(DeepSets(1, nn.Identity()).eval(), lambda rest=rest, make=make: make(rest)).item() == 12.0


def test_an_exhausted_generator_is_detected_in_the_second_pass(seeded):
    with seeded(0):
        encoder = DeepSets(1, nn.Linear(1, 1)).eval()
        other = DSMIL(1, nn.Linear(1, 1)).eval()
    rest = iter([torch.ones(4, 1)] * 3)
    code = stream(encoder, lambda: (c for c in rest))
    with pytest.raises(DataError, match="other chunks in a later pass"):
        code.sum().backward()
    rest = iter([torch.ones(4, 1)] * 3)
    with torch.no_grad(), pytest.raises(DataError, match="other chunks in a later pass"):
        stream(other, lambda: (c for c in rest))


def encoder_with_dropout(seeded: Any) -> UMBC:
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, phi=nn.Sequential(nn.Linear(DIM, 16), nn.Dropout(0.5))).double().eval()
    encoder.phi.train()
    return encoder


def test_dropout_of_a_single_training_submodule_is_drawn_again_by_every_stream(seeded):
    encoder = encoder_with_dropout(seeded)
    with seeded(1), torch.no_grad():
        first, second = (stream(encoder, random_sets([8]), chunk_size=4) for _ in range(2))
    assert not torch.allclose(first, second)


def assert_samples_are_unbiased(encoder: Any, seeded: Any) -> None:
    """Compare the mean over all orders of the chunks with the exact gradient, for the same dropout masks."""
    chunks = split_sets(random_sets([6, 7]), CUTS)
    with seeded(1):
        exact = gradients(encoder, stream(encoder, chunks))
    total = [torch.zeros_like(g) for g in exact]
    for order in itertools.permutations(range(3)):
        with seeded(1):
            code = stream(encoder, chunks, gradient="sample", generator=generator_drawing([order]))
            total = [t + g / 6 for t, g in zip(total, gradients(encoder, code), strict=True)]
    assert_close(total, exact, 1e-10)


def test_dropout_of_a_single_training_submodule_leaves_samples_unbiased(seeded):
    assert_samples_are_unbiased(encoder_with_dropout(seeded), seeded)


class AlwaysDropout(nn.Module):
    """Dropout in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, 16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.layer(x), 0.5, training=True)


def test_a_phi_that_draws_in_evaluation_mode_draws_again_in_every_stream(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, phi=AlwaysDropout()).double().eval()
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            with seeded(1):
                first, second = (stream(encoder, random_sets([8]), chunk_size=4) for _ in range(2))
            with seeded(1):
                repeated = stream(encoder, random_sets([8]), chunk_size=4)
        assert not torch.allclose(first, second) and torch.equal(first, repeated)
    assert_samples_are_unbiased(encoder, seeded)


@pytest.mark.parametrize("gradient", ["exact", "sample"])
def test_the_second_pass_has_the_training_modes_of_the_first(seeded, gradient):
    encoder, results = encoder_with_dropout(seeded), []
    for change in (False, True):
        encoder.train()
        with seeded(1):
            generator = torch.Generator().manual_seed(0)
            code = stream(encoder, random_sets([9]), chunk_size=3, gradient=gradient, generator=generator)
        encoder.train(not change)
        results.append(gradients(encoder, code))
        assert encoder.phi.training == (not change)
    assert_close(results[0], results[1], 0)


MIXED: dict[str, Callable[[], Any]] = {
    "umbc": lambda: UMBC(DIM, 8, 4, heads=2),
    "umbc, deep": lambda: DeepUMBC(DIM, 8, 4, passes=2),
    "sse": lambda: SSE(DIM, 8, 4),
    "ds-mil": lambda: DSMIL(DIM, nn.Linear(DIM, 8)),
    "em": lambda: DiffEM(DIM, nn.Linear(DIM, 4)),
    "max": lambda: MaxPool(DIM, nn.Linear(DIM, 8)),
}


@pytest.mark.parametrize("name", MIXED)
def test_the_second_pass_has_the_precision_of_the_first(seeded, name):
    with seeded(0):
        encoder = MIXED[name]().eval()
    sets, results = random_sets([40, 9], dtype=torch.float32), []
    for gradient in ("exact", "full"):
        with torch.autocast("cpu", torch.bfloat16):
            code = stream(encoder, sets, gradient=gradient, chunk_size=8)
        results.append(torch.cat([g.flatten() for g in gradients(encoder, code.float())]))
    exact, full = results
    assert full.norm() > 0
    assert (exact - full).norm() < 0.05 * full.norm()


def test_sums_are_float32_in_mixed_precision(seeded):
    with seeded(0):
        encoder = SSE(DIM, 8, 4).eval()
    # With several items, because einsum uses the precision of autocast only for those.
    chunk = Sets.from_list([torch.ones(8, DIM)])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        single = encoder.update(encoder.begin(), chunk)
        state = encoder.begin()
        for _ in range(600):
            state = encoder.update(state, chunk)
    assert state.sums[0].dtype == torch.float32
    torch.testing.assert_close(state.sums[0], 600 * single.sums[0], rtol=1e-4, atol=1e-4)


def test_gradients_of_many_chunks_are_summed_in_float32(seeded):
    with seeded(0):
        encoder: Any = DeepSets(1, nn.Linear(1, 1, dtype=torch.bfloat16)).eval()
    with torch.no_grad():
        encoder.phi.module.weight.fill_(1.0)
    stream(encoder, torch.ones(1000, 1), chunk_size=1).sum().backward()
    assert encoder.phi.module.weight.grad.item() == 1000.0


def batch_norm(where: str, tracked: bool = True) -> Any:
    norm = nn.BatchNorm1d(4, track_running_stats=tracked)
    return (
        DeepSets(DIM, nn.Sequential(nn.Linear(DIM, 4), norm))
        if where == "phi"
        else DeepSets(DIM, nn.Linear(DIM, 4), head=norm)
    )


def test_batch_normalisation_is_allowed_in_the_head_only(seeded):
    with seeded(0):
        inside, outside, pool = batch_norm("phi"), batch_norm("head"), MaxPool(DIM, batch_norm("phi").phi.module)
    sets = random_sets([5, 7], dtype=torch.float32)
    with seeded(1):
        torch.testing.assert_close(stream(outside, sets, chunk_size=2), outside(sets), rtol=1e-4, atol=1e-4)
    for encoder in (inside, pool):
        state = encoder.eval().begin(2)
        encoder.train()
        for gradient in ("full", "exact", "sample"):
            with pytest.raises(OptionError, match="depend on the partition"):
                stream(encoder, sets, gradient=gradient)
        with pytest.raises(OptionError, match="depend on the partition"):
            encoder.begin(2)
        with pytest.raises(OptionError, match="depend on the partition"):
            encoder.update(state, sets)


@pytest.mark.parametrize("gradient", ["full", "exact", "sample"])
@pytest.mark.parametrize("name", MIXED)
def test_an_empty_batch_has_no_codes(seeded, name, gradient):
    with seeded(0):
        encoder = MIXED[name]().eval()
    code = stream(encoder, Sets.from_lengths(torch.zeros(0, DIM), []), gradient=gradient)
    assert len(code) == 0 and code.shape == encoder(Sets.from_lengths(torch.zeros(0, DIM), [])).shape
    assert not any(g.any() for g in gradients(encoder, code))


class Scaling(nn.Module):
    """Reads items times a buffer, through a layer that may be frozen, and has an unused buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("unused", torch.zeros(()))
        self.first, self.layer = nn.Linear(DIM, DIM), nn.Linear(DIM, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x * self.scale))


SCALED: dict[str, Callable[[], Any]] = {
    "umbc": lambda: UMBC(DIM, 8, 4, heads=2, phi=Scaling()),
    "umbc, deep": lambda: DeepUMBC(DIM, 8, 4, passes=2, phi=Scaling()),
    "deep sets": lambda: DeepSets(DIM, Scaling(), head=nn.BatchNorm1d(4)),
    "sse": lambda: SSE(DIM, 8, 4, phi=Scaling()),
    "ds-mil": lambda: DSMIL(DIM, Scaling()),
    "em": lambda: DiffEM(DIM, Scaling()),
}
CHANGES: dict[str, Callable[[Scaling], Any]] = {
    "in place": lambda phi: phi.scale.mul_(3),
    "replaced": lambda phi: setattr(phi, "scale", 3 * phi.scale),
    "frozen": lambda phi: phi.first.weight.mul_(3),
}


def make_scaled(seeded: Any, name: str) -> Any:
    with seeded(0):
        encoder = SCALED[name]().double().eval()
    encoder.phi.module.first.requires_grad_(False)
    return encoder


def trained_gradients(encoder: nn.Module, code: Tensor) -> list[Tensor | None]:
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    return list(torch.autograd.grad(code.sin().sum(), parameters, allow_unused=True))


@pytest.mark.parametrize("gradient", ["exact", "sample"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SCALED)
def test_an_encoder_that_changed_before_the_backward_pass_is_detected(seeded, name, change, gradient):
    encoder = make_scaled(seeded, name)
    code = stream(
        encoder, split_sets(random_sets([6, 7]), CUTS), gradient=gradient, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        CHANGES[change](encoder.phi.module)
    with pytest.raises((OptionError, RuntimeError), match=r"other values for the same items|modified by an inplace"):
        trained_gradients(encoder, code)


@pytest.mark.parametrize("name", SCALED)
def test_samples_compare_sums_only_if_the_encoder_was_written_to(seeded, name, monkeypatch):
    """Then all chunks are read again; a change without effect passes."""
    encoder, compared, results = make_scaled(seeded, name), [], []
    check = streaming._check_same_sums

    def record(*sums: Tensor) -> None:
        compared.append(1)
        check(*sums)

    monkeypatch.setattr(streaming, "_check_same_sums", record)
    for write in (False, True):
        code = stream(
            encoder,
            split_sets(random_sets([6, 7]), CUTS),
            gradient="sample",
            generator=torch.Generator().manual_seed(0),
        )
        if write:
            encoder.phi.module.unused.add_(1)
        results.append(trained_gradients(encoder, code))
        assert bool(compared) == write
    assert_close(results[0], results[1], 0)


def test_running_statistics_of_the_head_do_not_count_as_a_change(seeded, monkeypatch):
    """They are updated after the items were read."""
    with seeded(0):
        encoder = batch_norm("head").double()
    monkeypatch.setattr(streaming, "_check_same_sums", lambda *_: pytest.fail("sums were compared"))
    with seeded(1):
        code = stream(encoder, split_sets(random_sets([6, 7]), CUTS), gradient="sample")
        assert int(encoder.head.num_batches_tracked) == 1
        assert all(bool(g.isfinite().all()) for g in gradients(encoder, code))
