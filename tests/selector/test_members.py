"""Several members: what they are on average, that each learns alone, and that learning together changes nothing."""

import copy

import pytest
import torch

from setgrad.errors import OptionError
from setgrad.functions import Fresh, ItemNoise
from setgrad.inference import AllItems
from setgrad.selector import SubsetSelector
from setgrad.selector._rows import RowWeights, can_be_rows
from setgrad.selector._weights import Batch, Descent, OwnWeights
from tests.selector.conftest import FITTED, TINY, make_choices

# A number that float32 has, because rows keep it on the device.
RATE = 2.0**-7
DESCENT = Descent(RATE, decay=0.1, clip=0.05)
KINDS = {name: FITTED[name] for name in ("unrolled", "one-step", "direct", "paper", "gaussian", "horse")}
KINDS["induced"] = {"attention": "induced"}
STEPS = 4


def fit(choices, **options):
    return SubsetSelector(**{**TINY, "max_epochs": 1, **options}).fit(*choices)


def model_of(choices, **options):
    return fit(choices, members=3, **options).model_.double()


def train(weights, choices, noise, steps=STEPS):
    batch = Batch(choices.sets.with_values(choices.sets.values.double()), choices.subsets, None, None, AllItems())
    return torch.stack([weights.step(batch, noise, RATE, 0.5) for _ in range(steps)])


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


def test_a_member_learns_as_if_it_were_alone(choices):
    alone, first = (fit(choices, members=count).model_.each()[0].state_dict() for count in (1, 3))
    assert all(torch.equal(alone[name], value) for name, value in first.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0, 2**19], ids=["in turns", "together"])
def test_learning_together_is_learning_apart(choices, kind, limit, monkeypatch):
    monkeypatch.setattr("setgrad.selector._rows._TOGETHER", limit)
    model = model_of(choices, **KINDS[kind])
    assert can_be_rows(model)
    other = copy.deepcopy(model)
    apart, together = OwnWeights(model, DESCENT), RowWeights(other, DESCENT)
    a, b = train(apart, choices, Fresh(1)), train(together, choices, Fresh(1))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    one, two = apart.state(), together.state()
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kinds", [(OwnWeights, RowWeights), (RowWeights, OwnWeights)], ids=str)
def test_a_run_goes_on_the_other_way(choices, kinds):
    model = model_of(choices)
    first, whole = (kinds[0](copy.deepcopy(model), DESCENT) for _ in range(2))
    noise, same = Fresh(1), Fresh(1)
    train(first, choices, noise)
    rest = kinds[1](copy.deepcopy(model), DESCENT)
    rest.restore({name: value.clone() for name, value in first.state().items()})
    train(rest, choices, noise)
    train(whole, choices, same, 2 * STEPS)
    for name, value in whole.average().items():
        torch.testing.assert_close(rest.average()[name], value, rtol=1e-6, atol=1e-9)


def test_the_model_holds_the_running_mean_only_while_it_is_judged(choices):
    model = model_of(choices)
    weights = OwnWeights(model, DESCENT)
    train(weights, choices, Fresh(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with weights.averaged():
        mean = weights.average()
        assert all(torch.equal(value, mean[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert any(not torch.equal(value, mean[name]) for name, value in before.items())


def test_twins_draw_the_same_numbers(choices):
    noise, layout = Fresh(3), choices.sets.layout
    for _ in range(2):
        twin = noise.twin()
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
