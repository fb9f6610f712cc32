"""One door to all tasks: a table of loaders, and `load`, which finds the right one by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from setgrad.datasets._amazon import AMAZON_CATEGORIES, AMAZON_PROTOCOLS, amazon
from setgrad.datasets._anomaly import ANOMALY_IMAGES, anomaly
from setgrad.datasets._bindingdb import bindingdb
from setgrad.datasets._bundles import BUNDLE_CATEGORIES, bundles
from setgrad.datasets._celeba import celeba
from setgrad.datasets._compounds import COMPOUND_DATASETS, compounds
from setgrad.datasets._digits import digits
from setgrad.datasets._pair_sets import COMPOUND_PROTOCOLS
from setgrad.datasets._synthetic import gaussian, moons
from setgrad.datasets._task import Task
from setgrad.errors import OptionError, unknown_name


class Asked(TypedDict):
    """Numbers of sets that were asked for; None for the usual number."""

    n_train: int | None
    n_validation: int | None
    n_test: int | None


@dataclass(frozen=True)
class Request:
    """What a caller asked for; `variant` is what followed the name, part by part."""

    variant: tuple[str, ...]
    random_state: int
    data_dir: str | Path | None
    counts: Asked


@dataclass(frozen=True)
class TaskLoader:
    """A task, or a family of tasks, that can be asked for by name.

    `variants` are the continuations of the name, joined by colons (none for a single task), and `needs` says what
    must be there beyond setgrad itself.
    """

    summary: str
    make: Callable[[Request], Task]
    variants: tuple[str, ...] = ()
    needs: str = ""


def _gaussian(r: Request) -> Task:
    return gaussian(random_state=r.random_state, **r.counts)


def _moons(r: Request) -> Task:
    return moons(random_state=r.random_state, **r.counts)


def _digits(r: Request) -> Task:
    return digits(random_state=r.random_state, **r.counts)


def _amazon(r: Request) -> Task:
    category, protocol, *_ = (*r.variant, AMAZON_PROTOCOLS[0])
    return amazon(category, protocol, random_state=r.random_state, data_dir=r.data_dir, **r.counts)


def _anomaly(r: Request) -> Task:
    return anomaly(r.variant[0], random_state=r.random_state, data_dir=r.data_dir, **r.counts)


def _celeba(r: Request) -> Task:
    return celeba(random_state=r.random_state, data_dir=r.data_dir, **r.counts)


def _bundles(r: Request) -> Task:
    return bundles(r.variant[0], random_state=r.random_state, data_dir=r.data_dir, **r.counts)


def _compounds(r: Request) -> Task:
    dataset, protocol, *_ = (*r.variant, COMPOUND_PROTOCOLS[0])
    return compounds(dataset, protocol, random_state=r.random_state, data_dir=r.data_dir, **r.counts)


def _bindingdb(r: Request) -> Task:
    return bindingdb(random_state=r.random_state, data_dir=r.data_dir, **r.counts)


LOADERS: dict[str, TaskLoader] = {
    "gaussian": TaskLoader("the rarer of two Gaussian clouds, 10 of 100 points", _gaussian),
    "moons": TaskLoader("the rarer of two half moons, 10 of 100 points", _moons),
    "digits": TaskLoader("the odd ones out among handwritten digits, sets of 8 to 20", _digits, needs="scikit-learn"),
    "amazon": TaskLoader(
        "the products of a customer's baby registry among 30",
        _amazon,
        tuple(f"{category}:{protocol}" for category in AMAZON_CATEGORIES for protocol in AMAZON_PROTOCOLS),
        needs="data files in the folder SETGRAD_DATA",
    ),
    "anomaly": TaskLoader(
        "the odd ones among 8 faces or handwritten digits",
        _anomaly,
        ANOMALY_IMAGES,
        needs="data files in the folder SETGRAD_DATA, SciPy for faces",
    ),
    "celeba": TaskLoader(
        "the faces that lack two attributes of the others, among 8",
        _celeba,
        needs="data files in the folder SETGRAD_DATA, Pillow",
    ),
    "bundles": TaskLoader(
        "the products of a session that were made a bundle",
        _bundles,
        BUNDLE_CATEGORIES,
        needs="data files in the folder SETGRAD_DATA",
    ),
    "compounds": TaskLoader(
        "the active and diverse compounds among 300 drug-target pairs",
        _compounds,
        tuple(f"{dataset}:{protocol}" for dataset in COMPOUND_DATASETS for protocol in COMPOUND_PROTOCOLS),
        needs="data files in the folder SETGRAD_DATA, RDKit and scikit-learn for diverse",
    ),
    "bindingdb": TaskLoader(
        "the active and diverse compounds among 300 pairs of BindingDB",
        _bindingdb,
        needs="data files in the folder SETGRAD_DATA, RDKit and scikit-learn",
    ),
}


def task_names() -> list[str]:
    """Return every name that `load` takes, variants spelled out.

    Example:
        >>> task_names()[:4]
        ['gaussian', 'moons', 'digits', 'amazon:apparel:farthest']
    """
    return [f"{name}:{v}" if v else name for name, loader in LOADERS.items() for v in loader.variants or ("",)]


def load_task(
    name: str,
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    category: str | None = None,
    protocol: str | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Load a task by name; the same name and random_state always give the same data.

    Args:
        name: One of `task_names()`: a task such as "moons", or a family and its member such as "anomaly:mnist". The
            protocol of "amazon" may be left out: "amazon:toys" is "amazon:toys:farthest".
        random_state: Seed of everything that is drawn. The global random state is neither read nor changed.
        data_dir: Folder of the data files, for tasks that read some; the environment variable `SETGRAD_DATA` if None.
        category: The category, if it is not part of the name.
        protocol: The protocol, if it is not part of the name.
        n_train: Number of training sets; the usual number if None. The same for the other two.
        n_validation: See `n_train`.
        n_test: See `n_train`.

    Example:
        >>> task = load_task("moons", n_train=20, n_validation=5, n_test=5)
        >>> sets, subsets = task.train
        >>> sets
        Sets(20 sets, 2000 items, sizes 100 to 100, item shape (2,), torch.float32, cpu)
        >>> load_task("suns")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown data set 'suns'; choose one of: gaussian, moons, digits, amazon...
    """
    head, *rest = name.split(":")
    if head not in LOADERS:
        raise unknown_name("data set", name, LOADERS)
    variant = (*rest, *(part for part in (category, protocol) if part is not None))
    loader = LOADERS[head]
    deepest = max((v.count(":") + 1 for v in loader.variants), default=0)
    if len(variant) > deepest:
        raise OptionError(f"{':'.join((head, *variant))!r} says too much; {_spelling(head, loader)}")
    if loader.variants and not rest and category is None:
        raise OptionError(f"{head!r} is a family of data sets; {_spelling(head, loader)}")
    counts = Asked(n_train=n_train, n_validation=n_validation, n_test=n_test)
    return loader.make(Request(variant, random_state, data_dir, counts))


def _spelling(head: str, loader: TaskLoader) -> str:
    if not loader.variants:
        return f"{head!r} has no variants"
    return f"ask for one of them, such as {f'{head}:{loader.variants[-1]}'!r}"
