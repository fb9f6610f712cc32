"""OptNet learns 4x4 Sudoku from solved boards (Chiu, 2021, section 5; Amos and Kolter, 2017, arXiv:1703.00443).

    z*(p) = arg min_z  r/2 z'z - p'z   subject to   A z = A exp(w),   z >= 0

p holds the known cells of a puzzle, one-hot, and zeros for the blank ones; z* fills the blanks. The layer does not know
the rules: it learns A and w, from a random A, by the gradient of the squared error of z*. The right-hand side has this
form, as in OptNet, so that exp(w) is always feasible. The rules are 64 equalities (every cell, row, column and block)
of rank 40, so 40 rows of A can express them all.

Chiu's system (12) has the row diag(v) (A z - b). As in `softmax_from_kkt.py` it should be A z - b: a multiplier of an
equality may be zero. Needs a QP solver, `pip install "setgrad[qp]"`.
"""

# %%
import itertools

import torch
from torch import Tensor

from setgrad.implicit import quadratic

RIDGE, BLANKS, STEPS, ROWS = 0.3, 6, 300, 40


def solved_boards() -> Tensor:
    """Return all 288 solved boards, one-hot, `(288, 64)`."""
    lines = torch.tensor(list(itertools.permutations(range(4))))
    # All combinations of four lines, then those whose columns and blocks contain four digits too.
    boards = lines[torch.cartesian_prod(*[torch.arange(24)] * 4)]
    blocks = boards.unflatten(1, (2, 2)).unflatten(3, (2, 2)).transpose(2, 3).flatten(1, 2).flatten(2)
    valid = [(groups.sort(-1).values == torch.arange(4)).all(-1).all(-1) for groups in (boards.mT, blocks)]
    return torch.nn.functional.one_hot(boards[valid[0] & valid[1]], 4).double().flatten(1)


def make_puzzles(boards: Tensor, generator: torch.Generator) -> Tensor:
    """Return the boards with `BLANKS` random cells of each set to zero."""
    known = torch.rand(len(boards), 16, generator=generator).argsort(1) >= BLANKS
    return boards * known.repeat_interleave(4, 1)


def fill(puzzles: Tensor, rows: Tensor, log_point: Tensor) -> Tensor:
    """Return z* for each puzzle `(*batch, 64)`, with A = rows `(m, 64)` and w = log_point `(64,)`."""
    identity = torch.eye(64, dtype=puzzles.dtype)
    zeros, right = puzzles.new_zeros(64), rows @ log_point.exp()
    # A rare program that no solver finishes gets no gradient in that step.
    return quadratic(RIDGE * identity, -puzzles, -identity, zeros, rows, right, on_failure="mask").value


# %%
def scores(puzzles: Tensor, boards: Tensor, rows: Tensor, log_point: Tensor) -> dict[str, float]:
    """Return the loss, the shares of wrong blanks and solved puzzles, and the distance of the boards to A z = b."""
    with torch.no_grad():
        z = fill(puzzles, rows, log_point)
        miss = (boards - log_point.exp()) @ (rows / rows.norm(dim=1, keepdim=True)).mT
    blank = puzzles.unflatten(-1, (16, 4)).sum(-1) == 0
    wrong = blank & (z.unflatten(-1, (16, 4)).argmax(-1) != boards.unflatten(-1, (16, 4)).argmax(-1))
    return {
        "squared error": float(((z - boards) ** 2).mean()),
        "share of blanks wrong": float(wrong.sum() / blank.sum()),
        "share of puzzles solved": float((~wrong.any(-1)).double().mean()),
        "distance of true boards to the rows": float(miss.pow(2).mean().sqrt()),
    }


def learn(boards: Tensor, rows: Tensor, log_point: Tensor, generator: torch.Generator) -> None:
    """Train rows and log_point in place: Adam with a falling rate, on new puzzles from 32 of the boards at a time."""
    optimiser = torch.optim.Adam([rows, log_point], lr=0.04)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, total_iters=STEPS)
    for _ in range(STEPS):
        batch = boards[torch.randperm(len(boards), generator=generator)[:32]]
        loss = ((fill(make_puzzles(batch, generator), rows, log_point) - batch) ** 2).mean()
        rows.grad, log_point.grad = torch.autograd.grad(loss, (rows, log_point))
        optimiser.step()
        schedule.step()


def main() -> dict[str, float]:
    """Learn from 192 boards and test on the 96 others. A random guess fills 0.75 of the blanks wrong."""
    generator = torch.Generator().manual_seed(0)
    boards = solved_boards()
    training, test = boards[torch.randperm(len(boards), generator=generator)].split(192)
    puzzles = make_puzzles(test, generator)
    rows = torch.rand(ROWS, 64, dtype=torch.float64, generator=generator).requires_grad_()
    log_point = torch.full((64,), 0.25, dtype=torch.float64).log().requires_grad_()
    # A puzzle may have several solutions, and only one of them counts as right.
    solutions = (puzzles @ boards.mT == 16 - BLANKS).sum(-1)
    numbers = {"boards": float(len(boards))}
    numbers["share of test puzzles with one solution"] = float((solutions == 1).double().mean())
    before = scores(puzzles, test, rows, log_point)
    learn(training, rows, log_point, generator)
    after = scores(puzzles, test, rows, log_point)
    return numbers | {f"{key}, step {n}": part[key] for key in before for n, part in ((0, before), (STEPS, after))}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:58} {number: .3g}")
