"""Set encoders against plain definitions in NumPy, and properties of single encoders."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor, nn

from setgrad.encoders import (
    ABMIL,
    DSMIL,
    SSE,
    UMBC,
    ContextItems,
    DeepUMBC,
    DiffEM,
    FSPool,
    MaxPool,
    OnSlots,
    SetTransformer,
    TransformerHead,
    hierarchical_sse,
)
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, assert_close, gradients, random_sets, split_sets


def linear(module: nn.Linear, x: np.ndarray) -> np.ndarray:
    out = x @ module.weight.detach().numpy().T
    return out if module.bias is None else out + module.bias.detach().numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def plain_sse(encoder: SSE, x: np.ndarray) -> np.ndarray:
    slots = encoder.queries().detach().numpy()
    keys, values = np.split(linear(encoder.read_items, x), 2, 1)
    out = np.zeros(slots.shape)
    for key, value in zip(keys, values, strict=True):
        for head in range(encoder.heads):
            part = slice(head * (8 // encoder.heads), (head + 1) * (8 // encoder.heads))
            share = 1 / (1 + np.exp(-(slots[:, part] @ key[part]) / math.sqrt(8 // encoder.heads)))
            out[:, part] += np.outer(share / share.sum(), value[part])
    return out


def plain_norm(norm: nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scale = norm.weight.detach().numpy() / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    return centred * scale + norm.bias.detach().numpy()


def plain_attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, heads: int) -> np.ndarray:
    result, dim = np.zeros(queries.shape), queries.shape[1] // heads
    for row, query in enumerate(queries if len(keys) else []):
        for head in range(heads):
            part = slice(head * dim, (head + 1) * dim)
            result[row, part] = softmax(keys[:, part] @ query[part] / math.sqrt(dim)) @ values[:, part]
    return result


def plain_deep_umbc(encoder: Any, x: np.ndarray) -> np.ndarray:
    """Without self-attention among the slots, which is tested elsewhere."""

    def normed(module: Any, x: np.ndarray) -> np.ndarray:
        return linear(module[1], plain_norm(module[0], x))

    items, slots = linear(encoder.embed, x), encoder.slots.detach().numpy()
    for number, gather in enumerate(encoder.gather):
        if number:
            tell = encoder.tell[number - 1]
            keys, values = np.split(normed(tell.read_slots, slots), 2, 1)
            answers = plain_attention(normed(tell.ask, items), keys, values, 2)
            items = items + linear(tell.out, answers)
            norm, first, _, second = tell.feed.layers
            inside = linear(first, plain_norm(norm, items))
            items = items + linear(second, inside * (1 + erf(inside / math.sqrt(2))) / 2)
        keys, values = np.split(normed(gather.read_items, items), 2, 1)
        answers = plain_attention(normed(gather.ask, slots), keys, values, 2)
        slots = slots + linear(gather.out, answers)
    return plain_norm(encoder.norm, slots)


def plain_fspool(pool: FSPool, x: np.ndarray) -> np.ndarray:
    knots = pool.knots.detach().numpy()
    places = np.linspace(0, 1, len(knots))
    ranks = [j / max(len(x) - 1, 1) for j in range(len(x))]
    return np.array([np.interp(ranks, places, knots[:, d]) @ np.sort(x[:, d])[::-1] for d in range(x.shape[1])])


def plain_em(encoder: DiffEM, x: np.ndarray) -> np.ndarray:
    m = encoder.means.detach().numpy()
    v = np.log1p(np.exp(encoder.spread.detach().numpy()))
    rows, k, tau = [], encoder.components, encoder.strength
    for mixture in range(encoder.mixtures):
        m0, v0 = m[mixture * k : (mixture + 1) * k], v[mixture * k : (mixture + 1) * k]
        pi, mu, var = np.full(k, 1 / k), m0, v0
        for _ in range(encoder.steps):
            density = np.exp(-((x[:, None] - mu) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)
            joint = pi * density.prod(-1)
            q = joint / joint.sum(1, keepdims=True)
            weight = q.sum(0) + tau
            mu = (q.T @ x + tau * m0) / weight[:, None]
            # As a mean of squared distances, all of which are positive.
            inside = np.einsum("nk,nkd->kd", q, (x[:, None] - mu) ** 2)
            var = (inside + tau * (v0 + (m0 - mu) ** 2)) / weight[:, None]
            pi = weight / weight.sum()
        rows.append(np.concatenate([pi[:, None], mu, var], 1))
    return np.concatenate(rows)


def plain_abmil(encoder: ABMIL, x: np.ndarray) -> np.ndarray:
    gate = 1 / (1 + np.exp(-linear(encoder.gate, x)))
    scores = linear(encoder.weigh, np.tanh(linear(encoder.look, x)) * gate)
    means = [softmax(scores[:, b]) @ x if len(x) else np.zeros(DIM) for b in range(scores.shape[1])]
    return np.concatenate(means)


def plain_dsmil(encoder: DSMIL, x: np.ndarray) -> np.ndarray:
    scores, keys, values = (linear(m, x) for m in (encoder.score, encoder.ask, encoder.value))
    best, means = np.zeros(scores.shape[1]), np.zeros((scores.shape[1], DIM))
    for c in range(scores.shape[1] if len(x) else 0):
        critical = scores[:, c].argmax()
        best[c] = scores[critical, c]
        means[c] = softmax(keys @ keys[critical] / math.sqrt(keys.shape[1])) @ values
    return (best + linear(encoder.score_bag, means.reshape(1, -1))[0]) / 2


PLAIN: dict[str, tuple[Callable[[], Any], Callable[[Any, np.ndarray], np.ndarray]]] = {
    "sse": (lambda: SSE(DIM, 8, 4, heads=2), plain_sse),
    "sse, random": (lambda: SSE(DIM, 8, 4, random=True), plain_sse),
    "umbc, deep": (lambda: DeepUMBC(DIM, 8, 4, passes=3, layers=0, heads=2), plain_deep_umbc),
    "fspool": (lambda: FSPool(DIM, pieces=4), plain_fspool),
    "fspool, one piece": (lambda: FSPool(DIM, pieces=1), plain_fspool),
    "em": (lambda: DiffEM(DIM, components=3, mixtures=2, strength=0.5), plain_em),
    "ab-mil": (lambda: ABMIL(DIM, hidden=4, branches=2), plain_abmil),
    "ds-mil": (lambda: DSMIL(DIM, classes=2, hidden=4), plain_dsmil),
}


@pytest.mark.parametrize("name", PLAIN)
def test_codes_are_those_of_a_plain_definition(name, seeded):
    make, definition = PLAIN[name]
    with seeded(2):
        encoder = make().double().eval()
    sets = random_sets()
    for code, x in zip(encoder(sets), sets.to_list(), strict=True):
        np.testing.assert_allclose(code.detach().numpy(), definition(encoder, x.numpy()), rtol=1e-10, atol=1e-12)


# ---- properties of single encoders


def test_codes_of_sse_add_up(seeded):
    """Without a head SSE is a plain sum over items, and the shares of an item sum to 1."""
    with seeded(0):
        encoder = SSE(DIM, 8, 4, random=True).double().eval()
    sets = random_sets([5, 3])
    both = encoder(Sets.from_list([sets.values]))[0]
    assert_close(encoder(sets).sum(0), both)
    values = encoder.read_items(sets.values)[:, 8:]
    assert_close(both.sum(0), values.sum(0))
    assert not torch.equal(encoder.queries()[0], encoder.queries()[1])
    drawn = [encoder.train().queries(torch.Generator().manual_seed(n)) for n in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_codes_of_a_hierarchy_do_not_add_up(seeded):
    with seeded(0):
        encoder = hierarchical_sse(DIM, [(6, 8), (2, 4)]).double().eval()
        plain = hierarchical_sse(DIM, [(6, 8)]).double().eval()
    sets = random_sets([5, 3])
    whole = Sets.from_list([sets.values])
    assert_close(plain(sets).sum(0), plain(whole)[0])
    assert not torch.allclose(encoder(sets).sum(0), encoder(whole)[0], atol=1e-3)
    with pytest.raises(OptionError, match="at least one level"):
        hierarchical_sse(DIM, [])


def test_a_transformer_head_ignores_padding(seeded):
    with seeded(0):
        head = TransformerHead(8, outputs=2).double().eval()
    x = torch.linspace(-1, 1, 3 * 4 * 8, dtype=torch.float64).reshape(3, 4, 8).sin()
    mask = torch.tensor([[True, True, False, False], [False] * 4, [True] * 4])
    padded = torch.where(mask[..., None], x, torch.nan).requires_grad_()
    code = head(padded, mask)
    assert_close(code[0], head(x[:1, :2])[0])
    assert_close(code[1], head(x[:1, :0])[0])
    (gradient,) = torch.autograd.grad(code.sum(), padded)
    assert gradient.isfinite().all() and not gradient[~mask].any()


def test_a_mixture_is_equivariant_to_translation(seeded):
    """Far from 0, in float32, where squares of coordinates would lose all digits."""
    with seeded(0):
        encoder = DiffEM(DIM, components=2).eval()
    sets = random_sets([50], dtype=torch.float32)
    code = encoder(sets)
    with torch.no_grad():
        encoder.means.add_(1e4)
    moved = encoder(sets.with_values(sets.values + 1e4))
    assert_close(moved[..., 0], code[..., 0], 5e-3)
    assert_close(moved[..., 1 + DIM :], code[..., 1 + DIM :], 5e-3)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_a_shift_of_all_scores_does_not_change_attention(seeded, shift):
    with seeded(0):
        encoder = ABMIL(DIM, hidden=4, gated=False).double().eval()
    sets = random_sets()
    plain = encoder(sets)
    with torch.no_grad():
        # A hidden feature that is 1 for every item, with the shift added to its weight.
        encoder.look.weight[0] = 0
        encoder.look.bias[0] = 50.0
        before = encoder(sets)
        encoder.weigh.weight[0, 0] += shift
    assert_close(encoder.stream(sets, chunk_size=3), before, 1e-9)
    assert not torch.allclose(before, plain)


def test_attention_sums_to_one(seeded):
    with seeded(0):
        encoder = ABMIL(DIM, hidden=4, branches=2).double().eval()
    sets = random_sets()
    shares = [part.sum(0).tolist() for part in sets.with_values(encoder.attention(sets)).to_list()]
    np.testing.assert_allclose(shares, [[1, 1], [0, 0], [1, 1], [1, 1]], rtol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=str)
def test_umbc_permutes_with_its_slots_and_contains_the_mean(seeded, activation):
    """Theorem 3.6 of Willette et al., and the first step of the proof of theorem 3.7: slots of 0 give the mean."""
    with seeded(0):
        encoder = UMBC(DIM, dim=8, slots=5, heads=2, activation=activation).double().eval()
    sets, order = random_sets(), torch.tensor([3, 0, 4, 1, 2])
    code = encoder(sets)
    with torch.no_grad():
        encoder.slots.copy_(encoder.slots[order])
        assert_close(encoder(sets), code[:, order], 1e-12)
        for parameter in encoder.ask.parameters():
            parameter.zero_()
        values = encoder.read_items(encoder.features(sets))[:, 8:]
        means = torch.stack([part.mean(0) if len(part) else part.sum(0) for part in sets.with_values(values).to_list()])
        assert_close(encoder(sets), encoder.norm(means)[:, None].expand(-1, 5, -1), 1e-12)


def test_max_pool_runs_only_the_top_items_again(seeded):
    sizes: list[int] = []

    class CountingLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(DIM, 5)

        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                sizes.append(len(x))
            return self.layer(x)

    with seeded(0):
        encoder: Any = MaxPool(DIM, CountingLinear()).double().eval()
    sets = random_sets([400, 300])
    code = encoder.stream(sets, chunk_size=50)
    assert len(sizes) == 1 and sizes[0] <= 2 * 5
    assert_close(gradients(encoder, code), gradients(encoder, encoder(sets)))
    with torch.no_grad():
        top_items = [encoder.phi.module(x).argmax(0).tolist() for x in sets.to_list()]
    state = encoder.begin(2)
    for chunk in split_sets(sets, [[100, 300], [300, 0]]):
        state = encoder.update(state, chunk)
    assert state.number.tolist() == top_items and state.length.tolist() == [400, 300]


def test_max_pool_reads_tokens_and_rejects_dropout(seeded):
    class TokenEmbedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x.long()).flatten(1)

    with seeded(0):
        encoder = MaxPool(2, TokenEmbedding()).eval()
        random_encoder = MaxPool(DIM, nn.Sequential(nn.Linear(DIM, 8), nn.Dropout(0.5))).train()
    tokens = Sets.from_lengths(torch.arange(10).reshape(5, 2), [3, 2])
    state = encoder.begin(2).merge(encoder.update(encoder.begin(2), tokens)).merge(encoder.begin(2))
    assert state.items.dtype == torch.int64
    assert_close(encoder.stream(tokens, chunk_size=1), encoder(tokens))
    with seeded(1), pytest.raises(OptionError, match="dropout"):
        random_encoder.stream(random_sets([40], dtype=torch.float32))
    with pytest.raises(OptionError, match="unknown gradient"):
        encoder.stream(tokens, gradient="magic")
    with pytest.raises(DataError, match="gave no chunk"):
        encoder.stream([])
    with pytest.raises(DataError, match="NaN"):
        encoder.stream(tokens.with_values(tokens.values / 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SSE(DIM, 8, heads=3), "multiple of heads"),
        (lambda: SetTransformer(DIM, 8, heads=3), "multiple of heads"),
        (lambda: DeepUMBC(DIM, 8, heads=3), "multiple of heads"),
        (lambda: DeepUMBC(DIM, 8, passes=0), "passes must be at least 1"),
        (lambda: DeepUMBC(DIM, 8, activation="magic"), "unknown activation"),
        (lambda: DeepUMBC(DIM, 8, phi=ContextItems(DIM, 8)), "phi must encode each item independently"),
        (lambda: FSPool(DIM, pieces=0), "at least one piece"),
        (lambda: DiffEM(DIM, steps=0), "at least 1"),
        (lambda: DiffEM(DIM, strength=0.0), "above 0"),
        (lambda: MaxPool(DIM, nn.Identity()).stream(torch.zeros(2, DIM), chunk_size=0), "chunk_size"),
    ],
)
def test_invalid_options_are_rejected(make, message, seeded):
    with seeded(0), pytest.raises(OptionError, match=message):
        make()


def test_only_slots_of_the_first_level_may_be_random(seeded):
    """The levels above are computed in `finish`, which must give one code for one state."""
    with seeded(0):
        encoder = hierarchical_sse(DIM, [(6, 8), (2, 4)], random=True).double().train()
        plain = UMBC(DIM, 8, 4, head=OnSlots(SSE(8, 4, 2))).double().train()
    sets = random_sets()
    for each in (encoder, plain):
        first, second = (
            each.update(each.begin(4, generator=torch.Generator().manual_seed(seed)), sets) for seed in (0, 1)
        )
        assert torch.equal(each.finish(first), each.finish(first))
        assert torch.equal(each.finish(first), each.finish(second)) == (each is plain)
    for make in (
        lambda: SSE(8, 4, 2, random=True),
        lambda: UMBC(8, 4, 2, random=True),
        lambda: SSE(8, 4, 2, head=nn.Sequential(SSE(4, 4, 2, random=True))),
    ):
        with seeded(0), pytest.raises(OptionError, match="not part of the state"):
            OnSlots(make())


def test_items_of_count_0_may_fill_a_whole_chunk_of_a_long_set(seeded):
    with seeded(0):
        encoder: Any = SetTransformer(DIM, 8, slots=3).double().eval()
    sets, counts = random_sets([5, 2]), torch.tensor([0, 0, 1, 3, 1, 2, 0])
    repeated = Sets.from_lengths(sets.values.repeat_interleave(counts, 0), [5, 2])
    whole = encoder(repeated)
    for block in encoder.attend.blocks:
        block.chunk = 2
    assert_close(encoder(sets, counts), whole)
    assert_close(gradients(encoder, encoder(sets, counts)), gradients(encoder, encoder(repeated)))
