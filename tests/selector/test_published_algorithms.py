"""The presets of algorithms 1 and 2 of Özcan et al. (2024) against loops that follow the text."""

from typing import Any

import pytest
import torch
from torch import Tensor

from setgrad.functions import Bernoulli, FreshNoise
from setgrad.selector import SubsetSelector
from setgrad.sets import Sets
from tests.inference.oracle import amplify
from tests.selector.conftest import first_member, make_choices

SAMPLES = 3
SMALL: dict[str, Any] = {
    "dim": 6,
    "hidden": (8, 8),
    "batch_size": 64,
    "max_epochs": 30,
    "learning_rate": 1e-2,
    "samples": SAMPLES,
}
SETS = Sets.from_lengths(torch.randn(15, 2, generator=torch.Generator().manual_seed(7)), [6, 4, 5])
WEIGHTS = torch.randn(15, generator=torch.Generator().manual_seed(3)).double()


@pytest.fixture(scope="module")
def model():
    """A function whose items interact."""
    selector = SubsetSelector.preset("diffmf", **SMALL, device="cpu", random_state=0, verbose=0)
    model = selector.fit(*make_choices(60)).model_.double()
    amplify(first_member(selector).function.rho, 2.0)
    return model


def bind(model):
    return model.each()[0].function.bind(model.prepare(SETS))


def gradient(loss: Tensor, model) -> Tensor:
    parameters = list(model.each()[0].function.parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, materialize_grads=True)])


def infer(model, preset: str, **changes):
    """Return the probabilities of a preset's own inference."""
    options = SubsetSelector.preset(preset, **{**SMALL, **changes}).get_params()
    names = ("method", "estimator", "steps", "scale", "forward", "backward", "tol")
    config = model.config.with_options(**{name: options[name] for name in names})
    return model.each()[0].infer(config, bind(model), FreshNoise(4), samples=SAMPLES)


def gains(bound, masks: Tensor) -> Tensor:
    """Return the mean over the masks of F with each item less F without it."""
    columns = []
    for item in range(15):
        on, off = masks.clone(), masks.clone()
        on[:, item], off[:, item] = 1.0, 0.0
        columns.append((bound.value(on) - bound.value(off)).sum(1).mean())
    return torch.stack(columns)


def divisor(scale: object, gradient: Tensor) -> Tensor:
    """Return |V| Q / 2 of equation 27 for every item."""
    sizes = SETS.lengths[SETS.layout.ids].double()
    matrix = torch.nn.utils.rnn.pad_sequence(gradient.split([6, 4, 5]), batch_first=True)
    if isinstance(scale, float):
        return sizes * scale / 2
    return sizes * torch.linalg.matrix_norm(matrix, {"nuclear-batch": "nuc", "frobenius-batch": "fro"}[str(scale)]) / 2


def draw() -> Tensor:
    """Return the uniform numbers that the inference draws once."""
    return FreshNoise(4).uniform(SETS.layout, SAMPLES).double()


def test_five_steps_are_differentiated_through_all_of_them(model):
    bound, noise, psi = bind(model), FreshNoise(4), torch.full((15,), 0.5, dtype=torch.float64)
    for _ in range(5):
        masks = (noise.uniform(SETS.layout, SAMPLES) < psi).double() + psi - psi.detach()
        psi = torch.sigmoid(gains(bound, masks))
    result = infer(model, "diffmf-5")
    torch.testing.assert_close(result.value, psi)
    expected = gradient((psi * WEIGHTS).sum(), model)
    torch.testing.assert_close(gradient((result.value * WEIGHTS).sum(), model), expected, rtol=1e-8, atol=1e-11)
    last_step = gradient((infer(model, "diffmf", steps=5, estimator="bernoulli").value * WEIGHTS).sum(), model)
    assert float((last_step - expected).norm() / expected.norm()) > 0.01


@pytest.mark.parametrize(("forward", "backward"), [("picard", "normal-cg"), ("anderson", "gmres")])
@pytest.mark.parametrize("way", ["pathwise", "differences"])
@pytest.mark.parametrize(("variant", "scale"), [("c", 1.0), ("2", None), ("nuclear", None)])
def test_the_implicit_gradient_is_that_of_theorem_4_3(model, variant, scale, way, backward, forward):
    changes = {"forward": forward, "backward": backward} | ({} if scale is None else {"scale": scale})
    name = f"idiffmf-{variant}-{way}"
    scale = SubsetSelector.preset(name, **changes).scale
    result = infer(model, name, **changes)
    assert bool(result.converged.all())
    bound, uniform, psi = bind(model), draw(), result.value.detach()
    # The solution: a fixed point of the map of random subsets.
    subsets = (uniform < psi).double()
    slope = gains(bound, subsets)
    torch.testing.assert_close(torch.sigmoid(slope / divisor(scale, slope)), psi, rtol=0, atol=1e-6)
    # H by the difference of gains at subsets with and without an item, or by the slopes of the relaxed function.
    if way == "differences":
        rows = []
        for item in range(15):
            on, off = subsets.clone(), subsets.clone()
            on[:, item], off[:, item] = 1.0, 0.0
            rows.append(gains(bound, on) - gains(bound, off))
        hessian = torch.stack(rows, 1).detach()
    else:
        hessian = torch.autograd.functional.jacobian(lambda p: gains(bound, subsets + p - psi), psi)
    outer = torch.autograd.functional.jacobian(lambda g: torch.sigmoid(g / divisor(scale, g)), slope.detach())
    adjoint = torch.linalg.solve((torch.eye(15).double() - outer @ hessian).T, WEIGHTS)
    expected = gradient(adjoint @ torch.sigmoid(slope / divisor(scale, slope)), model)
    actual = gradient((result.value * WEIGHTS).sum(), model)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * float(expected.norm()))
    assert bool(result.converged.all())


def test_samples_of_the_presets_are_random_subsets(model):
    """The values of one step from 1/2 are those of Bernoulli samples."""
    plain = Bernoulli(3, FreshNoise(4)).gradient(bind(model), torch.full((15,), 0.5, dtype=torch.float64))
    for name in ("diffmf-5", "idiffmf-c-pathwise", "idiffmf-c-differences"):
        one = infer(model, name, method="one-step", steps=1, scale=None, forward=None, backward=None, tol=None)
        torch.testing.assert_close(one.logits, plain)
