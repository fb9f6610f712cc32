"""The GPU gives what the CPU gives: noise bit for bit, everything else to rounding."""

import numpy as np
import pytest
import torch

from setgrad.encoders import ContextItems
from setgrad.functions import Bernoulli, DeepSetFunction, Exact, Gaussian, ItemNoise
from setgrad.selector import SubsetSelector
from setgrad.selector._cuda_graph import CUDAGraphReplay, _CapturedStep
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


def close(here, there):
    torch.testing.assert_close(there.cpu(), here, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_segments_agree_and_do_not_wait_for_the_device():
    sets = draw()
    moved = sets.to("cuda")
    score, on_gpu = sets.values[:, 0], moved.values[:, 0]
    for operation in (segment_sum, segment_max, segment_softmax, segment_rank):
        close(operation(score, sets), operation(on_gpu, moved))
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
    here, there = (ItemNoise(s, seed=3).uniform(s.layout, 7) for s in (sets, sets.to("cuda")))
    assert torch.equal(here, there.cpu())


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

    here = results(function, sets, psi, vector)
    there = results(function.to("cuda"), sets.to("cuda"), psi.to("cuda"), vector.to("cuda"))
    for a, b in zip(here, there, strict=True):
        close(a, b)


def test_gradients_agree():
    def gradients(device):
        function, sets = make().to(device), draw().to(device)
        bound = function.bind(sets)
        Bernoulli(3, ItemNoise(sets)).gradient(bound, torch.full_like(sets.values[:, 0], 0.5)).square().sum().backward()
        return [p.grad.cpu() for p in function.parameters() if p.grad is not None]

    for here, there in zip(gradients("cpu"), gradients("cuda"), strict=True):
        close(here, there)


def test_a_selector_fitted_on_the_gpu_chooses_alike_on_the_cpu(tmp_path):
    from setgrad import load

    sets = draw([6, 4, 9, 5] * 10, torch.float32)
    subsets = [(x[:, 0] > x[:, 0].mean()).numpy() for x in sets]
    options = {"width": 16, "hidden": (16,), "max_epochs": 3, "random_state": 0, "verbose": 0}
    selector = SubsetSelector(**options, device="cuda").fit(sets, subsets)
    selector.save(tmp_path / "model")
    there, here = selector.predict_proba(sets), load(tmp_path / "model", device="cpu").predict_proba(sets)
    torch.testing.assert_close(there.values.cpu(), here.values, rtol=0, atol=1e-7)
    moved = selector.predict(sets.to("cuda"))
    assert moved.device.type == "cuda"
    assert torch.equal(moved.values.cpu(), load(tmp_path / "model", device="cpu").predict(sets).values)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fitting_leaves_the_generators_of_the_gpu_alone(device):
    sets = draw([6, 4, 9, 5], torch.float32)
    before = torch.cuda.get_rng_state()
    options = {"width": 16, "hidden": (16,), "max_epochs": 1, "random_state": 0, "verbose": 0}
    SubsetSelector(**options, device=device).fit(sets, [[0]] * 4)
    assert torch.equal(before, torch.cuda.get_rng_state())


def sets_of(sizes):
    generator = torch.Generator().manual_seed(0)
    sets = Sets.from_list([torch.randn(n, 2, generator=generator) for n in sizes])
    return sets, sets.with_values(sets.values[:, 0] > 0.5)


def fitted(choices, options):
    given = {"members": 3, "width": 16, "hidden": (16,), "max_epochs": 4, "random_state": 0, "verbose": 0, **options}
    selector = SubsetSelector(**given, batch_size=8, device="cuda").fit(*choices, validation=choices)
    return selector.decision_function(choices[0]).values


MEMBERS = [{}, {"members": 1}, {"method": "direct"}, {"attention": "induced"}, {"estimator": "gaussian"}]


@pytest.mark.parametrize("options", MEMBERS, ids=str)
@pytest.mark.parametrize("sizes", [range(2, 42), [7] * 37], ids=["ragged", "alike"])
def test_members_that_learn_together_learn_what_they_learn_apart(options, sizes, monkeypatch):
    choices = sets_of(sizes)
    together = fitted(choices, options)
    monkeypatch.setattr("setgrad.selector._trainer.is_stacking_faster", lambda *given: False)
    torch.testing.assert_close(together, fitted(choices, options), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("options", MEMBERS, ids=str)
def test_a_step_played_again_is_the_step(options, monkeypatch):
    choices, played = sets_of([7] * 37), []
    play = _CapturedStep.replay
    monkeypatch.setattr(_CapturedStep, "replay", lambda *given: played.append(1) or play(*given))
    again = fitted(choices, options)
    assert len(played) > 10
    monkeypatch.setattr("setgrad.selector._stacked_weights.CUDAGraphReplay", lambda: CUDAGraphReplay(warm_up=10**9))
    torch.testing.assert_close(again, fitted(choices, options), rtol=1e-5, atol=1e-5)
