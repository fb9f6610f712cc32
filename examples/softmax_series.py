"""Truncated Neumann series for the softmax layer (Chiu, 2021, section 6).

Chiu asks whether a short series for the inverse Jacobian of the optimality conditions saves work, takes one term,

    X^-1 = sum_k (I - X)^k,   X^-1 ~ 2 I - X,   so   v'dz/dtheta ~ -v (2 + 1/z),

and leaves the check of convergence open. It diverges for every theta: the symmetric I - X has a block 1 + 1/z, so its
largest eigenvalue is above 2. A series needs a contraction, such as the fixed point y = log_softmax((1 - eta) y +
eta theta): there K terms give exactly 1 - (1 - eta)^K of the derivative. Neither series is cheaper than the exact
product z (v - z'v), which the Schur complement of the multiplier gives in 2 n multiplications.

`--picture FILE` draws the errors of both series; it needs Matplotlib.
"""

# %%
import sys

import torch
from torch import Tensor

from setgrad.implicit import Neumann, fixed_point

TERMS = (1, 2, 3, 5, 8, 12)


def exact_product(v: Tensor, z: Tensor) -> Tensor:
    """Return v'dz/dtheta by the Schur complement of the multiplier in the optimality conditions."""
    return z * (v - z @ v)


def optimality_jacobian(z: Tensor) -> Tensor:
    """Return X, the derivative of (theta - log z - 1 + u, 1'z - 1) by (z, u), symmetric."""
    return torch.block_diag(-(1 / z).diag() - 1, z.new_tensor(-1.0)) + 1


def conditions_product(v: Tensor, z: Tensor, terms: int) -> Tensor:
    """Return v'dz/dtheta = -(v, 0)'X^-1 (I, 0)' by I - X and its powers up to `terms`."""
    x = optimality_jacobian(z)
    term = total = torch.cat([v, v.new_zeros(1)])
    for _ in range(terms):
        term = term - term @ x
        total = total + term
    return -total[:-1]


def fixed_point_product(v: Tensor, theta: Tensor, terms: int, eta: float = 0.5) -> Tensor:
    """Return v'dz/dtheta by the first terms of the series of the fixed point."""
    theta = theta.clone().requires_grad_()

    def step(y: Tensor, theta: Tensor) -> Tensor:
        return ((1 - eta) * y + eta * theta).log_softmax(-1)

    y = fixed_point(step, torch.zeros_like(theta), theta, adjoint=Neumann(terms), tol=1e-13).value
    return torch.autograd.grad(y.exp() @ v, theta)[0]


# %%
def errors(theta: Tensor, v: Tensor) -> dict[str, list[float]]:
    """Return the relative errors of both series for each number of terms."""
    exact = exact_product(v, z := theta.softmax(-1))
    columns = [conditions_product(v, z, k) for k in TERMS], [fixed_point_product(v, theta, k) for k in TERMS]
    relative = [[float((x - exact).norm() / exact.norm()) for x in column] for column in columns]
    return dict(zip(("conditions", "fixed point"), relative, strict=True))


def main() -> dict[str, float]:
    """Compare both series with the derivative of torch.softmax."""
    theta, v = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact, z = torch.func.vjp(lambda t: t.softmax(-1), theta)[1](v)[0], theta.softmax(-1)
    radius = torch.linalg.eigvalsh(torch.eye(7).double() - optimality_jacobian(z)).abs().max()
    numbers = {
        "Schur complement: error": float((exact_product(v, z) - exact).abs().max()),
        "one term: distance from Chiu's formula": float((conditions_product(v, z, 1) + v * (2 + 1 / z)).abs().max()),
        "conditions: spectral radius of I - X": float(radius),
    }
    for name, values in errors(theta, v).items():
        numbers |= {f"{name}: relative error, {k} terms": e for k, e in zip(TERMS, values, strict=True)}
    return numbers


def draw(path: str) -> None:
    """Draw the relative errors against the number of terms."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(4.2, 3), layout="constrained")).subplots()
    theta, v = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for name, values in errors(theta, v).items():
        axes.semilogy(TERMS, values, "o-", label=name)
    axes.set(xlabel="terms", ylabel="relative error")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:44} {number: .3g}")
    if "--picture" in sys.argv:
        draw(sys.argv[sys.argv.index("--picture") + 1])
