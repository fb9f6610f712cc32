"""Estimators and distributions when saved, copied, compiled and mapped."""

import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from setgrad.discrete import (
    AIMLE,
    IMLE,
    SIMPLE,
    FenchelYoung,
    Gumbel,
    Identity,
    KSubset,
    LinearSchedule,
    Normal,
    Perturbed,
    RandomSpanningTree,
    RelaxedTopK,
    ScheduledTemperature,
    SoftSub,
    StraightThrough,
    Tempered,
    TopK,
)
from setgrad.discrete.projections import StdProjection
from setgrad.errors import OptionError
from tests.discrete.estimators import CASES, Case, N
from tests.discrete.oracles import draws
from tests.discrete.problems import PROBLEMS, Problem

# Function objects that a new process could not import.
LOCAL = {"LPGD-relaxed", "callable in a pool"}


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in LOCAL], ids=str)
def test_estimators_can_be_pickled(case: Case) -> None:
    layer, theta = case.build(), draws(3, N)
    again = pickle.loads(pickle.dumps(layer))
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    z = layer(theta)
    assert torch.equal(again(theta), z)
    assert torch.equal(loaded(theta), z)


@pytest.mark.parametrize("problem", [problem for problem in PROBLEMS if problem.name not in LOCAL], ids=str)
def test_solvers_can_be_pickled(problem: Problem) -> None:
    solver, theta = problem.solver, problem.draw(3)
    solver(theta)
    again = pickle.loads(pickle.dumps(solver))
    assert again.counter.calls == 1
    assert torch.equal(again(theta), solver(theta))
    assert solver.counter.calls == 2


WITH_TEMPERATURE = {
    "Identity": lambda noise: Identity(TopK(2), noise=noise),
    "AIMLE": lambda noise: AIMLE(TopK(2), noise=noise),
    "Perturbed": lambda noise: Perturbed(TopK(2), noise=noise, samples=2),
    "StraightThrough": lambda noise: StraightThrough(TopK(2), noise=noise),
    "SoftSub": lambda noise: SoftSub(2, noise=noise),
    "RelaxedTopK": lambda noise: RelaxedTopK(2, noise=noise),
    "FenchelYoung": lambda noise: FenchelYoung(TopK(2), noise=noise),
}


@pytest.mark.parametrize("name", WITH_TEMPERATURE)
def test_state_dict_contains_scheduled_temperatures(name: str) -> None:
    def model() -> tuple[nn.Module, list[ScheduledTemperature]]:
        own = [
            ScheduledTemperature(LinearSchedule(1.0, 0.0, steps=10)),
            ScheduledTemperature(LinearSchedule(4.0, 0.0, steps=10)),
        ]
        noise = Tempered(Tempered(Normal(), own[0]), own[1])
        return nn.Sequential(WITH_TEMPERATURE[name](noise)), own

    trained, temperatures = model()
    for temperature in temperatures:
        for _ in range(4):
            temperature.step()
    temperatures[1].step()
    fresh, others = model()
    fresh.load_state_dict(trained.state_dict())
    assert [temperature.value for temperature in others] == [0.6, 2.0]
    copied = pickle.loads(pickle.dumps(trained))
    list(copied.modules())[1].noise.temperature.step()
    result = [part.steps for part in copied.modules() if isinstance(part, ScheduledTemperature)]
    assert result == [6, 4]


def test_constant_temperature_is_not_in_the_state_dict() -> None:
    assert not IMLE(TopK(2), noise=Tempered(Gumbel(), 0.5)).state_dict()


def run(layer: Callable[[Tensor], Tensor], theta: Tensor) -> tuple[Tensor, Tensor]:
    leaf = theta.clone().requires_grad_()
    z = layer(leaf)
    (grad,) = torch.autograd.grad((z**2 * torch.arange(N)).sum(), leaf)
    return z.detach(), grad


# A hard relaxation compiles the soft one as well.
NOT_PART_OF_ANOTHER = [case for case in CASES if f"{case.name}-hard" not in {str(other) for other in CASES}]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", NOT_PART_OF_ANOTHER, ids=str)
def test_compiled_layers_agree(case: Case) -> None:
    theta = draws(4, N)
    plain, fast = case.build(), case.build()
    z, grad = run(plain, theta)
    z_, grad_ = run(torch.compile(fast, backend="aot_eager"), theta)
    torch.testing.assert_close(z_, z)
    torch.testing.assert_close(grad_, grad)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), fast.buffers(), strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", [lambda theta: KSubset(theta, 2), RandomSpanningTree])
def test_compiled_distributions_agree(case: object) -> None:
    def loss(theta: Tensor) -> Tensor:
        q = case(theta)  # type: ignore[operator]
        return (q.marginals**2).sum() + q.entropy().sum()

    theta = draws(3, 4, 4)
    result = []
    for function in (loss, torch.compile(loss, backend="aot_eager")):
        leaf = theta.clone().requires_grad_()
        result.append(torch.autograd.grad(function(leaf), leaf)[0])
    torch.testing.assert_close(*result)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap_is_right_or_raises(case: Case) -> None:
    theta = draws(3, N)
    if case.sampled:
        with pytest.raises(RuntimeError):
            torch.func.vmap(case.build(), randomness="error")(theta)
        return
    try:
        result = torch.func.vmap(case.build())(theta)
    except RuntimeError as error:
        assert "vmap" in str(error)
    else:
        torch.testing.assert_close(result, case.build()(theta))


def test_function_transforms_agree_with_autograd() -> None:
    theta, slope = draws(4, N), draws(4, N, seed=1)
    for make in (lambda: Identity(TopK(2), projection=StdProjection()), lambda: AIMLE(TopK(2), noise=None).eval()):
        result = torch.func.grad(lambda x, layer: (layer(x) * slope).sum())(theta, make())
        leaf = theta.clone().requires_grad_()
        (make()(leaf) * slope).sum().backward()
        torch.testing.assert_close(result, leaf.grad)
    learning = AIMLE(TopK(2), noise=None)
    with pytest.raises(OptionError, match="put it into evaluation mode"):
        torch.func.grad(lambda x: (learning(x) * slope).sum())(theta)
    assert learning.updates == 0


def test_sfess_works_under_no_grad() -> None:
    layer = SIMPLE(2, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert (layer(draws(3, N)).sum(-1) == 2).all()
