"""Several members: what they are on average, that each learns alone, and that learning together changes nothing."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from setgrad.encoders.attention import InducedAttention
from setgrad.errors import OptionError
from setgrad.functions import FreshNoise, ItemNoise
from setgrad.inference import AllItems
from setgrad.selector import SizeRange, SubsetSelector
from setgrad.selector._fit import usual_members
from setgrad.selector._infer import infer_logits
from setgrad.selector._rows import RowWeights, can_be_rows
from setgrad.selector._weights import Batch, Descent, OwnWeights, part_of
from tests.selector.conftest import FITTED, TINY, make_choices

# A number that float32 has, because rows keep it on the device.
RATE = 2.0**-7
DESCENT = Descent(decay=0.1, clip=0.05)
KINDS = {name: FITTED[name] for name in ("unrolled", "one-step", "direct", "paper", "gaussian", "horse")}
KINDS["induced"] = {"attention": "induced"}
STEPS = 4
BOTH = pytest.mark.parametrize("kind", [OwnWeights, RowWeights])


def fit(choices, **options):
    return SubsetSelector(**{**TINY, "max_epochs": 1, **options}).fit(*choices)


def model_of(choices, **options):
    return fit(choices, members=3, **options).model_.double()


def train(weights, choices, noise, steps=STEPS, rate=RATE, keep=0.5):
    batch = Batch(choices.sets.with_values(choices.sets.values.double()), choices.subsets, None, None, AllItems())
    return torch.stack([weights.step(batch, noise, rate, keep) for _ in range(steps)])


def raw(weights):
    """The weights as they stand, under the names of the model."""
    return {name: value.clone() for name, value in part_of(weights.state(), "model.").items()}


def test_the_logits_and_the_function_are_the_means_over_the_members(choices):
    selector, sets = fit(choices, members=3), choices.sets
    model = selector._precise()
    items = model.standardised(sets)
    masks = torch.rand(4, sets.layout.total, generator=torch.Generator().manual_seed(0)) < 0.5
    logits, values = [], []
    for member in model.each():
        bound = member.function.bind(items)
        logits.append(member.infer(model.config, bound, ItemNoise(sets), samples=20).logits)
        values.append(bound.value(masks))
    found = selector.decision_function(sets).values
    torch.testing.assert_close(found.double(), torch.stack(logits).mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.bind(sets).value(masks), torch.stack(values).mean(0))
    assert torch.stack(logits).std(0).min() > 0


@pytest.mark.parametrize("constraint", [None, SizeRange(1, 6)], ids=str)
def test_a_member_learns_as_if_it_were_alone(choices, constraint):
    options = {**TINY, "max_epochs": 1, "batch_size": 8}
    alone, first = (
        SubsetSelector(**options, members=count).fit(*choices, constraint=constraint).model_.each()[0].state_dict()
        for count in (1, 3)
    )
    assert all(torch.equal(alone[name], value) for name, value in first.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0, 2**19], ids=["in turns", "together"])
def test_learning_together_is_learning_apart(choices, kind, limit, monkeypatch):
    monkeypatch.setattr("setgrad.selector._rows._TOGETHER", limit)
    model = model_of(choices, **KINDS[kind])
    assert can_be_rows(model)
    other = copy.deepcopy(model)
    apart, together = OwnWeights(model, DESCENT), RowWeights(other, DESCENT)
    a, b = train(apart, choices, FreshNoise(1)), train(together, choices, FreshNoise(1))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    one, two = apart.state(), together.state()
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(apart.infer(choices.sets), together.infer(choices.sets), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kinds", [(OwnWeights, RowWeights), (RowWeights, OwnWeights)], ids=str)
def test_a_run_goes_on_the_other_way(choices, kinds):
    model = model_of(choices)
    first, whole = (kinds[0](copy.deepcopy(model), DESCENT) for _ in range(2))
    noise, same = FreshNoise(1), FreshNoise(1)
    train(first, choices, noise)
    rest = kinds[1](copy.deepcopy(model), DESCENT)
    rest.restore({name: value.clone() for name, value in first.state().items()})
    train(rest, choices, noise)
    train(whole, choices, same, 2 * STEPS)
    for name, value in whole.average().items():
        torch.testing.assert_close(rest.average()[name], value, rtol=1e-6, atol=1e-9)


@BOTH
def test_rate_and_keep_are_those_of_the_step(choices, kind):
    weights = kind(model_of(choices), DESCENT)
    start = raw(weights)
    train(weights, choices, FreshNoise(1), 1, rate=0.0, keep=0.25)
    assert all(torch.equal(value, start[name]) for name, value in raw(weights).items())
    train(weights, choices, FreshNoise(1), 1, keep=0.25)
    now = raw(weights)
    for name, value in weights.average().items():
        torch.testing.assert_close(value, torch.lerp(start[name], now[name], 0.75))


@pytest.mark.parametrize("limit", [0, 200, 2**19], ids=["in turns", "some together", "together"])
@BOTH
def test_the_running_mean_is_what_is_asked(choices, kind, limit, monkeypatch):
    monkeypatch.setattr("setgrad.selector._rows._TOGETHER", limit)
    weights = kind(model_of(choices), DESCENT)
    train(weights, choices, FreshNoise(1))
    before, mean = raw(weights), weights.average()
    other = copy.deepcopy(weights.model)
    expected = []
    for state in (mean, before):
        other.load_state_dict(state)
        expected.append(infer_logits(other, choices.sets, samples=other.config.samples))
    logits = weights.infer(choices.sets)
    torch.testing.assert_close(logits, expected[0], rtol=1e-9, atol=1e-9)
    assert (logits - expected[1]).abs().max() > 1e-6 and not logits.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in raw(weights).items())


@pytest.mark.parametrize("limit", [0, 2**19], ids=["in turns", "together"])
def test_pieces_are_computed_again_with_the_weights_of_the_member(choices, limit, monkeypatch):
    monkeypatch.setattr("setgrad.selector._rows._TOGETHER", limit)
    model = model_of(choices, attention="induced")
    for module in model.modules():
        if isinstance(module, InducedAttention):
            module.chunk = 2
    apart, together = OwnWeights(copy.deepcopy(model), DESCENT), RowWeights(model, DESCENT)
    a, b = (train(weights, choices, FreshNoise(1)) for weights in (apart, together))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_set_is_settled_where_all_members_are(choices):
    model = fit(choices, members=2, method="implicit").model_.eval()
    for parameter in model.each()[1].function.rho.parameters():
        parameter.data *= 20
    model.config = replace(model.config, steps=2)
    noise = ItemNoise(choices.sets)
    with torch.no_grad():
        bound = model.bind(choices.sets)
        one, two = (
            member.infer(model.config, part, noise, samples=8).converged
            for member, part in zip(model.each(), bound.parts, strict=True)
        )
        found = model.infer(bound, noise, samples=8).settled
    assert bool((one & ~two).any())
    assert torch.equal(found, one & two)


def test_members_do_not_share_a_phi(choices, seeded):
    with seeded(0):
        phi = torch.nn.Linear(2, 4)
    one, two = (member.function.phi.module.weight for member in fit(choices, members=2, phi=phi).model_.each())
    assert not torch.equal(one, two)


def test_members_learn_apart_under_a_constraint_and_with_buffers(choices, monkeypatch):
    model = fit(choices, members=2).model_
    assert can_be_rows(model)
    model.members[0].register_buffer("count", torch.zeros(1))
    assert not can_be_rows(model)
    monkeypatch.setattr("setgrad.selector._train.together_pays", lambda *given: True)
    monkeypatch.setattr("setgrad.selector._train.RowWeights", None)
    SubsetSelector(**{**TINY, "members": 2}).fit(*choices, constraint=SizeRange(1, 6))


def test_recordings_do_not_outlive_a_restore(choices):
    weights = RowWeights(model_of(choices), DESCENT)
    before = weights.replay
    weights.restore({name: value.clone() for name, value in weights.state().items()})
    assert weights.replay is not before


USUAL = [
    (1024, "cuda", {}, 8),
    (1025, "cuda", {}, 1),
    (5, "cpu", {}, 1),
    (5, "cuda", {"method": "copula"}, 1),
    (5, "cuda", {"phi": "pair"}, 1),
    (5, "cuda", {"phi": torch.nn.Identity()}, 1),
]


@pytest.mark.parametrize(("longest", "device", "options", "count"), USUAL, ids=str)
def test_there_are_several_members_where_they_cost_little(longest, device, options, count):
    sets = SimpleNamespace(layout=SimpleNamespace(longest=longest), device=torch.device(device))
    assert usual_members({**SubsetSelector().get_params(), **options}, sets) == count


def test_a_run_and_a_start_keep_their_members_on_another_device(choices, tmp_path, monkeypatch):
    options = {**TINY, "checkpoint": tmp_path / "state"}
    monkeypatch.setattr("setgrad.selector._fit.usual_members", lambda *given: 3)
    first = SubsetSelector(**{**options, "max_epochs": 1}).fit(*choices)
    monkeypatch.undo()
    again = SubsetSelector(**{**options, "max_epochs": 2}).fit(*choices)
    after = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices, start=first)
    assert [len(selector.model_.members) for selector in (first, again, after)] == [3, 3, 3]


def test_twins_draw_the_same_numbers(choices):
    noise, layout = FreshNoise(3), choices.sets.layout
    for _ in range(2):
        twin = noise.clone()
        assert torch.equal(twin.uniform(layout, 2), noise.uniform(layout, 2))


def test_modules_of_the_users_own_and_solvers_in_the_model_learn_apart(choices, seeded):
    with seeded(0):
        phi = torch.nn.Linear(2, 4)
    own = fit(choices, members=2, phi=phi).model_
    assert not can_be_rows(own)
    assert not can_be_rows(model_of(choices, method="implicit"))
    assert not can_be_rows(model_of(choices, method="amortised"))


def test_members_are_counted():
    data = make_choices(8)
    with pytest.raises(OptionError, match="members must be a whole number of at least 1"):
        fit(data, members=0)
    with pytest.raises(OptionError, match="members is 2 there, 3 here"):
        SubsetSelector(**{**TINY, "members": 3}).fit(*data, start=fit(data, members=2))
