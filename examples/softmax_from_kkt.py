"""Softmax as the solution of its optimality conditions, differentiated without its formula (Chiu, 2021, section 4).

    maximise z'theta + H(z)   subject to   1'z = 1,   z >= 0

With a multiplier u for the equality, and z > 0, the conditions are n + 1 equations in (z, u):

    theta - log z - 1 + u = 0
    1'z - 1               = 0

Chiu prints the second row as u (1'z - 1), arguing that u > 0. But u = 1 - logsumexp(theta) can have any sign. Where
u = 0 that row of the Jacobian, (u 1', 1'z - 1), is zero: the theorem does not apply, although softmax is smooth at that
point. Worse, z = exp(theta - 1), u = 0 solves the printed system for every theta, whatever the sum of z.
"""

# %%
from collections.abc import Callable

import torch
from torch import Tensor

from setgrad.implicit import root


def optimality(z: Tensor, u: Tensor, theta: Tensor) -> Tensor:
    """Return stationarity and feasibility, `(*batch, n + 1)`, from z and theta `(*batch, n)` and u `(*batch, 1)`."""
    return torch.cat([theta - z.log() - 1 + u, z.sum(-1, keepdim=True) - 1], -1)


def printed_optimality(z: Tensor, u: Tensor, theta: Tensor) -> Tensor:
    """Return the same with the printed row u (1'z - 1)."""
    return torch.cat([theta - z.log() - 1 + u, u * (z.sum(-1, keepdim=True) - 1)], -1)


def softmax_from_kkt(theta: Tensor) -> Tensor:
    """Solve the conditions for each row of theta. The unknowns are (log z, u), so z stays positive in every step."""

    def residual(y: Tensor, theta: Tensor) -> Tensor:
        return optimality(y[..., :-1].exp(), y[..., -1:], theta)

    # At this start 1'z lies between 1 and n, and Newton steps lower it to 1, however different the scores are.
    largest = theta.amax(-1, keepdim=True)
    start = torch.cat([theta - largest, 1 - largest], -1)
    return root(residual, start, theta, tol=1e-13).value[..., :-1].exp()


# %%
def smallest_singular_value(system: Callable[[Tensor, Tensor, Tensor], Tensor], theta: Tensor) -> float:
    """Return that of the Jacobian in (z, u) at the solution for a theta `(n,)`; 0 if the theorem does not apply."""
    u = 1 - theta.logsumexp(-1, keepdim=True)
    solution = torch.cat([theta.softmax(-1), u])
    jacobian = torch.func.jacrev(lambda y: system(y[:-1], y[-1:], theta))(solution)
    return float(torch.linalg.svdvals(jacobian)[-1])


def main() -> dict[str, float]:
    """Compare with torch.softmax, then examine the printed row at u = 0."""
    generator = torch.Generator().manual_seed(0)
    theta = 2 * torch.randn(4, 6, dtype=torch.float64, generator=generator)
    row = theta[0]
    at_zero = row - row.logsumexp(-1) + 1  # logsumexp = 1, so u = 0

    jacobian = torch.func.jacrev(softmax_from_kkt)
    second = torch.func.jacrev(jacobian)
    expected = torch.func.jacrev(lambda t: t.softmax(-1))
    spurious = (row - 1).exp()
    return {
        "value error": float((softmax_from_kkt(theta) - theta.softmax(-1)).abs().max()),
        "Jacobian error": float((jacobian(row) - expected(row)).abs().max()),
        "Jacobian error at u = 0": float((jacobian(at_zero) - expected(at_zero)).abs().max()),
        "second derivative error": float((second(row) - torch.func.jacrev(expected)(row)).abs().max()),
        "lowest u": float((1 - theta.logsumexp(-1)).min()),
        "smallest singular value, row 1'z - 1, at u = 0": smallest_singular_value(optimality, at_zero),
        "smallest singular value, row u (1'z - 1), at u = 0": smallest_singular_value(printed_optimality, at_zero),
        "residual of the printed system at a false solution": float(
            printed_optimality(spurious, row.new_zeros(1), row).abs().max()
        ),
        "sum of z at the false solution": float(spurious.sum()),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:52} {number: .3g}")
