"""Several members: their average, independent training, and the equality of stacked and separate training."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from setgrad.encoders.attention import InducedAttention
from setgrad.errors import OptionError
from setgrad.functions import FreshNoise, ItemNoise
from setgrad.inference import AllItems, draw_partial_subsets
from setgrad.selector import SelectorOptions, SizeRange, SubsetSelector
from setgrad.selector._batched_inference import infer_logits
from setgrad.selector._defaults import default_members
from setgrad.selector._stacked_weights import StackedWeights, can_be_stacked
from setgrad.selector._tables import CONDITIONAL, PARTIAL_LOSSES
from setgrad.selector._trainable_weights import Batch, SeparateWeights, with_prefix
from tests.selector.conftest import FITTED, TINY, make_choices

# Exact in float32, in which stacked weights keep the rate.
RATE = 2.0**-7
STEP: dict[str, Any] = {"weight_decay": 0.1, "clip": 0.05}
KINDS = {name: FITTED[name] for name in ("unrolled", "one-step", "direct", "paper", "gaussian", "horse")}
KINDS["induced"] = {"attention": "induced"}
for _function in ("deepset", "inset", "horse"):
    KINDS[f"conditional, {_function}"] = {"method": "conditional", "function": _function}
KINDS["conditional, cross-entropy"] = {"method": "conditional", "loss": "all", "pairs": False, "phi": "mlp"}
STEPS = 4
BOTH = pytest.mark.parametrize("kind", [SeparateWeights, StackedWeights])


def fit(choices, **options):
    return SubsetSelector(**{**TINY, "max_epochs": 1, **options}).fit(*choices)


def fitted_model(choices, **options):
    return fit(choices, members=3, **options).model_.double()


def train(weights, choices, noise, steps=STEPS, rate=RATE, decay=0.5):
    """Take steps as the trainer does: at partial subsets if the method is conditional."""
    sets, options = choices.sets.with_values(choices.sets.values.double()), weights.model.config.options
    results = []
    for _ in range(steps):
        batch = Batch(sets, choices.subsets, None, None, AllItems())
        if options.method == CONDITIONAL:
            partial = draw_partial_subsets(choices.subsets, options.samples, noise)
            batch = Batch(sets, choices.subsets, None, None, PARTIAL_LOSSES[options.loss], partial)
        results.append(weights.step(batch, noise, rate, decay))
    return torch.stack(results)


def current(weights):
    """Return the current weights under the names of the model."""
    return {name: value.clone() for name, value in with_prefix(weights.state(), "model.").items()}


@pytest.mark.parametrize("method", ["unrolled", "conditional"])
def test_logits_and_function_are_means_over_the_members(choices, method):
    selector, sets = fit(choices, members=3, method=method), choices.sets
    model = selector._precise()
    items = model.prepare(sets)
    masks = torch.rand(4, sets.layout.total, generator=torch.Generator().manual_seed(0)) < 0.5
    logits, values = [], []
    for member in model.each():
        bound = member.bind(items)
        logits.append(member.infer(model.config, bound, ItemNoise(sets), samples=20).logits)
        values.append(bound.value(masks))
    result = selector.decision_function(sets).values
    torch.testing.assert_close(result.double(), torch.stack(logits).mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.bind(sets).value(masks), torch.stack(values).mean(0))
    assert torch.stack(logits).std(0).min() > 0


@pytest.mark.parametrize("constraint", [None, SizeRange(1, 6)], ids=str)
@pytest.mark.parametrize("method", ["unrolled", "conditional"])
def test_the_first_member_is_trained_as_if_it_were_alone(choices, constraint, method):
    options = {**TINY, "max_epochs": 1, "batch_size": 8, "method": method}
    alone, first = (
        SubsetSelector(**options, members=count).fit(*choices, constraint=constraint).model_.each()[0].state_dict()
        for count in (1, 3)
    )
    assert all(torch.equal(alone[name], value) for name, value in first.items())


@pytest.fixture(scope="module", params=KINDS)
def separately(request, choices):
    """A fitted model, and the weights and losses of separate training from it."""
    model = fitted_model(choices, **KINDS[request.param])
    weights = SeparateWeights(copy.deepcopy(model), **STEP)
    return model, weights, train(weights, choices, FreshNoise(1))


@pytest.mark.parametrize("limit", [0, 2**19], ids=["in turns", "together"])
def test_stacked_and_separate_training_are_equal(choices, separately, limit, monkeypatch):
    monkeypatch.setattr("setgrad.selector._stacked_weights._MAX_STACKED_ITEMS", limit)
    model, separate, losses = separately
    assert can_be_stacked(model)
    stacked = StackedWeights(copy.deepcopy(model), **STEP)
    torch.testing.assert_close(losses, train(stacked, choices, FreshNoise(1)), rtol=1e-9, atol=1e-9)
    one, two = separate.state(), stacked.state()
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(separate.infer(choices.sets), stacked.infer(choices.sets), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kinds", [(SeparateWeights, StackedWeights), (StackedWeights, SeparateWeights)], ids=str)
@pytest.mark.parametrize("method", ["unrolled", "conditional"])
def test_a_run_can_be_resumed_with_the_other_weights(choices, kinds, method):
    model = fitted_model(choices, method=method)
    first, whole = (kinds[0](copy.deepcopy(model), **STEP) for _ in range(2))
    noise, same = FreshNoise(1), FreshNoise(1)
    train(first, choices, noise)
    rest = kinds[1](copy.deepcopy(model), **STEP)
    rest.restore({name: value.clone() for name, value in first.state().items()})
    train(rest, choices, noise)
    train(whole, choices, same, 2 * STEPS)
    for name, value in whole.average().items():
        torch.testing.assert_close(rest.average()[name], value, rtol=1e-6, atol=1e-9)


@BOTH
def test_rate_and_decay_are_those_of_the_step(choices, kind):
    weights = kind(fitted_model(choices), **STEP)
    start = current(weights)
    train(weights, choices, FreshNoise(1), 1, rate=0.0, decay=0.25)
    assert all(torch.equal(value, start[name]) for name, value in current(weights).items())
    train(weights, choices, FreshNoise(1), 1, decay=0.25)
    now = current(weights)
    changing = {name: value for name, value in weights.average().items() if value.is_floating_point()}
    for name, value in changing.items():
        torch.testing.assert_close(value, torch.lerp(start[name], now[name], 0.75))


@pytest.mark.parametrize("limit", [0, 200, 2**19], ids=["in turns", "in groups", "together"])
@BOTH
def test_infer_uses_the_moving_average(choices, kind, limit, monkeypatch):
    monkeypatch.setattr("setgrad.selector._stacked_weights._MAX_STACKED_ITEMS", limit)
    weights = kind(fitted_model(choices), **STEP)
    train(weights, choices, FreshNoise(1))
    before, mean = current(weights), weights.average()
    other = copy.deepcopy(weights.model)
    expected = []
    for state in (mean, before):
        other.load_state_dict(state)
        expected.append(infer_logits(other, choices.sets, samples=other.config.options.samples))
    logits = weights.infer(choices.sets)
    torch.testing.assert_close(logits, expected[0], rtol=1e-9, atol=1e-9)
    assert (logits - expected[1]).abs().max() > 1e-6 and not logits.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in current(weights).items())


@pytest.mark.parametrize("limit", [0, 2**19], ids=["in turns", "together"])
def test_checkpointed_chunks_use_the_weights_of_the_member(choices, limit, monkeypatch):
    monkeypatch.setattr("setgrad.selector._stacked_weights._MAX_STACKED_ITEMS", limit)
    model = fitted_model(choices, attention="induced")
    for module in model.modules():
        if isinstance(module, InducedAttention):
            module.chunk = 2
    separate, stacked = SeparateWeights(copy.deepcopy(model), **STEP), StackedWeights(model, **STEP)
    a, b = (train(weights, choices, FreshNoise(1)) for weights in (separate, stacked))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_set_converged_if_it_did_for_all_members(choices):
    model = fit(choices, members=2, method="implicit").model_.eval()
    for parameter in model.each()[1].function.rho.parameters():
        parameter.data *= 20
    model.config = model.config.with_options(steps=2)
    noise = ItemNoise(choices.sets)
    with torch.no_grad():
        bound = model.bind(choices.sets)
        one, two = (
            member.infer(model.config, part, noise, samples=8).converged
            for member, part in zip(model.each(), bound.parts, strict=True)
        )
        result = model.infer(bound, noise, samples=8).converged
    assert bool((one & ~two).any())
    assert torch.equal(result, one & two)


def test_members_have_their_own_phi(choices, seeded):
    with seeded(0):
        phi = torch.nn.Linear(2, 4)
    one, two = (member.function.phi.module.weight for member in fit(choices, members=2, phi=phi).model_.each())
    assert not torch.equal(one, two)


def test_weights_are_not_stacked_under_a_constraint_or_with_buffers(choices, monkeypatch):
    model = fit(choices, members=2).model_
    assert can_be_stacked(model)
    model.members[0].register_buffer("count", torch.zeros(1))
    assert not can_be_stacked(model)
    monkeypatch.setattr("setgrad.selector._trainer.is_stacking_faster", lambda *arguments: True)
    monkeypatch.setattr("setgrad.selector._trainer.StackedWeights", None)
    SubsetSelector(**{**TINY, "members": 2}).fit(*choices, constraint=SizeRange(1, 6))


def test_restore_discards_captured_graphs(choices):
    weights = StackedWeights(fitted_model(choices), **STEP)
    before = weights.replay
    weights.restore({name: value.clone() for name, value in weights.state().items()})
    assert weights.replay is not before


DEFAULT_MEMBERS = [
    (1024, "cuda", {}, 8),
    (1024, "cuda", {"method": "conditional"}, 8),
    (1025, "cuda", {}, 1),
    (5, "cpu", {}, 1),
    (5, "cuda", {"method": "copula"}, 1),
    (5, "cuda", {"phi": "pair"}, 1),
    (5, "cuda", {"phi": torch.nn.Identity()}, 1),
]


@pytest.mark.parametrize(("longest", "device", "options", "count"), DEFAULT_MEMBERS, ids=str)
def test_default_number_of_members(longest, device, options, count):
    sets: Any = SimpleNamespace(layout=SimpleNamespace(longest=longest), device=torch.device(device))
    assert default_members(SelectorOptions(**options), sets) == count


def test_a_resumed_run_and_a_start_keep_their_members(choices, tmp_path, monkeypatch):
    options = {**TINY, "checkpoint": tmp_path / "state"}
    monkeypatch.setattr("setgrad.selector._defaults.default_members", lambda *arguments: 3)
    first = SubsetSelector(**{**options, "max_epochs": 1}).fit(*choices)
    monkeypatch.undo()
    again = SubsetSelector(**{**options, "max_epochs": 2}).fit(*choices)
    after = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices, start=first)
    assert [len(selector.model_.members) for selector in (first, again, after)] == [3, 3, 3]


def test_modules_of_the_user_and_other_methods_are_not_stacked(choices, seeded):
    with seeded(0):
        phi = torch.nn.Linear(2, 4)
    own = fit(choices, members=2, phi=phi).model_
    assert not can_be_stacked(own)
    assert not can_be_stacked(fitted_model(choices, method="implicit"))
    assert not can_be_stacked(fitted_model(choices, method="amortised"))


def test_a_start_with_another_number_of_members_raises():
    data = make_choices(8)
    with pytest.raises(OptionError, match="members is 2 there, 3 here"):
        SubsetSelector(**{**TINY, "members": 3}).fit(*data, start=fit(data, members=2))
