"""A child that is forked after a prediction with several threads predicts too, instead of waiting forever."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, signal, warnings
import torch
import setgrad as sg
warnings.simplefilter("ignore")
torch.set_num_threads(2)
sets = sg.Sets.from_lengths(torch.randn(4000, 2), [10] * 400)
chosen = sets.with_values(sets.values[:, 0] > 0)
selector = sg.SubsetSelector(dim=16, max_epochs=1, random_state=0, verbose=0, device="cpu", members=1)
selector.fit(sets[:40], chosen[:40])
torch.randn(500, 500) @ torch.randn(500, 500)
picks = selector.predict(sets)
child = os.fork()
if not child:
    signal.alarm(60)
    (torch.randn(3000, 300) * 2).exp().sum()
    os._exit(0 if torch.equal(selector.predict(sets).values, picks.values) else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_predicts():
    free = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, env=free)
    assert done.stdout == "0\n", done.stderr
