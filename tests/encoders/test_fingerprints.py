"""States are tied to the weights that read them: what other weights read is neither merged, continued nor removed."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from setgrad._files import read_tensors, write_tensors
from setgrad.encoders import SSE, UMBC, DeepSets, MaxPool, State
from setgrad.encoders._max_state import MaxState
from setgrad.encoders.activations import Sigmoid, SlotSoftmax
from setgrad.errors import FileFormatError, StateError
from setgrad.sets import Sets

DIM = 3
ENCODERS: dict[str, Callable[[], Any]] = {
    "deep sets": lambda: DeepSets(DIM, nn.Linear(DIM, 4)),
    "sse": lambda: SSE(DIM, dim=8, slots=2),
    "umbc": lambda: UMBC(DIM, dim=8, slots=2, head=nn.Flatten()),
    "max": lambda: MaxPool(DIM, nn.Linear(DIM, 4)),
    # Too large to be hashed before it is needed.
    "large": lambda: DeepSets(DIM, nn.Sequential(nn.Linear(DIM, 600), nn.Linear(600, 600))),
}
OTHER = "other weights or settings, or the weights changed"


@pytest.fixture(params=ENCODERS)
def encoder(request, seeded):
    with seeded(0):
        return ENCODERS[request.param]().eval()


@pytest.fixture
def chunks():
    generator = torch.Generator().manual_seed(0)
    return [Sets.from_list([torch.randn(size, DIM, generator=generator)]) for size in (4, 5)]


def change(encoder):
    with torch.no_grad():
        next(encoder.parameters()).add_(1e-3)


def test_states_of_other_weights_are_not_merged(encoder, chunks, tmp_path):
    other = copy.deepcopy(encoder)
    first = encoder.update(encoder.begin(), chunks[0])
    # A copy of the weights is as good.
    assert torch.equal(
        encoder.finish(first.merge(other.update(other.begin(), chunks[1]))),
        encoder.finish(encoder.update(first, chunks[1])),
    )
    change(other)
    second = other.update(other.begin(), chunks[1]).detach()
    second.save(tmp_path / "second")
    loaded = type(second).load(tmp_path / "second")
    for state in (second, loaded, pickle.loads(pickle.dumps(second)), copy.deepcopy(second)):
        with pytest.raises(StateError, match=OTHER):
            first.merge(state)
        with pytest.raises(StateError, match=OTHER):
            encoder.update(state, chunks[0])
        assert torch.equal(other.finish(other.update(state, chunks[0])), other.finish(other.update(second, chunks[0])))


def test_a_state_is_not_continued_after_a_step_of_training(encoder, chunks, tmp_path):
    state = encoder.update(encoder.begin(), chunks[0])
    state.save(tmp_path / "state")
    change(encoder)
    with pytest.raises(StateError, match=OTHER):
        encoder.update(state, chunks[1])
    with pytest.raises(StateError, match=OTHER):
        encoder.update(type(state).load(tmp_path / "state"), chunks[1])
    with pytest.raises(StateError, match=OTHER):
        state.merge(encoder.begin())


def test_the_same_weights_loaded_again_continue_a_state(encoder, chunks, tmp_path, seeded):
    state = encoder.update(encoder.begin(), chunks[0])
    whole = encoder.update(state, chunks[1])
    state.save(tmp_path / "state")
    weights = copy.deepcopy(encoder.state_dict())
    change(encoder)
    encoder.load_state_dict(weights)
    resumed = encoder.update(type(state).load(tmp_path / "state"), chunks[1])
    assert torch.equal(encoder.finish(resumed), encoder.finish(whole))


def test_the_head_may_change(chunks, seeded):
    with seeded(0):
        encoder = UMBC(DIM, dim=8, slots=2, head=nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))
    state = encoder.update(encoder.begin(), chunks[0])
    with torch.no_grad():
        next(encoder.head.parameters()).add_(1)
    assert encoder.finish(encoder.update(state, chunks[1])).shape == (1, 2)


def test_other_settings_of_the_same_weights_are_another_encoder(chunks, seeded):
    states = []
    for activation in (Sigmoid(), SlotSoftmax()):
        with seeded(0):
            encoder = UMBC(DIM, dim=8, slots=2, activation=activation)
        states.append(encoder.update(encoder.begin(), chunks[0]))
    with pytest.raises(StateError, match=r"other weights or settings|different encoders"):
        states[0].merge(states[1])


def test_items_of_another_encoder_are_not_removed(encoder, chunks):
    if isinstance(encoder, MaxPool):
        pytest.skip("nothing can be removed from a maximum")
    other = copy.deepcopy(encoder)
    change(other)
    both = encoder.update(encoder.update(encoder.begin(), chunks[0]), chunks[1])
    with pytest.raises(StateError, match=OTHER):
        both.remove(other.update(other.begin(), chunks[0]))


@pytest.mark.parametrize("name", ["deep sets", "sse", "umbc"])
def test_removing_more_than_was_read_is_refused(name, chunks, seeded):
    with seeded(0):
        encoder = ENCODERS[name]().double().eval()
    first, second = (encoder.update(encoder.begin(), chunk.to(torch.float64)) for chunk in chunks)
    rest = first.merge(second).remove(second)
    with pytest.raises(StateError, match="never merged"):
        rest.remove(second)


def test_a_large_encoder_that_changed_before_its_state_was_saved_cannot_be_named(chunks, tmp_path, seeded):
    with seeded(0):
        encoder = ENCODERS["large"]()
    state = encoder.update(encoder.begin(), chunks[0])
    change(encoder)
    with pytest.raises(StateError, match="save states before the weights change"):
        state.save(tmp_path / "state")


def test_gradients_flow_through_states_of_an_encoder_in_training(encoder, chunks):
    """A new state for each step, as in training."""
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        encoder.finish(encoder.update(encoder.update(encoder.begin(), chunks[0]), chunks[1])).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("change", ["count", "sums.0", "level", "slots", "without count", "without sums.0", "peaks"])
def test_states_that_were_made_up_are_refused(chunks, tmp_path, seeded, change):
    with seeded(0):
        encoder = UMBC(DIM, dim=8, slots=2)
    encoder.update(encoder.begin(), chunks[0]).detach().save(tmp_path / "state")
    kind = "setgrad encoder state 2"
    tensors, _ = read_tensors(tmp_path / "state", kind, remedy="")
    if change.startswith("without "):
        del tensors[change.removeprefix("without ")]
    elif change == "peaks":
        tensors["peaks.0"] = torch.ones(7)
    else:
        tensors[change] = torch.ones(5) if change != "count" else torch.tensor([-1.0])
    write_tensors(tmp_path / "state", tensors, kind)
    with pytest.raises(FileFormatError, match="is not a whole state"):
        State.load(tmp_path / "state")


@pytest.mark.parametrize("change", ["value", "number", "items", "length", "beyond", "without items"])
def test_maxima_that_were_made_up_are_refused(chunks, tmp_path, seeded, change):
    with seeded(0):
        encoder = ENCODERS["max"]()
    encoder.update(encoder.begin(), chunks[0]).detach().save(tmp_path / "state")
    kind = "setgrad max state 2"
    tensors, _ = read_tensors(tmp_path / "state", kind, remedy="")
    if change == "without items":
        del tensors["items"]
    elif change == "beyond":
        tensors["number"] += 100
    else:
        tensors[change] = torch.ones(5)
    write_tensors(tmp_path / "state", tensors, kind)
    with pytest.raises(FileFormatError, match="is not a whole state"):
        MaxState.load(tmp_path / "state")
