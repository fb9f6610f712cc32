"""CPU and GPU agree: noise bit for bit, everything else to rounding."""

from typing import Any

import numpy as np
import pytest
import torch

from setgrad import load
from setgrad.encoders import ContextItems
from setgrad.functions import Bernoulli, DeepSetFunction, Exact, Gaussian, ItemNoise
from setgrad.selector import SubsetSelector
from setgrad.selector._stacked_weights import CUDAGraphReplay, StackedWeights, _CapturedStep
from setgrad.sets import Sets, segment_max, segment_rank, segment_softmax, segment_sum, segment_top_k

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

SIZES = [5, 0, 1, 8, 3]


def draw(sizes=SIZES, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return Sets.from_lengths(torch.randn(sum(sizes), 2, generator=generator, dtype=dtype), sizes)


def make(slots=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DeepSetFunction(2, ContextItems(2, 16, slots=slots), hidden=(16, 16)).double()


def assert_close(cpu, cuda):
    torch.testing.assert_close(cuda.cpu(), cpu, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_segments_agree_and_do_not_wait_for_the_device():
    sets = draw()
    moved = sets.to("cuda")
    score, on_gpu = sets.values[:, 0], moved.values[:, 0]
    for operation in (segment_sum, segment_max, segment_softmax, segment_rank):
        assert_close(operation(score, sets), operation(on_gpu, moved))
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        parts = moved[1:4], moved.take([3, 0]), moved.padded()
        top = segment_top_k(on_gpu, moved, np.array([2, 1, 1, 3, 0]))
        segment_softmax(on_gpu, moved)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert len(parts[1]) == 2
    assert torch.equal(top.cpu(), segment_top_k(score, sets, np.array([2, 1, 1, 3, 0])))


def test_item_noise_is_the_same_on_every_device():
    sets = draw(dtype=torch.float32)
    cpu, cuda = (ItemNoise(s, seed=3).uniform(s.layout, 7) for s in (sets, sets.to("cuda")))
    assert torch.equal(cpu, cuda.cpu())


@pytest.mark.parametrize("slots", [None, 4])
def test_gains_and_extensions_agree(slots):
    sets, function = draw(), make(slots)
    psi = torch.linspace(0, 1, sets.layout.total, dtype=torch.float64)
    vector = psi.flip(0)

    def results(function, sets, psi, vector):
        bound, noise = function.bind(sets), ItemNoise(sets)
        out = [bound.value(psi[None] > 0.5), bound.gains(psi[None] > 0.5), bound.gains(psi[None])]
        for estimator in (Exact(), Bernoulli(4, noise), Gaussian(4, noise)):
            out += [estimator.gradient(bound, psi), estimator.hessian_vector(bound, psi, vector)]
        return [x.detach() for x in out]

    cpu = results(function, sets, psi, vector)
    cuda = results(function.to("cuda"), sets.to("cuda"), psi.to("cuda"), vector.to("cuda"))
    for a, b in zip(cpu, cuda, strict=True):
        assert_close(a, b)


def test_gradients_agree():
    def gradients(device):
        function, sets = make().to(device), draw().to(device)
        bound = function.bind(sets)
        Bernoulli(3, ItemNoise(sets)).gradient(bound, torch.full_like(sets.values[:, 0], 0.5)).square().sum().backward()
        return [p.grad.cpu() for p in function.parameters() if p.grad is not None]

    for cpu, cuda in zip(gradients("cpu"), gradients("cuda"), strict=True):
        assert_close(cpu, cuda)


OPTIONS: dict[str, Any] = {"dim": 16, "hidden": (16,), "random_state": 0, "verbose": 0}


def test_a_selector_fitted_on_the_gpu_chooses_the_same_on_the_cpu(tmp_path):
    sets = draw([6, 4, 9, 5] * 10, torch.float32)
    subsets = [(x[:, 0] > x[:, 0].mean()).numpy() for x in sets]
    selector = SubsetSelector(**OPTIONS, max_epochs=3, device="cuda").fit(sets, subsets)
    selector.save(tmp_path / "model")
    on_cpu = load(tmp_path / "model", device="cpu")
    torch.testing.assert_close(
        selector.predict_proba(sets).values.cpu(), on_cpu.predict_proba(sets).values, rtol=0, atol=1e-7
    )
    picks = selector.predict(sets.to("cuda"))
    assert picks.device.type == "cuda"
    assert torch.equal(picks.values.cpu(), on_cpu.predict(sets).values)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fit_does_not_change_the_generators_of_the_gpu(device):
    before = torch.cuda.get_rng_state()
    SubsetSelector(**OPTIONS, max_epochs=1, device=device).fit(draw([6, 4, 9, 5], torch.float32), [[0]] * 4)
    assert torch.equal(before, torch.cuda.get_rng_state())


def draw_choices(sizes):
    generator = torch.Generator().manual_seed(0)
    sets = Sets.from_list([torch.randn(n, 2, generator=generator) for n in sizes])
    return sets, sets.with_values(sets.values[:, 0] > 0.5)


def fitted_logits(choices, options):
    all_options = {**OPTIONS, "members": 3, "max_epochs": 4, "batch_size": 8, "device": "cuda", **options}
    selector = SubsetSelector(**all_options).fit(*choices, validation=choices)
    return selector.decision_function(choices[0]).values


MEMBERS = [{}, {"members": 1}, {"method": "direct"}, {"attention": "induced"}]
MEMBERS += [{"method": "unrolled", "estimator": "gaussian"}]


@pytest.mark.parametrize("options", MEMBERS, ids=str)
@pytest.mark.parametrize("sizes", [range(2, 42), [7] * 37], ids=["ragged", "equal sizes"])
def test_stacked_members_learn_the_same_as_separate_ones(options, sizes, monkeypatch):
    choices = draw_choices(sizes)
    stacked = fitted_logits(choices, options)
    monkeypatch.setattr("setgrad.selector._trainer.is_stacking_faster", lambda *_: False)
    torch.testing.assert_close(stacked, fitted_logits(choices, options), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("options", MEMBERS, ids=str)
def test_a_step_replayed_as_a_cuda_graph_gives_the_same(options, monkeypatch):
    choices, replays = draw_choices([7] * 37), []
    replay = _CapturedStep.replay

    def counted(*args):
        replays.append(1)
        return replay(*args)

    monkeypatch.setattr(_CapturedStep, "replay", counted)
    replayed = fitted_logits(choices, options)
    assert len(replays) > 10
    monkeypatch.setattr("setgrad.selector._stacked_weights.CUDAGraphReplay", lambda: CUDAGraphReplay(warm_up=10**9))
    torch.testing.assert_close(replayed, fitted_logits(choices, options), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", MEMBERS[:1], ids=str)
def test_a_fit_goes_on_where_no_graph_can_be_captured(options, monkeypatch):
    choices, refused = draw_choices([7] * 37), []
    train = StackedWeights._train

    def asking(self, batch, noise):
        if torch.cuda.is_current_stream_capturing():
            refused.append(1)
            # A question to the host ends a capture.
            batch.sets.values.sum().item()
        return train(self, batch, noise)

    with monkeypatch.context() as patched:
        patched.setattr(StackedWeights, "_train", asking)
        found = fitted_logits(choices, options)
    assert refused
    monkeypatch.setattr("setgrad.selector._stacked_weights.CUDAGraphReplay", lambda: CUDAGraphReplay(warm_up=10**9))
    assert torch.equal(found, fitted_logits(choices, options))
