"""The unit circle: the derivative of a relation that is no function (Chiu, 2021, section 3 and figure 2).

    F(theta, x) = theta^2 + x^2 - 1 = 0

For each theta in (-1, 1) there are two solutions. The implicit function theorem is local: it differentiates the one
that was found, dx/dtheta = -(dF/dx)^-1 dF/dtheta = -theta / x, whatever led to it. At (1, 0) dF/dx = 0: the theorem
does not apply, and the backward pass raises an error instead of returning a number.

`--picture FILE` draws the circle with the tangents that the theorem gives; it needs Matplotlib.
"""

# %%
import sys

import torch
from torch import Tensor

from setgrad.errors import ConvergenceError
from setgrad.implicit import root


def relation(x: Tensor, theta: Tensor) -> Tensor:
    """Return F for each point."""
    return theta**2 + x**2 - 1


def solve(theta: Tensor, start: float) -> Tensor:
    """Return the x that Newton's method finds from a start; its sign decides which of the two."""
    y = root(
        lambda y, t: relation(y, t[..., None]), torch.full((*theta.shape, 1), start).to(theta), theta, tol=1e-14
    ).value
    return y[..., 0]


def slope(theta: Tensor, start: float) -> tuple[Tensor, Tensor]:
    """Return x and dx/dtheta by the theorem."""
    theta = theta.clone().requires_grad_()
    x = solve(theta, start)
    return x.detach(), torch.autograd.grad(x.sum(), theta)[0]


# %%
def fails_at_the_side() -> bool:
    """Return whether the backward pass at theta = 1, x = 0 raises an error."""
    theta = torch.ones(1, dtype=torch.float64, requires_grad=True)
    x = root(lambda y, t: relation(y, t), torch.zeros(1, dtype=torch.float64), theta).value
    try:
        x.backward()
    except ConvergenceError:
        return True
    return False


def main() -> dict[str, float]:
    """Compare both branches with their formulas, up to second derivatives."""
    theta = torch.linspace(-0.95, 0.95, 39, dtype=torch.float64)
    numbers: dict[str, float] = {}
    for name, start, sign in (("upper", 1.0, 1), ("lower", -1.0, -1)):
        expected = sign * (1 - theta**2).sqrt()
        x, first = slope(theta, start)
        second = torch.func.vmap(torch.func.grad(torch.func.grad(lambda t, s=start: solve(t, s))))(theta)
        numbers |= {
            f"{name} branch: error of x": float((x - expected).abs().max()),
            f"{name} branch: error of dx/dtheta": float((first + theta / expected).abs().max()),
            f"{name} branch: relative error of the second derivative": float((second * expected**3 + 1).abs().max()),
        }
    _, steep = slope(torch.tensor([0.9999], dtype=torch.float64), 1.0)
    return numbers | {"dx/dtheta at theta = 0.9999": float(steep), "error raised at (1, 0)": float(fails_at_the_side())}


def draw(path: str) -> None:
    """Draw the circle, and at some points the tangents of slope dx/dtheta."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6, 3.6), layout="constrained")
    axes = figure.subplots()
    angle = torch.linspace(0, 2 * torch.pi, 73)
    axes.plot(angle.cos(), angle.sin(), color="0.7")
    for start in (1.0, -1.0):
        theta = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)
        for t, x, s in zip(theta, *slope(theta, start), strict=True):
            half = 0.2 / (1 + s**2) ** 0.5
            axes.plot([t - half, t + half], [x - half * s, x + half * s], color="C0")
    axes.plot([-1, 1], [0, 0], "x", color="C3")
    axes.set(xlabel="theta", ylabel="x", aspect="equal", title="slopes by the theorem")
    figure.savefig(path)


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:52} {number: .3g}")
    if "--picture" in sys.argv:
        draw(sys.argv[sys.argv.index("--picture") + 1])
