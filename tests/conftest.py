"""Fixtures that every test shares."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# The same examples in every run, and no deadline: a slow machine is not a wrong answer.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

# Tests are small. Several threads gain nothing there, and on a busy machine they wait for each other. Processes that
# tests start, and libraries that they load, read these variables; the threads of a test that asks for some sleep while
# they wait.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data: SETGRAD_DATA, else ../shared/data beside the checkout."""
    named = os.environ.get("SETGRAD_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set SETGRAD_DATA to the folder that holds it")
    return folder


@contextmanager
def _seeded(seed: int = 0) -> Iterator[None]:
    # devices=[] because modules are built on the CPU, and forking every GPU is slow
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@pytest.fixture(scope="session")
def seeded() -> Callable[..., AbstractContextManager[None]]:
    """`with seeded(3):` draws the weights of new modules from a seed and puts the global state back."""
    return _seeded


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.compile` that has compiled nothing yet, and does not measure its guards for a log that nobody reads."""
    # For the measurement it empties the caches of the processor, which takes longer than to compile a small function.
    monkeypatch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@contextmanager
def _few_trees(most: int = 8) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setgrad.trees._grow.TREES", most)
        yield


@pytest.fixture(scope="session")
def few_trees() -> Callable[..., AbstractContextManager[None]]:
    """`with few_trees():` lets fits on tables grow few boosted trees, on which they spend most of their time."""
    return _few_trees


@pytest.fixture(autouse=True)
def no_global_state() -> Iterator[None]:
    """Fail a test that draws from torch's global generator or leaves another default dtype behind."""
    before, dtype = torch.get_rng_state(), torch.get_default_dtype()
    yield
    drew = not torch.equal(before, torch.get_rng_state())
    changed = torch.get_default_dtype() != dtype
    # put both back first, so that one careless test does not fail the ones after it
    torch.set_rng_state(before)
    torch.set_default_dtype(dtype)
    if drew:
        pytest.fail(
            "the test drew from torch's global generator; pass a torch.Generator to what draws, "
            "and build modules or call gradcheck inside `with seeded(0):` (fixture `seeded`)",
            pytrace=False,
        )
    if changed:
        pytest.fail("the test changed torch's default dtype; pass dtype= instead", pytrace=False)
