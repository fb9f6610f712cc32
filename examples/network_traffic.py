"""Traffic on a network: the largest flow, the equilibrium of drivers, and the effect of tolls (Chiu, 2021, section 8).

Chiu's problem is the largest traffic x_p on given paths, with capacities c_e of links. It is a linear program:

    maximise sum_p x_p   subject to   sum of x_p over paths through e <= c_e,   x >= 0

Where its maximum is unique, the derivative of the largest traffic with respect to c is 1 on the links of the smallest
cut and 0 elsewhere. Where several x are optimal there is no derivative, and `quadratic` reports SINGULAR.

A second problem: drivers who choose their own paths. A link that takes the time t_e + s_e f_e at flow f_e, and costs
the toll k_e, carries in equilibrium (Beckmann, 1956) the flow

    f* = arg min_f  sum_e (t_e + k_e) f_e + s_e f_e^2 / 2   subject to   flow conserved at nodes,   f >= 0

On the network of Braess (1968) a new link makes every driver slower, and gradient descent on the total time finds tolls
that undo the loss. Needs a QP solver, `pip install "setgrad[qp]"`.
"""

# %%
import itertools

import torch
from torch import Tensor

from setgrad.implicit import quadratic

# Braess: 0 is the origin, 3 the destination, the last link is the new one. Six drivers.
LINKS = ((0, 1), (1, 3), (0, 2), (2, 3), (1, 2))
PATHS = ((0, 1), (2, 3), (0, 4, 3))
NODES, DEMAND = 4, 6.0
FREE = torch.tensor([0.0, 50, 50, 0, 10], dtype=torch.float64)
SLOPE = torch.tensor([10.0, 1, 1, 10, 1], dtype=torch.float64)
CAPACITY = torch.tensor([4.0, 3, 2.5, 5, 0.5], dtype=torch.float64)


def most_traffic(capacity: Tensor) -> Tensor:
    """Return the traffic on each path, `(*batch, paths)`, from capacities `(*batch, links)`."""
    uses = torch.tensor([[float(e in path) for path in PATHS] for e in range(len(LINKS))], dtype=torch.float64)
    count = len(PATHS)
    bounds = torch.cat([uses, -torch.eye(count, dtype=torch.float64)])
    ends = torch.cat([capacity, capacity.new_zeros(*capacity.shape[:-1], count)], -1)
    return quadratic(uses.new_zeros(count, count), -uses.new_ones(count), bounds, ends).value


def smallest_cut(capacity: Tensor) -> Tensor:
    """Return 1 on the links of the cut between origin and destination with the smallest capacity, else 0."""
    sides = [{0, *more} for k in range(NODES - 1) for more in itertools.combinations(range(1, NODES - 1), k)]
    cuts = torch.tensor([[float(a in side and b not in side) for a, b in LINKS] for side in sides]).double()
    return cuts[(cuts @ capacity).argmin()]


# %%
def equilibrium(free: Tensor, slope: Tensor) -> Tensor:
    """Return flows `(*batch, links)` from the cost of an empty link, tolls included, and the time each driver adds."""
    leaves = torch.tensor([[float(a == v) - float(b == v) for a, b in LINKS] for v in range(NODES - 1)]).double()
    supply = torch.tensor([DEMAND, *[0.0] * (NODES - 2)], dtype=torch.float64)
    identity = torch.eye(len(LINKS), dtype=torch.float64)
    return quadratic(torch.diag_embed(slope), free, -identity, free.new_zeros(len(LINKS)), leaves, supply).value


def total_time(toll: Tensor, free: Tensor = FREE, slope: Tensor = SLOPE) -> Tensor:
    """Return the time of all drivers in equilibrium, `(*batch,)`. A toll changes their paths but is not a time."""
    flow = equilibrium(free + toll, slope)
    return (flow * (free + slope * flow)).sum(-1)


def main() -> dict[str, float]:
    """Compare gradients with a cut, a formula and finite differences; then find tolls by gradient descent."""
    capacity = CAPACITY.clone().requires_grad_()
    most = most_traffic(capacity).sum()
    cut = smallest_cut(CAPACITY)
    (slope_of_most,) = torch.autograd.grad(most, capacity)
    numbers = {"most traffic": float(most.detach()), "smallest cut": float(cut @ CAPACITY)}
    numbers["most traffic: gradient error to the cut"] = float((slope_of_most - cut).abs().max())

    inputs = torch.cat([torch.zeros(5, dtype=torch.float64), FREE, SLOPE]).requires_grad_()
    flows = torch.func.jacrev(equilibrium)(FREE, SLOPE)
    # While the new link is in use, it carries 2 - 2 k / 13 drivers at the toll k.
    numbers["toll on the new link: error of its effect"] = float((flows[4, 4] + 2 / 13).abs())
    (gradient,) = torch.autograd.grad(total_time(*inputs.split(5)), inputs)
    shifted = [inputs.detach() + h * torch.eye(15, dtype=torch.float64) for h in (1e-4, -1e-4)]
    ahead, behind = (total_time(*points.split(5, -1)) for points in shifted)
    error = ((ahead - behind) / 2e-4 - gradient).norm() / gradient.norm()
    numbers["total time: gradient error to finite differences"] = float(error)

    closed = torch.tensor([0.0, 0, 0, 0, 1000], dtype=torch.float64)
    toll = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    numbers["minutes each, new link closed"] = float(total_time(closed)) / DEMAND
    for step in range(41):
        value = total_time(toll)
        if step in (0, 10, 40):
            numbers[f"minutes each, toll step {step}"] = float(value.detach()) / DEMAND
        toll = (toll - 0.3 * torch.autograd.grad(value, toll)[0]).clamp(min=0).detach().requires_grad_()
    return numbers | {"toll on the new link": float(toll.detach()[4])}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:52} {number: .4g}")
