"""The solvers of the implicit method: all find the same solution, and the exact ones the gradient of unrolling."""

import pytest
import torch

from setgrad.errors import OptionError
from setgrad.functions import FreshNoise
from setgrad.selector import SelectorOptions, SubsetSelector, load
from setgrad.selector._tables import BACKWARD_SOLVERS, FORWARD_SOLVERS
from tests.models import rewrite_config
from tests.selector.conftest import TINY, make_choices

EXACT_BACKWARD = [name for name in BACKWARD_SOLVERS if name not in ("neumann", "one-step")]


@pytest.fixture(scope="module")
def selector():
    """A selector without randomness in its inference."""
    options = {**TINY, "method": "implicit", "estimator": "exact", "scale": 0.5}
    return SubsetSelector(**options).fit(*make_choices(40))


def solve(selector, **options):
    """Return the logits of the first member in float64, and the gradient of a function of them for its weights."""
    model, sets = selector._precise(), make_choices(8, seed=5).sets
    member, config = model.each()[0], model.config.with_options(**options)
    result = member.infer(config, member.function.bind(model.prepare(sets)), FreshNoise(0))
    weights = torch.randn(sets.layout.total, generator=torch.Generator().manual_seed(1)).double()
    gradients = torch.autograd.grad((result.logits * weights).sum(), list(member.parameters()), allow_unused=True)
    assert bool(result.converged.all())
    return result.logits.detach(), torch.cat([g.flatten() for g in gradients if g is not None])


@pytest.fixture(scope="module")
def unrolled(selector):
    return solve(selector, method="unrolled", steps=60)


@pytest.mark.parametrize("forward", [None, *FORWARD_SOLVERS])
def test_every_forward_solver_finds_the_solution_of_unrolling(selector, unrolled, forward):
    logits, gradient = solve(selector, forward=forward, tol=1e-10)
    torch.testing.assert_close(logits, unrolled[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(gradient, unrolled[1], rtol=1e-6, atol=1e-7)
    # By default the tolerance is that of training.
    rough, _ = solve(selector, forward=forward)
    torch.testing.assert_close(rough, unrolled[0], rtol=0, atol=2e-3 * float(unrolled[0].norm()))


@pytest.mark.parametrize("backward", EXACT_BACKWARD)
def test_every_exact_backward_solver_finds_the_gradient_of_unrolling(selector, unrolled, backward):
    _, gradient = solve(selector, backward=backward, tol=1e-10)
    torch.testing.assert_close(gradient, unrolled[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backward", ["neumann", "one-step"])
def test_approximations_point_the_same_way(selector, unrolled, backward):
    _, gradient = solve(selector, backward=backward)
    assert float(torch.cosine_similarity(gradient, unrolled[1], dim=0)) > 0.9


def test_none_are_the_usual_solvers(selector):
    solver = selector.model_.config.solver
    assert (solver.tol, solver.adjoint.tol, solver.adjoint.restart) == (1e-3, 1e-3, 4)
    assert type(solver.solver).__name__ == "AdaptivePicard"
    tight = selector.model_.config.with_options(tol=1e-6).solver
    assert (tight.tol, tight.adjoint.tol) == (1e-6, 1e-6)


@pytest.mark.parametrize(
    "options",
    [{"forward": "anderson"}, {"backward": "bicgstab"}, {"tol": 1e-4}, {"forward": "newton", "backward": "direct"}],
)
def test_they_are_trained_with_saved_and_loaded(options, tmp_path):
    choices = make_choices(30)
    usual = SubsetSelector(**TINY, method="implicit").fit(*choices)
    other = SubsetSelector(**TINY, method="implicit", **options).fit(*choices)
    torch.testing.assert_close(
        other.predict_proba(choices.sets).values, usual.predict_proba(choices.sets).values, rtol=0, atol=0.05
    )
    other.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert {name: getattr(again, name) for name in options} == options
    assert torch.equal(again.predict_proba(choices.sets).values, other.predict_proba(choices.sets).values)


def test_models_without_these_options_load(selector, tmp_path):
    selector.save(tmp_path / "model")

    def remove(config):
        for options in (config["options"], config["options_in_use"]):
            for name in ("forward", "backward", "tol"):
                assert options.pop(name) is None

    rewrite_config(tmp_path / "model", remove)
    sets = make_choices(8, seed=5).sets
    assert torch.equal(load(tmp_path / "model").predict_proba(sets).values, selector.predict_proba(sets).values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forward": "anderson"}, "forward, backward and tol are parts of method='implicit'"),
        ({"method": "one-step", "tol": 1e-3}, "are parts of method='implicit'"),
        ({"method": "implicit", "forward": "bisection"}, "unknown forward 'bisection'"),
        ({"method": "implicit", "backward": "cg"}, "unknown backward 'cg'"),
        ({"method": "implicit", "tol": 0}, "tol must be None or a number above 0"),
    ],
)
def test_wrong_options_raise(options, message):
    with pytest.raises(OptionError, match=message):
        SelectorOptions(**options)
